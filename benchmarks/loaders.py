"""All loaders of untrusted files, each with small valid files, for benchmarks/fuzzing.py and tests/test_hostile_input.py.

A loader receives bytes, writes them to a file and reads the file as faustnet does. For some loaders, the first byte
selects the form of the data: the file itself, or only its content, which the loader packs with valid checksums. This way,
changes also reach the code behind a checksum.
"""

import gzip
import hashlib
import io
import json
import math
import pickle
import re
import struct
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save

from faustnet.data import DataSet, Images, load_data, read_image
from faustnet.data.cifar import CIFAR10, cifar100_format, read_batch, read_class_names
from faustnet.data.download import unpack_folder
from faustnet.data.idx import read_idx
from faustnet.data.npz import ARRAYS
from faustnet.errors import STEERING
from faustnet.report import page, tables
from faustnet.report.card import render_card
from faustnet.runs.folder import ENVIRONMENT, HISTORY, METRICS, RECIPE, Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import as_table, read_recipe, recipe_from, shipped_recipe, to_toml, write_recipe
from faustnet.runs.session import set_up
from faustnet.runs.tensor_file import ABOUT, pack

AS_IT_IS, PACKED = b"\0", b"\1"
SMALL = {"images": 10, "values": 12}  # size of a CIFAR batch here, instead of 10,000 or 50,000 and 3,072
MEMBERS = ("a", "b")
RUN_FILES = (METRICS, HISTORY, ENVIRONMENT)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Loader:
    about: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]  # is called with an empty folder
    change: Callable[[bytes, Random], bytes] | None = None  # changes valid bytes, in addition to random changes


# Data sets


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_seeds() -> list[bytes]:
    good = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    return [AS_IT_IS + good, AS_IT_IS + gzip.compress(good, mtime=0), PACKED + good]


def read_idx_bytes(data: bytes, folder: Path) -> None:
    path = folder / "images"
    path.write_bytes(gzip.compress(data[1:], 1) if data[:1] == PACKED else data[1:])
    assert read_idx(path, (2, 3, 4)).shape == (2, 3, 4)


def cifar_seeds() -> list[bytes]:
    images, values = SMALL["images"], SMALL["values"]
    data = np.arange(images * values, dtype=np.uint8).reshape(images, values)
    content = {"batch_label": "a test", "data": data, "labels": list(range(images)), "filenames": ["a", "b"]}
    return [pickle.dumps(content, protocol) for protocol in (2, 3, 4)]


def read_cifar_bytes(data: bytes, folder: Path) -> None:
    path = folder / "data_batch_1"
    path.write_bytes(data)
    images, labels = read_batch(path, replace(CIFAR10, **SMALL))
    assert images.shape == (10, 12)
    assert set(labels) <= set(range(10))


def cifar100_seeds() -> list[bytes]:
    images, values = SMALL["images"], SMALL["values"]
    data = np.arange(images * values, dtype=np.uint8).reshape(images, values)
    content = {"data": data, "fine_labels": list(range(90, 100)), "coarse_labels": list(range(10, 20)), "filenames": ["a"]}
    names = {f"{kind}_label_names": [f"{kind} {n}" for n in range(count)] for kind, count in (("fine", 100), ("coarse", 20))}
    forms = ((b"\0", content), (b"\1", names), (b"\2", content), (b"\3", names))
    return [form + pickle.dumps(part, protocol) for protocol in (2, 4) for form, part in forms]


def read_cifar100_bytes(data: bytes, folder: Path) -> None:
    """Read a file as the first byte says: images and fine labels, names, images and coarse labels, or names of groups."""
    path = folder / "cifar"
    path.write_bytes(data[1:])
    labels, classes = (("fine", 100), ("coarse", 20))[data[:1] in b"\2\3"]
    if data[:1] in b"\0\2":
        images, numbers = read_batch(path, replace(cifar100_format(10, labels), **SMALL))
        assert images.shape == (10, 12)
        assert set(numbers) <= set(range(classes))
    else:
        names = read_class_names(path, labels)
        assert len(set(names)) == classes
        "".join(names).encode()


def tar_of(members: dict[str, bytes], kinds: dict[str, bytes] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type = len(content), (kinds or {}).get(name, tarfile.REGTYPE)
            entry.linkname = "set/b" if entry.islnk() or entry.issym() else ""
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def archive_seeds() -> list[bytes]:
    files = {"set/a": b"one", "set/b": b"two", "../c": b"three"}
    plain = tar_of(files)
    linked = tar_of(files | {"set/a": b""}, {"set/a": tarfile.SYMTYPE})
    return [PACKED + plain, PACKED + linked, PACKED + tar_of({"set/a": b"", "set/b": b""}), AS_IT_IS + gzip.compress(plain)]


def read_archive_bytes(data: bytes, folder: Path) -> None:
    inner = folder / "data"
    inner.mkdir()
    content = gzip.compress(data[1:], 1) if data[:1] == PACKED else data[1:]
    archive = inner / "set.tar.gz"
    archive.write_bytes(content)
    before = set(folder.rglob("*"))
    try:
        unpack_folder(archive, hashlib.md5(content).hexdigest(), inner / "set", MEMBERS)
    finally:
        made = set(folder.rglob("*")) - before
        assert made <= {inner / "set", *(inner / "set" / name for name in MEMBERS)}, f"{made} were made"
        assert all(path.is_dir() or (path.is_file() and not path.is_symlink()) for path in made)


# Files of the user


def picture(mode: str, **options: Any) -> bytes:
    file = io.BytesIO()
    values = np.arange(12 * 8 * 4, dtype=np.uint8).reshape(12, 8, 4)
    image = Image.fromarray(values, "RGBA").convert("RGB" if mode in ("CMYK", "LAB") else "L" if mode == "I;16" else "RGBA")
    image = image.convert("RGB" if mode not in ("RGBA", "L", "LA") else mode) if mode != "I;16" else image
    image = Image.fromarray(np.asarray(image).astype(np.uint16) * 255) if mode == "I;16" else image.convert(mode)
    image.save(file, **options)
    return file.getvalue()


def image_seeds() -> list[bytes]:
    exif = Image.Exif()
    exif[274] = 6
    frames = [Image.new("RGB", (8, 12), colour) for colour in ("red", "blue")]
    made = [
        picture("RGB", format="PNG", exif=exif),
        picture("RGBA", format="PNG"),
        picture("LA", format="PNG"),
        picture("P", format="PNG", transparency=3),
        picture("1", format="PNG"),
        picture("I;16", format="PNG"),
        picture("RGB", format="PNG", save_all=True, append_images=frames),
        picture("RGB", format="JPEG", exif=exif),
        picture("CMYK", format="JPEG", progressive=True),
        picture("L", format="JPEG"),
        picture("RGB", format="BMP"),
        picture("P", format="BMP"),
        picture("P", format="GIF", save_all=True, append_images=frames),
        picture("RGBA", format="WEBP", lossless=True),
        picture("RGB", format="WEBP", save_all=True, append_images=frames),
        picture("I", format="TIFF"),
        picture("F", format="TIFF"),
        picture("CMYK", format="TIFF", compression="tiff_lzw"),
        picture("1", format="TIFF", compression="group4"),
        picture("RGB", format="TIFF", compression="jpeg"),
        picture("RGB", format="PPM"),
        picture("L", format="PPM"),
        b"P2 2 2 9 1 2 3 4",
        b"P5 2 2 65535 aabbccdd",
    ]
    return [AS_IT_IS + content for content in made] + [PACKED + content for content in made[:7]]


def read_image_bytes(data: bytes, folder: Path) -> None:
    path = folder / "image.png"
    path.write_bytes(with_sums(data[1:]) if data[:1] == PACKED else data[1:])
    for shape in ((3, 8, 8), (1, 12, 8)):
        assert read_image(path, shape).shape == shape


def with_sums(png: bytes) -> bytes:
    """Return a PNG file with valid checksums."""
    parts, place = [png[:8]], 8
    while place + 8 <= len(png):
        size = min(int.from_bytes(png[place : place + 4], "big"), len(png) - place - 8)
        chunk = png[place + 4 : place + 8 + size]
        parts.append(png[place : place + 4] + chunk + zlib.crc32(chunk).to_bytes(4, "big"))
        place += 12 + size
    return b"".join(parts)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz_seeds() -> list[bytes]:
    images = np.arange(36, dtype=np.uint8).reshape(4, 3, 3)
    found = []
    for x, y in (
        (images, np.array(["cat", "dog", "cat", "dog"])),
        (images.astype(np.float64), np.array([1, 2, 1, 2])),
        (images[:, 0], np.array([b"a", b"b", b"a", b"b"])),
    ):
        file, zipped = io.BytesIO(), io.BytesIO()
        np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
        np.savez_compressed(zipped, x_train=x, y_train=y, x_test=x, y_test=y)
        found += [AS_IT_IS + file.getvalue(), AS_IT_IS + zipped.getvalue(), PACKED + one_after_another(x, y, x, y)]
    return found


def one_after_another(*arrays: np.ndarray) -> bytes:
    """Concatenate array files, each preceded by its length."""
    return b"".join(len(file).to_bytes(2, "big") + file for file in map(npy, arrays))


def read_npz_bytes(data: bytes, folder: Path) -> None:
    path = folder / "own.npz"
    path.write_bytes(npz_of(data[1:]) if data[:1] == PACKED else data[1:])
    assert_sound(load_data(str(path)))


def npz_of(packed: bytes) -> bytes:
    """Return an .npz archive of concatenated arrays, each preceded by its length."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in zip(ARRAYS, unpacked(packed), strict=False):
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def unpacked(packed: bytes) -> Iterator[bytes]:
    """Return the next part at each call; empty bytes at the end."""
    place = 0
    while True:
        size = int.from_bytes(packed[place : place + 2], "big")
        yield packed[place + 2 : place + 2 + size]
        place += 2 + size


def shards_seeds() -> list[bytes]:
    images, numbers = np.arange(36, dtype=np.uint8).reshape(4, 3, 3), np.array([1, 2, 1, 2])
    sets = ((images, np.array(["cat", "dog", "cat", "dog"])), (images.astype(np.float32), numbers), (images[:, 0], numbers))
    return [one_after_another(x, y, x, y) for x, y in sets]


def read_shards_bytes(data: bytes, folder: Path) -> None:
    place = folder / "shards"
    for name, content in zip(("train/x", "train/y", "test/x", "test/y"), unpacked(data), strict=False):
        file = place / f"{name}-00000.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    found = load_data(str(place))
    assert_sound(found)
    for part in (found.train, found.test):
        assert len(part.all_pixels) == len(part)


def assert_sound(data: DataSet) -> None:
    for part in (data.train, data.test):
        assert part.pixels.dtype in (torch.uint8, torch.float32)
        assert len(part.pixels) == len(part.labels) > 0
        assert 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(data.class_names)
    assert all(type(name) is str for name in data.class_names)
    json.dumps(data.class_names).encode()


# Recipes, models and runs


def recipe_seeds() -> list[bytes]:
    names = ("digits", "best/cifar10/cnn", "tuned/mnist/ffcm", "paper/faust-triplet")
    return [to_toml(shipped_recipe(name)).encode() for name in names] + [write_recipe(recipe_from({})).encode()]


def read_recipe_bytes(data: bytes, folder: Path) -> None:
    path = folder / "own.toml"
    path.write_bytes(data)
    recipe = recipe_from(read_recipe(path))
    path.write_text(write_recipe(recipe), encoding="utf-8")
    assert recipe_from(read_recipe(path)) == recipe


TINY: dict[str, Any] = {
    "network": {"widths": [4, 3], "embedding": 2},
    "training": {"epochs": 1, "batch_size": 4, "validation": 0.0},
}


@cache
def tiny_data() -> DataSet:
    pixels = torch.arange(8 * 4, dtype=torch.uint8).view(8, 1, 2, 2)
    images = Images(pixels, torch.arange(8) % 2)
    return DataSet("tiny", ("cat", "dog"), images, images)


@cache
def model_parts() -> tuple[dict[str, torch.Tensor], dict[str, Any], bytes]:
    """Return the tensors, the metadata and the file of a small model."""
    model = Model.fresh(recipe_from(TINY), tiny_data().train, tiny_data().class_names)
    content = model.to_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    tensors = {f"method.{name}": tensor for name, tensor in model.method.state_dict().items()}
    tensors |= {"scaling.mean": model.scaling.mean, "scaling.deviation": model.scaling.deviation}
    return tensors, json.loads(header["__metadata__"]["faustnet"]), content


def model_seeds() -> list[bytes]:
    _, about, content = model_parts()
    return [AS_IT_IS + content, PACKED + json.dumps(about).encode(), b"\2" + _split(content)[0]]


def read_model_bytes(data: bytes, folder: Path) -> None:
    tensors, _, content = model_parts()
    path = folder / "model.safetensors"
    path.write_bytes(_safetensors(data, tensors, content))
    model = Model.load(path)
    shown = torch.zeros(2, *model.shape, dtype=torch.uint8 if model.of_bytes else torch.float32)
    assert len(model.predict(shown)) == 2
    path.write_bytes(model.to_bytes())
    assert Model.load(path).class_names == model.class_names


def _split(content: bytes) -> tuple[bytes, bytes]:
    """Return the header and the tensors of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    return content[8 : 8 + size], content[8 + size :]


def _safetensors(data: bytes, tensors: dict[str, torch.Tensor], good: bytes) -> bytes:
    """Return the file itself, or valid tensors with this metadata and a valid checksum, or a valid file with this
    header."""
    if data[:1] == PACKED:
        with suppress(ValueError, RecursionError):
            if isinstance(notes := json.loads(data[1:]), dict):
                return pack(tensors, notes)
        return save(tensors, {ABOUT: data[1:].decode(errors="replace")})
    if data[:1] == b"\2":
        return len(data[1:]).to_bytes(8, "little") + data[1:] + _split(good)[1]
    return data[1:]


@cache
def checkpoint_parts() -> tuple[dict[str, torch.Tensor], bytes, bytes]:
    """Return the tensors, the metadata and the checkpoint file of a finished training."""
    _, trainer = set_up(recipe_from(TINY), tiny_data(), CPU)
    trainer.run(lambda: None, lambda epoch: None)
    with TemporaryDirectory() as folder:
        run = _new_run(Path(folder) / "run")
        run.save(trainer)
        content = run.checkpoints.last.read_bytes()
    tensors, facts = trainer.state()
    return {name: tensor.contiguous() for name, tensor in tensors.items()}, json.dumps(facts).encode(), content


def _new_run(folder: Path) -> Run:
    run = Run(folder)
    run.make_folder()
    run.begin(recipe_from(TINY))
    return run


def checkpoint_seeds() -> list[bytes]:
    _, facts, content = checkpoint_parts()
    begun = json.loads(facts) | {"history": [], "batch": 1, "seconds": 0.5}
    notes = [facts, json.dumps(begun).encode()]
    return [AS_IT_IS + content, *(PACKED + note for note in notes), b"\2" + _split(content)[0]]


def read_checkpoint_bytes(data: bytes, folder: Path) -> None:
    tensors, _, content = checkpoint_parts()
    run = _new_run(folder / "run")
    run.checkpoints.last.write_bytes(_safetensors(data, tensors, content))
    _, trainer = set_up(run.recipe, tiny_data(), CPU)
    run.restore(trainer)
    assert trainer.run(lambda: None, lambda epoch: None)
    run.write_history(trainer)
    assert len(run.history) == trainer.epochs


@cache
def run_facts() -> dict[str, Any]:
    """Return the facts of a small run and the content of its files."""
    history = [
        {"epoch": 1, "losses": [0.5, 0.25], "layer_accuracy": [0.5, 1.0], "first_layers_accuracy": [0.5, 1.0],
         "accuracy": 1.0, "learning_rate": 0.001, "seconds": 0.5}
    ]  # fmt: skip
    metrics = {
        "test_accuracy": 1.0, "validation_accuracy": None, "voters": ["layer 1", "layer 2"], "layers": None,
        "layer_accuracy": [0.5, 1.0], "first_layers_accuracy": [0.5, 1.0], "confusion": [[4, 0], [1, 3]],
        "forward_passes": 1, "class_names": ["cat", "dog"], "seconds_per_image": 1e-6, "schedule": "sequential",
        "epochs": 1, "train_seconds": 0.5, "parameters": 50, "trunk_parameters": 40,
    }  # fmt: skip
    made = {"faustnet": "0", "commit": "abc+", "python": "3", "torch": "2", "device": "cpu", "threads": 1, "started": "now"}
    recipe = as_table(recipe_from(TINY))
    return {
        "name": "tiny", "dataset": "tiny", "network": "4–3", "recipe": recipe, "changed": {}, "class_names": ["cat", "dog"],
        "metrics": metrics, "history": history, "environment": made | {"earlier": [made]},
        "learners": ["layer 1", "layer 2"],
        "layers": [{"name": "layer 1", "fisher": 1.0, "map": [[0.0, 1.0]]}], "labels": [0], "predicted": [1],
        "title": "tiny", "is_faust": True, "weights": [1.0, 1.0], "mapped": 1, "positions": [0], "votes": [[0], [1]],
        "first_votes": [[0], [1]], "scores": {"distances": True, "count": 2, "values": "", "classes": None},
        "evaluation": {"images": 8, "accuracy": 0.875, "layer_accuracy": [0.5, 0.875],
                       "first_layers_accuracy": [0.5, 0.875], "confusion": [[4, 0], [1, 3]], "forward_passes": 1},
        "early_exit": [{"threshold": None, "accuracy": 0.875, "saved": 0.0, "leaving": [0.0, 1.0]}],
        "sheet": None, "texts": None, "representatives": [],
        "file": "tiny.onnx", "shape": [1, 2, 2], "of_bytes": True, "vocabulary": 0, "size": 9,
        "summary": "a method", "multiplications": 9,
        "recipe_file": to_toml(recipe), "difference": 0.0, "onnx_seconds": 1e-6, "onnx_processor": "a processor",
    }  # fmt: skip


def run_seeds() -> list[bytes]:
    facts = run_facts()
    contents = (facts["metrics"], facts["history"], facts["environment"])
    return [bytes([number]) + json.dumps(content).encode() for number, content in enumerate(contents)]


def read_run_bytes(data: bytes, folder: Path) -> None:
    facts = run_facts()
    files = dict(zip(RUN_FILES, (facts["metrics"], facts["history"], facts["environment"]), strict=True))
    (folder / RECIPE).write_text(write_recipe(recipe_from(TINY)))
    for number, (name, content) in enumerate(files.items()):
        changed = bytes([number]) == data[:1]
        (folder / name).write_bytes(data[1:] if changed else json.dumps(content).encode())
    run = Run.open(folder)
    found = {**facts, "metrics": run.metrics, "history": run.history, "environment": run.environment}
    if len(found["metrics"]["confusion"]) == len(facts["class_names"]):  # which `model_as_trained` checks
        assert_harmless(found)


# Names in pages and terminal output


def names_seeds() -> list[bytes]:
    return [
        b"cat",
        b"</script><script>alert(1)",
        b"[red]x[/red] | `y` *z* \x1b[31m",
        "\u202e\u0085 ß 猫".encode(),
        b"&lt;\xff",
    ]


def read_name_bytes(data: bytes, folder: Path) -> None:
    name = data.decode(errors="surrogateescape")
    facts = run_facts()
    made = facts["environment"] | {"device": name, "earlier": [{"platform": name}]}
    metrics = facts["metrics"] | {"voters": [name, "layer 2"], "class_names": [name, "dog"]}
    shown = {"name": name, "dataset": name, "class_names": [name, "dog"], "file": f"{name}.onnx", "network": name}
    assert_harmless({**facts, **shown, "metrics": metrics, "environment": made, "changed": {"dataset": name}})
    result = {**metrics, "method": name, "dataset": name, "run": name, "accuracy": 1.0}
    printed = io.StringIO()
    with mock.patch.object(tables, "Console", lambda **options: Console(file=printed, width=200, **options)):
        tables.print_table((name, "b"), [(name, "1"), ("a", name)])
        tables.print_comparison([result, result])
    assert not STEERING.search(printed.getvalue()), printed.getvalue()


class Tags(HTMLParser):
    """Collect the elements of a page and the names of their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))


def assert_harmless(facts: dict[str, Any]) -> None:
    """Check that names in a run add no elements to its pages."""
    with mock.patch.object(page, "plotly_script", return_value=""):
        written = page.render_page([facts])
    cards = [render_card({**facts, "measured": measured}) for measured in (True, False)]
    written.encode()
    odd = {tag for tag, *_ in Tags(written).found} - ELEMENTS
    assert not odd, odd
    assert not [names for tag, *names in Tags(written).found if any(name.startswith("on") for name in names)]
    for card in cards:
        card.encode()
        outside = "".join(re.split(r"(?m)^```.*$", card)[::2])
        assert set(Tags(outside).found) <= {("br",)}, outside
        assert not STEERING.search(outside)


ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "main", "section", "noscript", "div",
    "figure", "figcaption", "label", "select", "aside", "strong", "br", "small", "ol", "canvas", "dl", "dt", "dd", "footer",
    "script", "table", "thead", "tbody", "tr", "th", "td", "code", "details", "summary", "pre", "ul", "li", "img", "article",
    "b", "button", "circle", "i", "line", "path", "rect", "span", "svg",
}  # fmt: skip


# Changes of parsed content


ODD: list[Any] = [
    None, True, 0, -1, 1, 2, 3, 2**31, 2**63, 10**400, 0.5, -1e308, math.inf, "", "a", "\x1b[31m", "\udcff", "a" * 3000,
    [], {}, [[]], [0, 1], ["a", "b"],
]  # fmt: skip


def changed(table: Any, random: Random) -> None:
    """Replace one nested value by an unusual value or by another one, or remove it."""
    places = list(_places(table))
    if places:
        here, place = random.choice(places)
        other, there = random.choice(places)
        kind = random.randrange(4)
        if kind == 0:
            del here[place]
        else:
            here[place] = other[there] if kind == 1 else random.choice(ODD)


def _places(table: Any) -> Iterator[tuple[Any, Any]]:
    for place in list(table) if isinstance(table, dict) else range(len(table)) if isinstance(table, list) else ():
        yield table, place
        yield from _places(table[place])


def change_json(data: bytes, random: Random) -> bytes:
    table = json.loads(data[1:])
    changed(table, random)
    return data[:1] + json.dumps(table).encode()


def change_toml(data: bytes, random: Random) -> bytes:
    table = tomllib.loads(data.decode())
    changed(table, random)
    return to_toml(table).encode()


def change_arrays(data: bytes, random: Random) -> bytes:
    """Change the type or shape in the header of an array."""
    types = (b"<f8", b">i4", b"|u1", b"<U3", b"<U0", b"|V0", b"|V8", b"|O", b"<M8[s]", b"<c8", b"|b1", b"|S2")
    shapes = (b"(4,)", b"(4, 3, 3)", b"()", b"(0,)", b"(4, -1)", b"(-2, -2)", b"(4611686018427387904, 4)", b"4", b"(4, 9)")
    pattern, choices = random.choice([(rb"\([^()]*\)", shapes), (rb"[<>|][a-zA-Z]\d+", types)])
    found = list(re.finditer(pattern, data))
    spot = random.choice(found)
    new = random.choice(choices).ljust(len(spot[0]))
    return data[: spot.start()] + new + data[spot.end() :]


LOADERS = {
    "idx": Loader("MNIST files", idx_seeds, read_idx_bytes),
    "cifar": Loader("CIFAR-10 batches", cifar_seeds, read_cifar_bytes),
    "cifar100": Loader("CIFAR-100 files", cifar100_seeds, read_cifar100_bytes),
    "archive": Loader("downloaded archives", archive_seeds, read_archive_bytes),
    "image": Loader("image files", image_seeds, read_image_bytes),
    "npz": Loader("`.npz` files", npz_seeds, read_npz_bytes, change_arrays),
    "shards": Loader("shards", shards_seeds, read_shards_bytes, change_arrays),
    "recipe": Loader("recipes", recipe_seeds, read_recipe_bytes, change_toml),
    "model": Loader("models", model_seeds, read_model_bytes, change_json),
    "checkpoint": Loader("checkpoints", checkpoint_seeds, read_checkpoint_bytes, change_json),
    "run": Loader("JSON files of a run", run_seeds, read_run_bytes, change_json),
    "names": Loader("names in pages and terminal output", names_seeds, read_name_bytes),
}
