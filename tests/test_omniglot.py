"""Omniglot: its files, whole and damaged, its rotations, its cache and its archives."""

import hashlib
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Answer
from faustnet.data import load_data
from faustnet.data import omniglot as module
from faustnet.data.loading import IMAGE_SETS
from faustnet.data.omniglot import BACKGROUND, EVALUATION, FOLDER, Part, alphabet_of, omniglot
from faustnet.errors import FaustnetError
from omniglot_files import drawing, write_omniglot

SMALL = replace(BACKGROUND, characters=5)
load = partial(omniglot, part=SMALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with small files of Omniglot."""
    write_omniglot(tmp_path)
    return tmp_path


def reduced(alphabet: str, character: int, number: int) -> torch.Tensor:
    image = drawing(alphabet, character, number).convert("L").resize((28, 28), Image.Resampling.BILINEAR)
    return torch.tensor(np.array(image))


def test_drawings_are_reduced_and_the_last_two_of_a_character_are_test_images(folder: Path) -> None:
    data = load(folder)
    assert data.name == "omniglot"
    assert data.class_names == (*(f"Greek/character0{n}" for n in (1, 2, 3)), "Latin/character01", "Latin/character02")
    assert [alphabet_of(name) for name in data.class_names[2:4]] == ["Greek", "Latin"]
    assert (data.train.pixels.shape, data.test.pixels.shape) == ((90, 1, 28, 28), (10, 1, 28, 28))
    assert data.train.labels.tolist() == [n for n in range(5) for _ in range(18)]
    assert data.test.labels.tolist() == [n for n in range(5) for _ in range(2)]
    assert torch.equal(data.train.pixels[18, 0], reduced("Greek", 2, 1))
    assert torch.equal(data.test.pixels[9, 0], reduced("Latin", 2, 20))
    assert len(data.train.pixels[0].unique()) > 2, "edges are anti-aliased"


def test_rotations_are_further_classes(folder: Path) -> None:
    plain, data = load(folder), load(folder, rotations=True)
    assert data.name == "omniglot-rotated"
    assert len(data.class_names) == len(set(data.class_names)) == 20
    assert data.class_names[:5] == plain.class_names
    assert data.class_names[5::5] == tuple(f"Greek/character01/rot{angle}" for angle in ("090", "180", "270"))
    assert {alphabet_of(name) for name in data.class_names} == {"Greek", "Latin"}
    for rotation in range(4):
        for whole, part in ((plain.train, data.train), (plain.test, data.test)):
            own = part.pixels[part.labels == 5 * rotation + 3, 0]
            assert np.array_equal(own, np.rot90(whole.pixels[whole.labels == 3, 0].numpy(), rotation, (1, 2)))


def test_the_other_part_has_other_alphabets(folder: Path) -> None:
    data = omniglot(folder, replace(EVALUATION, characters=7))
    assert (data.name, data.class_names[-1]) == ("omniglot-evaluation", "Tibetan/character03")


def no_reading(path: Path) -> None:
    raise AssertionError(path)


def test_drawings_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_drawing", no_reading)
        assert torch.equal(load(folder).train.pixels, first.train.pixels)
    path = folder / FOLDER / "images_background/Greek/character02/0002_01.png"
    drawing("Latin", 1, 5).save(path)
    os.utime(path, ns=(1, 1))
    assert torch.equal(load(folder).train.pixels[18, 0], reduced("Latin", 1, 5)), "a file that changed is read again"


@pytest.mark.parametrize("content", [b"", b"PK", None], ids=["empty", "truncated", "other arrays"])
def test_a_damaged_cache_is_written_anew(content: bytes | None, folder: Path) -> None:
    first = load(folder)
    (cache,) = (folder / FOLDER).glob("*.npz")
    if content is None:
        np.savez(cache, pixels=np.zeros((3, 3)), files=np.load(cache)["files"])
    else:
        cache.write_bytes(content)
    assert torch.equal(load(folder).train.pixels, first.train.pixels)
    assert np.load(cache)["pixels"].shape == (100, 1, 28, 28)


def test_a_cache_that_cannot_be_written_is_not_needed(folder: Path) -> None:
    (folder / FOLDER / "images_background-28.npz").mkdir()
    assert len(load(folder).train) == 90


def test_damaged_files_are_named_with_what_to_do(folder: Path) -> None:
    images = folder / FOLDER / "images_background"
    last = images / "Latin/character02/0005_20.png"
    Image.new("1", (28, 28)).save(last)
    with pytest.raises(FaustnetError, match=r"0005_20.png must have 105×105 pixels, got 28×28: replace it"):
        load(folder)
    last.write_bytes(b"\x89PNG")
    with pytest.raises(FaustnetError, match=r"0005_20.png is not a readable image .*: remove or replace it"):
        load(folder)
    last.unlink()
    with pytest.raises(FaustnetError, match=r"character02 must contain 20 drawings, got 19: delete .*background to downl"):
        load(folder)
    for path in last.parent.iterdir():
        path.unlink()
    last.parent.rmdir()
    with pytest.raises(FaustnetError, match=r"images_background must contain 5 characters, got 4: delete .*background to "):
        load(folder)


def archive(folder: Path, extra: dict[str, bytes] | None = None) -> bytes:
    """Return an archive like the official ones."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted((folder / "images_background").rglob("*")):
            packed.write(path, path.relative_to(folder).as_posix())
        for name, content in (extra or {}).items():
            packed.writestr(name, content)
    return buffer.getvalue()


def part_of(content: bytes) -> Part:
    return replace(SMALL, md5=hashlib.md5(content).hexdigest())


def test_drawings_are_extracted_from_the_archive_and_nothing_else_is(tmp_path: Path) -> None:
    write_omniglot(tmp_path / "whole")
    whole = load(tmp_path / "whole")
    hostile = {
        "images_background/../../character01/0001_21.png": b"x",
        "../outside.png": b"x",
        "/absolute.png": b"x",
        "images_background/.DS_Store": b"x",
        "images_other/Greek/character01/0001_01.png": b"x",
        "__MACOSX/images_background/Greek/character01/._0001_01.png": b"x",
    }
    content = archive(tmp_path / "whole" / FOLDER, hostile)
    target = tmp_path / "data" / FOLDER
    target.mkdir(parents=True)
    (target / "images_background.zip").write_bytes(content)
    with pytest.raises(FaustnetError, match=r"its checksum is wrong.*delete it and run the command again"):
        load(tmp_path / "data")
    data = omniglot(tmp_path / "data", part_of(content))
    assert torch.equal(data.train.pixels, whole.train.pixels)
    assert sorted(path.name for path in target.iterdir() if path.name != ".faustnet.lock") == [
        "images_background", "images_background-28.npz", "images_background.zip"
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "whole"]


def test_a_bad_archive_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / FOLDER
    target.mkdir()
    for content, said in (
        (b"PK\3\4 and no more", "not a zip file"),
        (archive(tmp_path), "it has no folder images_background"),
    ):
        (target / "images_background.zip").write_bytes(content)
        with pytest.raises(FaustnetError, match=f"could not be unpacked .*{said}.*: delete it and run the command again"):
            omniglot(tmp_path, part_of(content))
    write_omniglot(tmp_path / "whole")
    content = archive(tmp_path / "whole" / FOLDER)
    (target / "images_background.zip").write_bytes(content)
    monkeypatch.setattr(module, "LARGEST", 1 << 10)
    with pytest.raises(FaustnetError, match="it expands to more than 0 MiB"):
        omniglot(tmp_path, part_of(content))
    assert {path.name for path in target.iterdir()} <= {"images_background.zip", ".faustnet.lock"}


def test_without_a_network_the_error_says_what_to_save_where(tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match=r"images_background.zip could not be downloaded") as error:
        omniglot(tmp_path, url="http://127.0.0.1:1/")
    saved = tmp_path / FOLDER / "images_background.zip"
    assert f"download http://127.0.0.1:1/images_background.zip yourself and save it as {saved}" in str(error.value)


def test_a_run_on_omniglot(folder: Path, faustnet: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMAGE_SETS, "omniglot-rotated", (partial(load, rotations=True), ""))
    settings = ("--widths", "32", "--epochs", "2", "--batch-size", "30", "--device", "cpu", "--data-dir", folder)
    assert faustnet("train", "--dataset", "omniglot-rotated", *settings, "--out", folder / "run").code == 0
    answer = faustnet("evaluate", folder / "run", "--data-dir", folder, "--device", "cpu")
    assert answer.code == 0


def test_the_real_files_hold_what_was_published(large_data: Path) -> None:
    if not (large_data / FOLDER).exists():
        pytest.skip("FAUSTNET_DATA has no Omniglot")
    names = [load_data(name, large_data).class_names for name in ("omniglot", "omniglot-evaluation", "omniglot-rotated")]
    assert [len(found) for found in names] == [964, 659, 3856]
    alphabets = [{alphabet_of(name) for name in found} for found in names]
    assert [len(found) for found in alphabets] == [30, 20, 30]
    assert not alphabets[0] & alphabets[1]
