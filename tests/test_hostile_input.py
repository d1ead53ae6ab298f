"""Files that a stranger wrote: each is read, or refused in one sentence, whatever is in it."""

import copy
import io
import json
import os
import runpy
import struct
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save

import fuzzing
import loaders
from conftest import Answer
from faustnet.data import download, load_data, read_image
from faustnet.data.cifar import read_batch
from faustnet.data.download import fetch, unpack_folder
from faustnet.data.idx import read_idx
from faustnet.errors import LONGEST, STEERING, FaustnetError
from faustnet.reproduce.results import read_result
from faustnet.runs.folder import METRICS, Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import read_recipe, recipe_from, write_recipe
from loaders import LOADERS, PACKED
from processes import Program

GIB = 1 << 30


def refused(name: str, data: bytes) -> str | None:
    """What a loader says of bytes that it refuses; nothing if it reads them. Anything else that it raises is a bug."""
    with TemporaryDirectory() as folder:
        try:
            LOADERS[name].read(data, Path(folder))
        except FaustnetError as error:
            sentence = str(error)
            assert not STEERING.search(sentence)
            assert len(sentence) < 2 * LONGEST
            return sentence
    return None


# Files that were good, with something changed


ENDS = [b"", b"\0", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff" * 4, b"\xff" * 8, b"\x80" + b"\0" * 7, b"\1\0\0\0", b"\x1b[2J"]
LEAVES = st.sampled_from(
    [None, True, 0, -1, 2**31, 2**63, 10**400, 0.5, -1e308, 1e999, "", "\x1b[31m", "\udcff", "a" * 3000, [], {}, [[]]]
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A good file cut short, or with a few bytes replaced, left out, put in or taken from another."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from([0, 1, 2, 4, 8, 64]))
        other = draw(st.sampled_from(seeds))
        start = draw(st.integers(0, len(other)))
        new = draw(st.one_of(st.sampled_from(ENDS), st.binary(max_size=8), st.just(other[start : start + size])))
        data = data[:place] + new + data[place + size :]
    return data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))]


@st.composite
def changed(draw: st.DrawFn, table: Any) -> Any:
    """Facts with a few of them replaced, wherever they are, or left out."""
    table = copy.deepcopy(table)
    for _ in range(draw(st.integers(1, 2))):
        here: Any = table
        while True:
            places = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not places:
                break
            place = draw(st.sampled_from(places))
            if isinstance(here[place], dict | list) and here[place] and draw(st.integers(0, 3)):
                here = here[place]
                continue
            if draw(st.booleans()):
                here[place] = draw(LEAVES)
            else:
                del here[place]
            break
    return table


def often(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same files every time, and none of them in a hurry: the machine may be busy."""
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                    suppress_health_check=list(HealthCheck))  # fmt: skip


@pytest.mark.parametrize("name", LOADERS)
def test_good_files_are_read(name: str) -> None:
    said = [refused(name, seed) for seed in LOADERS[name].seeds()]
    assert said.count(None) >= len(said) - 1  # one is a link in an archive, or an image of fractions


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files_are_read_or_refused(name: str) -> None:
    @often(70)
    @given(damaged(LOADERS[name].seeds()))
    def check(data: bytes) -> None:
        refused(name, data)

    check()


def notes(name: str) -> list[tuple[bytes, Any]]:
    """The JSON in a loader's good files, and what stands before it there."""
    return [(seed[:1], json.loads(seed[1:])) for seed in LOADERS[name].seeds() if seed[1:2] in (b"{", b"[")]


@pytest.mark.parametrize("name", ["model", "checkpoint", "run"])
def test_facts_that_are_other_than_they_were_are_read_or_refused(name: str) -> None:
    @often(150)
    @given(st.sampled_from(notes(name)).flatmap(lambda note: st.tuples(st.just(note[0]), changed(note[1]))))
    def check(note: tuple[bytes, Any]) -> None:
        refused(name, note[0] + json.dumps(note[1]).encode())

    check()


@often(100)
@given(
    st.sampled_from(["<f8", ">i4", "|u1", "<U3", "<U0", "|V0", "|V8", "|O", "<M8[s]", "<c8", "|b1", "|S2"]),
    st.sampled_from(["(4,)", "(4, 3, 3)", "()", "(0,)", "(4, -1)", "(-2, -2)", f"({2**62}, 4)", "(1e3,)", "4", "((4,),)"]),
    st.integers(0, 3),
    st.binary(max_size=80),
)
def test_arrays_whose_headers_lie_are_read_or_refused(dtype: str, shape: str, place: int, content: bytes) -> None:
    good = [loaders.npy(np.zeros((4, 3, 3), np.uint8)), loaders.npy(np.arange(4))] * 2
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    good[place] = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + content
    refused("npz", PACKED + b"".join(len(member).to_bytes(2, "big") + member for member in good))


WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
VALUES = st.recursive(
    st.one_of(st.integers(), st.floats(), st.booleans(), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=5,
)


@often(150)
@given(changed(json.loads(json.dumps(loaders.as_table(recipe_from({}))))), st.text(max_size=8), VALUES)
def test_recipes_of_wrong_types_are_refused(table: dict[str, Any], key: str, value: Any) -> None:
    for given_ in (table, {key: value}, {"network": {key: value}}, {"dataset": value}, {"options": {"scale": value}}):
        with suppress(FaustnetError):
            recipe_from(given_)


@often(60)
@given(st.binary(max_size=40))
def test_names_are_shown_as_they_are_and_do_nothing(name: bytes) -> None:
    assert refused("names", name) is None


# What was found


def nested(depth: int) -> bytes:
    """A tuple that holds one tuple twice, which holds one tuple twice, …: to hash or to print it takes 2^depth steps."""
    return b"(" + b"K\1" + b"".join(b"q\0h\0\x86" for _ in range(depth))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"\x80\2}" + nested(64)[1:] + b"K\1s.", "it has a key that is not a string"),
        (b"\x80\2c_codecs\nencode\nX\1\0\0\0a" + nested(64)[1:] + b"\x86R.", "is not a CIFAR-10 batch"),
        (b"\x80\2Nr\xff\xff\xff\x7f.", "is not a CIFAR-10 batch"),
        (b"\x80\2\x8e" + (2**40).to_bytes(8, "little") + b".", "is not a CIFAR-10 batch"),
        (b"\x80\2" + b"]" * 300_000 + b".", "more than 200,000 operations"),
        (b"\x80\2" + b"K\1" * 300_000 + b".", "more than 200,000 operations"),
        (b"\x80\2" + b"K\1" * 199_998 + b"00.", "contains the operation POP"),
        (b"\x80\2]X\xff\xff\xff\x7fa" + b"q\0" * 9 + b"a.", "is not a CIFAR-10 batch"),
        (b"\x80\2]T\xff\xff\xff\xffa" + b"q\0" * 9 + b"a.", "negative byte count"),
        (b"\x80\2q\0K\1K\1K\1.", "list index out of range"),
        (b"\x80\2cfaustnet.data.cifar\nread_batch\n.", "refers to faustnet.data.cifar.read_batch"),
        (b"\x80\2c_codecs\nencode\n}X\1\0\0\0aK\1sb.", "is not a CIFAR-10 batch"),
        (b"\x80\2K\1K\2.", "is not a CIFAR-10 batch"),
        (b"\x80\2t.", "is not a CIFAR-10 batch"),
        (b"cposix\nsystem\n(S'true'\ntR.", "refers to posix.system"),
        (b"(S'true'\ncposix\nsystem\n.", "contains the operation STRING"),
        (b"\x80\2\xff.", "contains the operation 0xff"),
    ],
    ids=[
        "hash",
        "print",
        "memo",
        "length",
        "lists",
        "numbers",
        "most numbers",
        "string",
        "negative",
        "stack",
        "name",
        "function",
        "two",
        "mark",
        "call",
        "text",
        "none",
    ],
)
def test_a_pickle_is_no_program(program: bytes, said: str) -> None:
    assert said in str(refused("cifar", program))
    assert refused("cifar100", b"\1" + program)


def deflated(mebibytes: int) -> bytes:
    """Zeros, a thousandth of their size, without the time that it would take to pack them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * mebibytes + packer.flush()


def zip_of(members: dict[str, tuple[bytes, int, int]]) -> bytes:
    """An archive of packed members, each with its method and the size that it says it has."""
    body, directory = b"", b""
    for name, (packed, method, size) in members.items():
        common = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, 0, len(packed), size, len(name), 0)
        directory += b"PK\1\2\x14\0" + common + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\3\4" + common + name.encode() + packed
    return body + directory + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 4, 4, len(directory), len(body), 0)


def npz_bomb(path: Path, says: int) -> None:
    """4 GiB of zeros behind an array's header, in an archive that says they are so many."""
    header = loaders.npy(np.zeros((1, 1), np.uint8))[:128].replace(b"(1, 1), }     ", b"(4, %d), }" % GIB)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH) + deflated(4096)
    member = loaders.npy(np.arange(4))
    labels = (member, zipfile.ZIP_STORED, len(member))
    parts = {"x_train": (bomb, zipfile.ZIP_DEFLATED, says), "y_train": labels, "x_test": labels, "y_test": labels}
    path.write_bytes(zip_of({f"{name}.npy": part for name, part in parts.items()}))


def large_model(path: Path) -> None:
    """A few bytes, and a recipe that asks for 1.6 GB of weights."""
    tensors, about, _ = loaders.model_parts()
    about = copy.deepcopy(about)
    about["recipe"]["network"]["widths"] = [20_000, 20_000]
    path.write_bytes(save(tensors, {"faustnet": json.dumps(about)}))


MEASURED = """
import json, resource, sys
from pathlib import Path
from faustnet.data import load_data, read_image
from faustnet.data.idx import read_idx
from faustnet.errors import FaustnetError
from faustnet.runs.model import Model

READ = {".npz": lambda path: load_data(str(path)), ".gz": lambda path: read_idx(path, (10,)), ".safetensors": Model.load}
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
address = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (address + (3 << 30),) * 2)
said = {}
for path in map(Path, sys.argv[1:]):
    try:
        READ.get(path.suffix, lambda path: read_image(path, (3, 8, 8)))(path)
        sentence = ""
    except FaustnetError as error:
        sentence = str(error)
    said[path.name] = (sentence, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) << 10)
print(json.dumps(said))
"""


def test_a_small_file_never_takes_a_gibibyte(tmp_path: Path) -> None:
    npz_bomb(tmp_path / "honest.npz", says=min(4 * GIB + 128, 2**32 - 1))
    npz_bomb(tmp_path / "lying.npz", says=2_000)
    gzip_header = b"\x1f\x8b\x08" + bytes(7)
    (tmp_path / "idx.gz").write_bytes(gzip_header + deflated(4096))
    large_model(tmp_path / "wide.safetensors")
    (tmp_path / "header.safetensors").write_bytes((90 << 20).to_bytes(8, "little") + b"{" + b" " * (90 << 20))
    Image.new("RGB", (7_000, 7_000)).save(tmp_path / "large.webp", lossless=True, method=0)
    Image.new("1", (7_000, 7_200)).save(tmp_path / "larger.tif", compression="group4")
    files = sorted(tmp_path.iterdir())
    process = Program(MEASURED, *files)
    out, err = process.communicate()
    assert process.returncode == 0, err
    said = json.loads(out)
    assert max(peak for _, peak in said.values()) < GIB, said
    for name, part in {
        "honest.npz": "expands to 4,096 MiB", "lying.npz": "is not a readable .npz file", "idx.gz": "damaged or not",
        "wide.safetensors": "does not match its recipe", "header.safetensors": "more than 16 MiB",
        "larger.tif": "has too many pixels (at most 50 million",
    }.items():  # fmt: skip
        assert part in said[name][0], said[name]
    assert not said["large.webp"][0], "fifty million pixels may be read"


def test_arrays_may_be_zipped_as_numpy_zips_them_and_no_other_way(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):  # 4 GiB of zeros take 3 kB there, and are unpacked at once
        with zipfile.ZipFile(tmp_path / "own.npz", "w", method) as archive:
            for name in loaders.ARRAYS:
                archive.writestr(f"{name}.npy", loaders.npy(np.arange(4)))
        with pytest.raises(FaustnetError, match="compressed by a method that numpy does not use"):
            load_data(str(tmp_path / "own.npz"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_train": np.array([1, 2, 1, 2]), "y_test": np.array(["1", "2", "1", "2"])}, "must both be numbers"),
        ({"y_train": np.zeros(4, "V8")}, "must both be numbers"),
        ({"y_train": np.array([1j, 2, 1, 2])}, "must both be numbers"),
        (dict.fromkeys(("y_train", "y_test"), np.frombuffer(b"a\0\0\0" + b"\xff" * 12, "<U1")), "must both be numbers"),
    ],
    ids=["mixed", "void", "complex", "no character"],
)
def test_labels_that_are_none_are_refused(changes: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    y = np.array([1, 2, 1, 2])
    x = np.zeros((4, 3, 3), np.uint8)
    np.savez(tmp_path / "own.npz", **{"x_train": x, "y_train": y, "x_test": x, "y_test": y, **changes})
    with pytest.raises(FaustnetError, match=said):
        load_data(str(tmp_path / "own.npz"))


def progressive(scans: int) -> bytes:
    """A JPEG file that is drawn over and over."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * scans + content[-2:]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (progressive(2_000), "more than 1,000 scans"),
        (b"P3 9 9 9 " + b"#\n" * 200_000, "too large for its format"),
        (b"P6 3000 3000 254 ", "too large for its format"),
    ],
    ids=["passes", "comments", "values"],
)
def test_an_image_that_would_take_for_ever_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(content)
    with pytest.raises(FaustnetError, match=said):
        read_image(tmp_path / "image.jpg", (3, 8, 8))


def test_a_progressive_photograph_is_read(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(progressive(1))
    assert read_image(tmp_path / "image.jpg", (3, 8, 8)).shape == (3, 8, 8)


def entry(kind: bytes = tarfile.REGTYPE, name: str = "set/a", size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, 0, "/etc/passwd"
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if size:
        header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
        header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]  # type: ignore[attr-defined]
    return bytes(header)


KINDS = {
    "symlink": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE,
    "sparse": tarfile.GNUTYPE_SPARSE, "pax": tarfile.XHDTYPE, "long name": tarfile.GNUTYPE_LONGNAME,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_of_anything_but_files_is_refused(kind: str) -> None:
    content = loaders.tar_of({"set/b": b"two"})[:1024] + entry(KINDS[kind]) + bytes(1024)
    assert "not a regular file" in str(refused("archive", PACKED + content))


def test_an_archive_that_leads_back_or_expands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    leads_back = loaders.tar_of({"set/b": b"two"})[:1024] + entry(name="x", size=-1024) + bytes(1024)
    assert "could not be unpacked" in str(refused("archive", PACKED + leads_back))
    monkeypatch.setattr(download, "LARGEST", 1 << 20)
    assert "expands to more than 1 MiB" in str(refused("archive", PACKED + loaders.tar_of({"set/a": bytes(2 << 20)})))


@pytest.fixture(params=["9" * 20, "9" * 5000], ids=["large", "no number"])
def endless(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that announces an impossible length, and then never stops sending."""

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200, "fine\x1b[31m")
            self.send_header("Content-Length", request.param)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/file"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_that_never_ends_is_given_up(endless: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 1 << 20)
    with pytest.raises(FaustnetError, match=r"sends more than 1 MiB|is damaged or incomplete"):
        fetch([endless], "0", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dataset = [0x" + "f" * 6_000 + "]", "dataset must be a string, got list"),
        ("a" + ".a" * 10_000 + " = 1", "not a regular file, or has more than 16,384 bytes"),
        ("a = " + "[" * 10_000, "cannot be read"),
        ('"' + "k" * 9_000 + '" = 1', "There is no recipe key 'kkk"),
        ('"\\u001b[31m" = 1', r"recipe key '\x1b[31m'"),
    ],
    ids=["hexadecimal", "dots", "brackets", "long", "colour"],
)
def test_a_recipe_that_is_hard_to_read_or_to_quote_is_refused(text: str, said: str) -> None:
    assert said in str(refused("recipe", text.encode()))


def test_a_recipe_with_any_name_in_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    recipe = recipe_from({"dataset": "a\x7f\x9b\u202e\x1b\n\\u0041"})
    (tmp_path / "own.toml").write_text(write_recipe(recipe), encoding="utf-8")
    assert recipe_from(read_recipe(tmp_path / "own.toml")) == recipe


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("of_bytes", None, "is not a faustnet model"),
        ("shape", [1e999, 2, 2], "is not a faustnet model"),
        ("shape", [2**40, 2**40, 1], "is not a faustnet model"),
        ("recipe", {"network": {"widths": [1] * 100_000}}, "fewer tensors than layers"),
        ("recipe", {"network": {"widths": [4, 3], "embedding": 2**32}}, "not enough memory"),
    ],
)
def test_a_model_that_does_not_fit_what_it_says_is_refused(key: str, value: Any, said: str) -> None:
    about = {**loaders.model_parts()[1], key: value}
    if value is None:
        del about[key]
    assert said in str(refused("model", PACKED + json.dumps(about).encode()))


@pytest.mark.parametrize("kind", [torch.int32, torch.bfloat16, torch.bool])
def test_a_model_of_other_numbers_is_refused(kind: torch.dtype, tmp_path: Path) -> None:
    tensors, about, _ = loaders.model_parts()
    name = next(name for name in tensors if name.startswith("method."))
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({**tensors, name: tensors[name].to(kind)}, {"faustnet": json.dumps(about)}))
    with pytest.raises(FaustnetError, match=f"does not match its recipe: the type of .* is {kind}"):
        Model.load(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("metrics", {"confusion": [["a"]]}),
        ("metrics", {"confusion": [[0, 0], [0, 0]]}),
        ("metrics", {"layer_accuracy": [None, None]}),
        ("metrics", {"voters": ["one"]}),
        ("metrics", {"test_accuracy": 1e999}),
        ("environment", {"earlier": [[]]}),
        ("environment", {"earlier": [{"earlier": [1]}]}),
        ("environment", {"python": [[[[1]]]]}),
        ("environment", {"commit": 5}),
    ],
)
def test_a_run_whose_figures_contradict_each_other_is_damaged(name: str, change: dict[str, Any]) -> None:
    number = ("metrics", "history", "environment").index(name)
    content = json.dumps({**loaders.run_facts()[name], **change}).encode()
    assert f"{name}.json is damaged" in str(refused("run", bytes([number]) + content))


@pytest.mark.parametrize("name", ["losses", "layer_accuracy", "first_layers_accuracy"])
def test_a_checkpoint_with_a_history_of_other_layers_is_refused(name: str) -> None:
    facts = json.loads(loaders.checkpoint_parts()[1])
    facts["history"][0][name] = [0.5, 0.5, 0.5]
    assert "damaged or from another run" in str(refused("checkpoint", PACKED + json.dumps(facts).encode()))


def test_a_report_leaves_out_what_is_too_large_for_its_curves() -> None:
    history = copy.deepcopy(loaders.run_facts()["history"])
    history[0] |= {"layer_accuracy": [1e308, 0.5], "accuracy": -1e308}
    assert refused("run", b"\1" + json.dumps(history).encode()) is None


def test_a_result_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("[" * 100_000)
    with pytest.raises(FaustnetError, match="is not a result of a run"):
        read_result(tmp_path / "result.json")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x09\x12\x01a"], ids=["empty", "text", "no graph"])
def test_the_example_says_that_a_file_is_no_exported_model(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["predict_onnx.py", str(tmp_path / "model.onnx"), "image.png"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(fuzzing.ROOT / "examples" / "predict_onnx.py"), run_name="__main__")
    assert "is not a model that faustnet has exported" in capsys.readouterr().err


def test_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    readers: list[Callable[[], object]] = [
        lambda: read_idx(pipe, (1,)),
        lambda: read_batch(pipe),
        lambda: unpack_folder(pipe, "0", tmp_path / "set", ["a"]),
        lambda: read_image(pipe, (1, 8, 8)),
        lambda: load_data(str(pipe)),
        lambda: read_recipe(pipe),
        lambda: Model.load(pipe),
    ]
    for read in readers:
        with pytest.raises(FaustnetError):
            read()
    os.mkfifo(tmp_path / METRICS)
    with pytest.raises(FaustnetError, match="is damaged"):
        _ = Run(tmp_path).metrics


def test_names_cannot_steer_the_terminal_or_the_page(
    tmp_path: Path, faustnet: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["\x1b[31mred", "[bold]<script>alert(1)<", "\u202eturned"]
    for number, name in enumerate(names):
        (tmp_path / "data\x1b[2J" / name).mkdir(parents=True)
        for image in range(12):
            Image.new("L", (8, 8), 80 * number + image).save(tmp_path / "data\x1b[2J" / name / f"{image}\x1b[5m.png")
    (tmp_path / "data\x1b[2J" / names[0] / "\x1b[5mbad.png").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    few = ("--epochs", "1", "--widths", "8,8", "--embedding", "4", "--batch-size", "4", "--device", "cpu")
    trained = faustnet("train", "--data", "data\x1b[2J", "--out", "run", *few)
    folder = Path("data\x1b[2J") / names[0]
    answers = [
        trained,
        faustnet("evaluate", "run"),
        faustnet("predict", "run", folder),
        faustnet("add-class", "run", "\x1b[1mnew", folder / "1\x1b[5m.png", "--out", "other.safetensors"),
        faustnet("report", "run"),
        faustnet("export", "run", "out.onnx"),
    ]
    assert [answer.code for answer in answers] == [0, 0, 1, 0, 0, 0], answers
    for answer in answers:
        assert not STEERING.search(answer.out + answer.err), answer
    assert r"\x1b[31mred" in answers[1].out
    assert json.loads(faustnet("predict", "run", folder / "1\x1b[5m.png", "--json").out)[0]["class_name"] in names
    found = loaders.Tags(Path("run/report.html").read_text(encoding="utf-8")).found
    assert {tag for tag, *_ in found} <= loaders.ELEMENTS
    assert not STEERING.search(Path("out.md").read_text(encoding="utf-8"))


# What fuzzes


class Wrong(Exception):
    pass


def test_a_finding_is_kept_and_made_smaller(tmp_path: Path) -> None:
    for part in ("findings", "scratch"):
        (tmp_path / part).mkdir()

    def read(data: bytes, folder: Path) -> None:
        (folder / "file").write_bytes(data)
        if b"ab" in data:
            raise Wrong("a bug")
        if b"c" in data:
            raise FaustnetError("It holds a c: take it out.")

    reader = fuzzing.Reader("fake", tmp_path, read, FaustnetError)
    for data in (b"x", b"xc", b"x" * 500 + b"ab" + b"y" * 300, b"ab"):
        reader(data)
    assert reader.counts == {"inputs": 4, "accepted": 1, "refused": 1}
    (path,) = (tmp_path / "findings").iterdir()
    assert path.stem.startswith("Wrong-")
    assert len(path.read_bytes()) > 800
    fuzzing.minimise(reader)
    assert path.read_bytes() == b"ab"
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_page_has_what_was_fuzzed_last() -> None:
    found = json.loads(fuzzing.RESULT.read_text())
    page = fuzzing.PAGE.read_text(encoding="utf-8")
    assert fuzzing.with_table(page, found) == page, "run: python benchmarks/fuzzing.py page"
    assert {line["loader"] for line in found} == set(LOADERS)
    assert not [line for line in found if line["findings"]]
