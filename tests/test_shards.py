"""Data sets in shards: read, checked, made, and trained on as if they were in memory."""

import io
import json
import os
import re
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import faustnet as library
from conftest import Answer, run_to_end
from faustnet.data import DataSet, Images, StoredPixels, load_data, make_shards, shard_writer, stored_pixels
from faustnet.errors import FaustnetError
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import set_up
from faustnet.system.devices import free_memory
from faustnet.system.locks import folder_lock
from faustnet.training.loop import TrainingLoop
from processes import Program

CPU = torch.device("cpu")
SMALL = {"network": {"widths": [40, 30], "embedding": 16}, "training": {"epochs": 2, "batch_size": 64}}


@pytest.fixture(scope="module")
def digits_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All digits, in shards of 100 images."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "SHARD", 6400)
        make_shards("digits", folder)
    assert len(list((folder / "train").glob("x-*.npy"))) == 15
    return folder


def trainer_on(data: DataSet, table: dict[str, Any]) -> TrainingLoop:
    merged = {key: {**SMALL.get(key, {}), **value} if isinstance(value, dict) else value for key, value in table.items()}
    return set_up(recipe_from({**SMALL, **merged}), data, CPU)[1]


def same_training(one: TrainingLoop, other: TrainingLoop) -> None:
    states = [trainer.method.state_dict() for trainer in (one, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for a, b in zip(one.history, other.history, strict=True):
        assert replace(a, seconds=0) == replace(b, seconds=0)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"training": {"schedule": "wavefront"}, "data": {"crop": 1, "rotation": 5.0}},
        {"training": {"schedule": "greedy", "batch_size": 50}},
        {"method": "faust-tuplet", "training": {"epochs": 1}},
        {"method": "faust-tuplet", "training": {"epochs": 1, "schedule": "greedy"}},
        {"method": "backprop", "data": {"flip": True, "cutout": 2}},
        {"method": "ffcm", "training": {"epochs": 1}},
        {"method": "faust-centroid", "training": {"validation": 0.25, "balance": True}},
        {"options": {"choice": "k-means", "representatives": 2}, "network": {"norm": "batch"}},
    ],
    ids=str,
)
def test_training_from_files_is_training_in_memory(table: dict[str, Any], digits_folder: Path, digits: DataSet) -> None:
    streamed = trainer_on(load_data(str(digits_folder), stream="always"), table)
    assert streamed.schedule.feed.streams
    same_training(run_to_end(streamed), run_to_end(trainer_on(digits, table)))
    assert not [thread for thread in threading.enumerate() if thread.name == "reading ahead"]


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_a_training_that_was_stopped_goes_on_at_its_batch(schedule: str, digits_folder: Path) -> None:
    data = load_data(str(digits_folder), stream="always")
    table = {"training": {"schedule": schedule}}
    stopped, resumed = trainer_on(data, table), trainer_on(data, table)
    assert not stopped.run(lambda: stopped.stop() if stopped.batch == 7 else None, lambda epoch: None)
    assert stopped.batch == 7
    resumed.restore(*stopped.state())
    same_training(run_to_end(resumed), run_to_end(trainer_on(data, table)))


def test_whether_images_are_streamed_depends_on_the_memory_there_is(
    digits_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = load_data(str(digits_folder)).train.pixels.size
    for free, streams in ((2 * size, False), (2 * size - 1, True)):
        monkeypatch.setattr(stored_pixels, "free_memory", lambda device, free=free: free)
        assert trainer_on(load_data(str(digits_folder)), {}).schedule.feed.streams == streams
    monkeypatch.setattr(stored_pixels, "free_memory", lambda device: size - 1)
    with pytest.raises(FaustnetError, match=r"more than the free memory: set data\.stream to"):
        trainer_on(load_data(str(digits_folder), stream="never"), {})
    monkeypatch.setattr(stored_pixels, "CHECKED_SIZE", 0)
    monkeypatch.setattr(stored_pixels, "free_memory", lambda device: 70_000)
    with pytest.raises(FaustnetError, match=r"set options\.choice to random"):
        trainer_on(load_data(str(digits_folder)), {"options": {"choice": "k-means"}})


def test_ranks_on_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would read a set that fits only once."""
    alone = free_memory(CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert 0 < free_memory(CPU) < alone / 8


def write(folder: Path, **changes: object) -> Path:
    """Two shards to train on and one to test on, but for some arrays (or bytes) that are others, or None for missing."""
    x = np.random.default_rng(0).integers(256, size=(12, 6, 5), dtype=np.uint8)
    y = np.array([1, 0, 2] * 4)
    arrays = {"train/x-0": x[:7], "train/y-0": y[:7], "train/x-1": x[7:], "train/y-1": y[7:], "test/x-0": x, "test/y-0": y}
    for name, array in {**arrays, **changes}.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(array, bytes):
            path.write_bytes(array)
        elif array is not None:
            np.save(path, array)
    return folder


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3), (3, 6, 5), (7,)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_any_layout_is_read_as_from_an_npz_file(shape: tuple[int, ...], dtype: type, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(256, size=(12, *shape)).astype(dtype)
    x = x / 7 if dtype is np.float32 else x
    y = np.array(["b", "a", "c"] * 4)
    parts = {"train/x-0": x[:7], "train/y-0": y[:7], "train/x-1": x[7:], "train/y-1": y[7:]}
    write(tmp_path, **parts, **{"test/x-0": x[:5], "test/y-0": y[:5]})
    np.savez(tmp_path / "same.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    mine, same = load_data(str(tmp_path)), load_data(str(tmp_path / "same.npz"))
    assert mine.class_names == same.class_names == ("a", "b", "c")
    for part, other in ((mine.train, same.train), (mine.test, same.test)):
        assert isinstance(part.pixels, StoredPixels)
        assert torch.equal(part.all_pixels, other.all_pixels)
        assert part.all_pixels.dtype == other.all_pixels.dtype
        assert torch.equal(part.labels, other.labels)
    order = torch.tensor([11, 6, 7, 8, 0, 0, 6])
    assert torch.equal(mine.train.pixels[order], same.train.pixels[order])
    assert torch.equal(mine.train.take(order).take(torch.tensor([5, 1])).all_pixels, same.train.pixels[[0, 6]])


def cut_short() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((7, 6, 5), np.uint8))
    return file.getvalue()[:-110]


def headed(header: str) -> bytes:
    """A .npy file that opens so."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(4096)


def saying(dtype: str, shape: tuple[int, ...]) -> bytes:
    return headed(repr({"descr": dtype, "fortran_order": False, "shape": shape}))


class Exploding:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train/y-1": None}, "train/y-1.npy is missing: every shard needs"),
        ({"train/x-1": None}, "train/x-1.npy is missing: every shard needs"),
        ({"test/x-0": None, "test/y-0": None}, "test has no shards: save images as x-00000.npy"),
        ({"train/x-1": np.zeros((5, 5, 6), np.uint8)}, "x-1.npy has (5, 6) of uint8, and"),
        ({"train/x-1": np.zeros((5, 6, 5), np.float32)}, "x-1.npy has (6, 5) of float32, and"),
        ({"test/x-0": np.zeros((12, 6, 6), np.uint8)}, "All shards need images of one shape and type"),
        ({"train/x-1": np.zeros((4, 6, 5), np.uint8)}, "got 5 for 4 images"),
        ({"train/x-0": np.zeros((7, 6, 5), np.int64)}, "as uint8 or float32"),
        ({"train/x-0": np.zeros(7, np.uint8)}, "must contain images or rows of numbers"),
        ({"train/x-0": np.zeros((7, 0, 5), np.uint8)}, "must contain images or rows of numbers"),
        ({"train/x-0": np.asfortranarray(np.ones((7, 6, 5), np.uint8))}, "is in Fortran order"),
        ({"train/x-0": cut_short()}, "x-0.npy is incomplete (110 bytes are missing)"),
        ({"train/x-0": b"\x93NUMPY"}, "is not a readable array"),
        ({"train/x-0": b""}, "is not a readable array"),
        ({"train/x-0": headed("{[]: 1}")}, "is not a readable array"),
        ({"train/x-0": headed("(")}, "is not a readable array"),
        ({"train/x-0": headed("{1: 1, 'a': 2}")}, "is not a readable array"),
        ({"train/x-0": headed("-" * 9000)}, "is not a readable array"),
        ({"train/x-0": saying("|u1", (7, -6, -5))}, "its header says shape (7, -6, -5)"),
        ({"train/y-0": saying("<i8", (-7,))}, "its header says shape (-7,)"),
        ({"train/y-0": saying("<U0", (10**12,))}, "its header says shape (1000000000000,) and type <U0"),
        ({"train/y-0": np.full(7, 2**31 - 1, np.uint32).view("<U1")}, "contains invalid Unicode"),
        ({"train/x-0": np.array([Exploding()] * 7, dtype=object)}, "Python objects, which are never unpickled"),
        ({"train/y-0": np.array([Exploding()] * 7, dtype=object)}, "Python objects, which are never unpickled"),
        ({"train/y-0": np.zeros(7)}, "must contain labels in one dimension, integers or strings"),
        ({"train/y-0": np.zeros((7, 1), int)}, "must contain labels in one dimension, integers or strings"),
        ({"train/y-0": np.array(["1"] * 7)}, "must be all integers or all strings, got both"),
        ({"train/y-0": np.zeros(7, int), "train/y-1": np.zeros(5, int)}, "at least two classes, got 1"),
        ({"test/y-0": np.array([1, 0, 2, 7] * 3)}, "test images but no training images of the class 7"),
        ({"classes": "a\nb"}, "x-0.npy has 2"),
        ({"classes": "a\nb\nc", "train/y-1": np.array([0, 1, -1, 0, 0])}, "x-1.npy has -1"),
        ({"classes": "a\nb\nc\nd"}, "names 'd', but no training image has label 3"),
        ({"classes": "a\na\nc"}, "must name at least two different classes"),
    ],
)
def test_shards_with_something_wrong_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    if classes := changes.pop("classes", None):
        (tmp_path / "classes.txt").write_text(classes)
    write(tmp_path, **changes)
    with pytest.raises(FaustnetError, match=re.escape(said)):
        load_data(str(tmp_path))


@pytest.mark.parametrize("part", ["train", "test"])
def test_numbers_that_are_not_finite_are_found_before_training(part: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 6, 5)).astype(np.float32)
    bad = x.copy()
    bad[4, 3, 2] = np.nan
    files = {"train/x-0": x[:7], "train/x-1": x[7:], "test/x-0": x}
    name = "train/x-0" if part == "train" else "test/x-0"
    write(tmp_path, **{**files, name: bad[: len(files[name])]})
    with pytest.raises(FaustnetError, match=re.escape(f"{name}.npy contains NaN or infinity")):
        trainer_on(load_data(str(tmp_path), stream="always"), {"training": {"batch_size": 4}})


def test_a_file_that_shrinks_while_it_is_used_ends_the_training_with_a_sentence(digits_folder: Path, tmp_path: Path) -> None:
    data = make_shards(str(digits_folder), tmp_path / "copy")
    trainer = trainer_on(replace(data, train=load_data(str(tmp_path / "copy"), stream="always").train), {})
    file = tmp_path / "copy" / "train" / "x-00000.npy"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)
    with pytest.raises(FaustnetError, match=r"x-00000\.npy was truncated while it was being read"):
        run_to_end(trainer)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """120 pictures in two classes, one of which cannot be read."""
    random = np.random.default_rng(0)
    for number in range(120):
        path = tmp_path / "pictures" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(256, size=(8, 9, 3), dtype=np.uint8)).save(path)
    (tmp_path / "pictures" / "cat" / "0.png").write_bytes(path.read_bytes()[:-60])
    return tmp_path / "pictures"


def same_data(one: DataSet, other: DataSet) -> None:
    assert one.class_names == other.class_names
    for mine, its in ((one.train, other.train), (one.test, other.test)):
        assert torch.equal(mine.all_pixels, its.all_pixels)
        assert torch.equal(mine.labels, its.labels)


def test_making_shards_that_was_killed_goes_on_and_is_complete_or_absent(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder, part = load_data(str(pictures)), tmp_path / "shards", tmp_path / "shards.part"
    slow = (
        "import time; from faustnet.data import make_shards, shard_writer as writer; from pathlib import Path\n"
        "writer.SHARD = 2160\n"
        f"make_shards({str(pictures)!r}, Path({str(folder)!r}), on_images=lambda done, all: time.sleep(done > 30 and 60))"
    )
    process = Program(slow)
    try:
        deadline = time.monotonic() + 60
        while not (part / "train" / "y-00003.npy").exists():
            assert process.returncode is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()
    assert not folder.exists()
    kept = {path.relative_to(part): path.stat().st_mtime_ns for path in part.rglob("[xy]-*.npy")}
    assert len(kept) >= 8
    times = (pictures / "dog" / "1.png").stat()
    monkeypatch.setattr(shard_writer, "SHARD", 2160)
    (pictures / "dog" / "1.png").touch()
    with pytest.raises(FaustnetError, match=r"shards\.part was made from other images: remove it"):
        make_shards(str(pictures), folder)
    os.utime(pictures / "dog" / "1.png", ns=(times.st_atime_ns, times.st_mtime_ns))
    data = make_shards(str(pictures), folder)
    same_data(data, whole)
    assert data.left_out == whole.left_out
    assert "cat/0.png" in data.left_out[0]
    assert not part.exists()
    assert kept.items() <= {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*.npy")}.items()
    assert sorted(path.name for path in folder.iterdir()) == ["classes.txt", "test", "train"]
    for taken in (folder, Path(), Path("/")):
        with pytest.raises(FaustnetError, match="already exists"):
            make_shards(str(pictures), taken)


def test_one_command_at_a_time_makes_shards_of_a_name(tmp_path: Path) -> None:
    """Two would write to the same files, and one that is killed then would leave holes in the other's."""
    part = tmp_path / "shards.part"
    part.mkdir()
    with folder_lock(part), pytest.raises(FaustnetError, match=r"shards\.part is in use by process"):
        make_shards("digits", tmp_path / "shards")
    make_shards("digits", tmp_path / "shards")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "classes.txt", "x-00000.npy", "x-00000.npy", "y-00000.npy", "y-00000.npy"
    ]  # fmt: skip


def test_shards_of_a_table_are_rows_and_train_like_the_table(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.arange(90) % 3
    for columns, dtype in ((12, np.float32), (3, np.float32), (1, np.float32), (12, np.uint8)):
        x = (random.random((90, columns)) * 50 + 40 * y[:, None]).astype(dtype)
        source, folder = tmp_path / f"{columns}-{x.dtype}.npz", tmp_path / f"{columns}-{x.dtype}"
        np.savez(source, x_train=x, y_train=y, x_test=x[:30], y_test=y[:30])
        made, table = make_shards(str(source), folder), load_data(str(source))
        assert np.array_equal(np.load(folder / "train" / "x-00000.npy"), x)
        assert made.train.shape == table.train.shape == (columns, 1, 1)
        runs = [library.train({**SMALL, "dataset": str(data)}, f"{folder}-{data.name}-run") for data in (source, folder)]
        one, other = (run.model() for run in runs)
        states = one.method.state_dict(), other.method.state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert runs[0].metrics["confusion"] == runs[1].metrics["confusion"]
        assert one.predict(x[:5]) == other.predict(x[:5])


def test_a_table_in_shards_is_called_rows(faustnet: Callable[..., Answer], tmp_path: Path) -> None:
    y = np.arange(60) % 3
    x = (np.random.default_rng(0).random((60, 12)) + y[:, None]).astype(np.float32)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    made = faustnet("shards", tmp_path / "own.npz", tmp_path / "own")
    assert "60 training rows and 1 test rows of 12 columns, 3 classes" in made.out
    options = ("--widths", 8, "--batch-size", 16, "--epochs", 1, "--set", "options.representatives=1")
    trained = faustnet("train", "--dataset", tmp_path / "own", *options, "--out", tmp_path / "run")
    assert "on own: 60 training rows of 12 columns, 3 classes" in trained.err
    assert "of rows were loaded into memory" in trained.err
    assert "no test rows: '1', '2'" in trained.err


def test_shards_with_the_channels_last_are_read_as_before(tmp_path: Path) -> None:
    """A table that an earlier version wrote as (n, columns, 1, 1) looks like images of one channel."""
    x = np.random.default_rng(0).random((12, 7, 1, 1)).astype(np.float32)
    folder = write(tmp_path, **{"train/x-0": x[:7], "train/x-1": x[7:], "test/x-0": x})
    assert load_data(str(folder)).train.shape == (1, 7, 1)


def test_shards_are_made_and_used_by_commands(
    faustnet: Callable[..., Answer], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = faustnet("shards", pictures, tmp_path / "shards", "--image-size", 12)
    assert made.code == 0
    assert "test images of 3×12×12, 2 classes" in made.out
    assert "cat/0.png" in made.err
    same_data(load_data(str(tmp_path / "shards")), load_data(str(pictures), image_size=12))
    small = ("--widths", "20,20", "--batch-size", 16, "--epochs", 2, "--set", "training.validation=0.2")
    streamed = faustnet(
        "train", "--dataset", tmp_path / "shards", *small, "--set", "data.stream=always", "--out", tmp_path / "streamed"
    )
    assert "of images are read from the disk during training" in streamed.err
    read = faustnet("train", "--dataset", tmp_path / "shards", *small, "--out", tmp_path / "read")
    assert "of images were loaded into memory" in read.err
    one, other = (json.loads((tmp_path / run / "history.json").read_text()) for run in ("streamed", "read"))
    assert [epoch | {"seconds": 0} for epoch in one] == [epoch | {"seconds": 0} for epoch in other]
    for command, *more in (["evaluate"], ["votes"], ["calibrate"], ["report", "--images", 10]):
        assert faustnet(command, tmp_path / "streamed", *more).code == 0, command
    assert faustnet("train", "--dataset", "digits", "--set", "data.stream=often").sentence.startswith(
        "faustnet: data.stream must be one of"
    )
    assert faustnet("shards", tmp_path / "nowhere", tmp_path / "new").code == 2


def test_an_interrupt_says_how_to_go_on(
    faustnet: Callable[..., Answer], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "read_image", interrupted)
        answer = faustnet("shards", pictures, tmp_path / "shards")
    assert (answer.code, answer.sentence) == (130, "Stopped. Run the same command again to continue.")
    assert not (tmp_path / "shards").exists()
    assert faustnet("shards", pictures, tmp_path / "shards").code == 0


def test_memory_stays_bounded_when_the_files_are_large(tmp_path: Path) -> None:
    """614 MB, which take no space on the disk. What is read ahead depends on the machine's load: 50 to 130 MB in all."""
    for part, count in (("train", 200_000), ("test", 500)):
        (tmp_path / part).mkdir()
        with (tmp_path / part / "x-0.npy").open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, 32, 32)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + count * 3072)
        np.save(tmp_path / part / "y-0.npy", np.arange(count) % 10)
    program = f"""
from pathlib import Path
import torch
from faustnet.data import load_data
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import set_up

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))

recipe = recipe_from({{"network": {{"widths": [20], "embedding": 8}}, "training": {{"epochs": 1, "validation": 0.01}}}})
_, trainer = set_up(recipe, load_data("digits"), torch.device("cpu"))
trainer.run(lambda: trainer.stop(), lambda epoch: None)  # so that all is imported
before = peak()
_, trainer = set_up(recipe, load_data({str(tmp_path)!r}, stream="always"), torch.device("cpu"))
trainer.run(lambda: trainer.stop() if trainer.batch == 100 else None, lambda epoch: None)
assert trainer.batch == 100
print(peak() - before)
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux says how much memory was used")
    process = Program(program)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert int(out) < 240, "in MB"


def test_the_page_says_what_was_measured() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "large-data.md").read_text(encoding="utf-8")
    found = json.loads((root / "results" / "streaming.json").read_text())
    for figure in (found["ratio"], found["files"]["peak_gb"], found["memory"]["peak_gb"]):
        assert f" {figure:.2f}" in page


def test_images_that_differ_in_some_pixels_have_another_digest() -> None:
    pixels = torch.arange(500 * 4).remainder(256).to(torch.uint8).view(500, 1, 2, 2)
    images = Images(pixels, torch.arange(500) % 3)
    assert images.digest() == Images(pixels.clone(), images.labels).digest()
    for other in (
        Images(pixels.flip(0), images.labels),
        Images(pixels, images.labels.flip(0)),
        Images(pixels.float(), images.labels),
        Images(pixels.view(500, 1, 4, 1), images.labels),
    ):
        assert other.digest() != images.digest()
