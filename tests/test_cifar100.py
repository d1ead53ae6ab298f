"""CIFAR-100: its files, whole, damaged and hostile, its 20 groups, and its archive."""

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Answer
from faustnet.data import load_data, official
from faustnet.data.cifar import cifar100_format, read_batch, read_class_names
from faustnet.data.official import cifar100
from faustnet.errors import FaustnetError
from test_official_data import Hostile

COUNTS = {"train": 200, "test": 100}
FOLDER = "cifar-100-python"


def batch(count: int, **changes: object) -> dict[str, object]:
    numbers = np.random.default_rng(count)
    fine = [n % 100 for n in range(count)]
    content = {"data": numbers.integers(256, size=(count, 3072), dtype=np.uint8), "filenames": ["a.png"] * count}
    return {**content, "fine_labels": fine, "coarse_labels": [n // 5 for n in fine], **changes}


def meta(**changes: object) -> dict[str, object]:
    return {
        "fine_label_names": [f"class {n}" for n in range(100)],
        "coarse_label_names": [f"group {n}" for n in range(20)],
        **changes,
    }


def members() -> dict[str, bytes]:
    contents = {name: batch(count) for name, count in COUNTS.items()} | {"meta": meta()}
    return {name: pickle.dumps(content, protocol=2) for name, content in contents.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with small files of CIFAR-100 in torchvision's layout."""
    monkeypatch.setattr(official, "CIFAR100_IMAGES", COUNTS)
    (tmp_path / FOLDER).mkdir()
    for name, content in members().items():
        (tmp_path / FOLDER / name).write_bytes(content)
    return tmp_path


def test_images_have_the_labels_and_the_names_of_the_chosen_classes(folder: Path) -> None:
    fine, coarse = load_data("cifar100", folder), load_data("cifar100-coarse", folder)
    assert (fine.name, len(fine.class_names), fine.class_names[99]) == ("cifar100", 100, "class 99")
    assert (coarse.name, len(coarse.class_names), coarse.class_names[19]) == ("cifar100-coarse", 20, "group 19")
    for part, count in COUNTS.items():
        ours, grouped = getattr(fine, part), getattr(coarse, part)
        assert torch.equal(ours.pixels.flatten(1), torch.tensor(batch(count)["data"]))
        assert torch.equal(ours.pixels, grouped.pixels)
        assert ours.shape == (3, 32, 32)
        assert ours.labels.tolist() == batch(count)["fine_labels"]
        assert torch.equal(grouped.labels, ours.labels // 5)


def test_a_run_on_the_groups_predicts_the_groups(folder: Path, faustnet: Callable[..., Answer]) -> None:
    settings = ("--widths", "8", "--epochs", "1", "--batch-size", "50", "--device", "cpu", "--data-dir", folder)
    run = folder / "run"
    assert faustnet("train", "--dataset", "cifar100-coarse", *settings, "--out", run).code == 0
    assert faustnet("evaluate", run, "--data-dir", folder, "--device", "cpu", "--json").code == 0
    said = faustnet("evaluate", run, "--dataset", "cifar100", "--data-dir", folder, "--device", "cpu").sentence
    assert "cifar100 must have only classes of the model, which are group 0," in said


def test_other_data_sets_have_no_groups() -> None:
    with pytest.raises(FaustnetError, match=r"no data set or file 'cifar10-coarse': did you mean cifar100-coarse\?"):
        load_data("cifar10-coarse")


def archive(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("missing", ["train", "test", "meta"])
def test_a_missing_file_is_extracted_from_the_archive(missing: str, folder: Path) -> None:
    (folder / FOLDER / missing).unlink()
    packed = archive({f"{FOLDER}/{name}": content for name, content in members().items()} | {f"{FOLDER}/file.txt~": b"x"})
    (folder / f"{FOLDER}.tar.gz").write_bytes(packed)
    with pytest.raises(FaustnetError, match=r"its checksum is wrong.*delete it and run the command again"):
        cifar100(folder)
    assert len(cifar100(folder, md5=hashlib.md5(packed).hexdigest()).train) == COUNTS["train"]
    assert {path.name for path in (folder / FOLDER).iterdir()} == {"train", "test", "meta"}


def test_without_a_network_the_error_says_what_to_save_where(tmp_path: Path) -> None:
    address = "http://127.0.0.1:1/cifar-100-python.tar.gz"
    with pytest.raises(FaustnetError, match=r"cifar-100-python.tar.gz could not be downloaded") as error:
        cifar100(tmp_path, url=address)
    assert f"download {address} yourself and save it as {tmp_path / FOLDER}.tar.gz" in str(error.value)


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(folder: Path) -> None:
    made = folder / "made"
    for name, content in (("train", batch(200, fine_labels=Hostile(made))), ("meta", meta(more=Hostile(made)))):
        (folder / FOLDER / name).write_bytes(pickle.dumps(content))
        with pytest.raises(FaustnetError, match=r"refers to posix.mkdir, which image data does not need"):
            load_data("cifar100", folder)
    assert not made.exists()


@pytest.mark.parametrize(
    ("labels", "content", "said"),
    [
        ("fine", pickle.dumps(batch(100))[:10_000], "is not a CIFAR-100 batch"),
        ("fine", pickle.dumps(batch(99)), "its images must be 100×3072 bytes"),
        ("fine", pickle.dumps({**batch(100), "labels": [0] * 100, "fine_labels": None}), "100 integers from 0 to 99"),
        ("fine", pickle.dumps(batch(100, fine_labels=[100] * 100)), "its labels must be 100 integers from 0 to 99"),
        ("coarse", pickle.dumps(batch(100, coarse_labels=[20] * 100)), "its labels must be 100 integers from 0 to 19"),
        ("coarse", pickle.dumps(batch(100, coarse_labels=[0] * 99)), "its labels must be 100 integers from 0 to 19"),
        ("coarse", b"\x80\2" + b"]" * 1_000_001 + b".", "more than 1,000,000 operations"),
    ],
    ids=["truncated", "images", "no labels", "label 100", "group 20", "few groups", "operations"],
)
def test_a_damaged_batch_is_named_with_what_to_do(labels: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "test"
    path.write_bytes(content)
    with pytest.raises(FaustnetError, match=f"{said}.*delete it to download CIFAR-100 again") as error:
        read_batch(path, cifar100_format(100, labels))
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not the file of CIFAR-100's class names"),
        (pickle.dumps(batch(1)), "fine_label_names"),
        (pickle.dumps(meta(fine_label_names=["a"] * 100)), "must be 100 different strings"),
        (pickle.dumps(meta(fine_label_names=[str(n) for n in range(99)])), "must be 100 different strings"),
        (pickle.dumps(meta(fine_label_names=list(range(100)))), "must be a list of strings that are not empty"),
        (pickle.dumps(meta(fine_label_names=["", *map(str, range(99))])), "must be a list of strings that are not empty"),
        (pickle.dumps(meta(fine_label_names="a" * 100)), "must be a list of strings that are not empty"),
        (pickle.dumps(meta(fine_label_names=["\udcff", *map(str, range(99))])), "surrogates not allowed"),
        (pickle.dumps(meta(more=[[]] * 2_000)), "more than 1,000 operations"),
        (pickle.dumps(meta(more="a" * (1 << 16))), "is not the file of CIFAR-100's class names"),
    ],
    ids=["empty", "batch", "same", "few", "numbers", "no name", "string", "unicode", "operations", "large"],
)
def test_damaged_class_names_are_refused_with_what_to_do(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "meta"
    path.write_bytes(content)
    with pytest.raises(FaustnetError, match=f"{said}.*delete it to download CIFAR-100 again") as error:
        read_class_names(path, "fine")
    assert str(path) in str(error.value)


@pytest.fixture(scope="module")
def real(large_data: Path) -> Path:
    if not (large_data / FOLDER).exists():
        pytest.skip("FAUSTNET_DATA has no CIFAR-100")
    return large_data


def test_the_real_files_hold_what_was_published(real: Path) -> None:
    fine: Any = load_data("cifar100", real)
    mean = fine.train.pixels.sum((0, 2, 3)) / (50_000 * 32 * 32 * 255)
    torch.testing.assert_close(mean, torch.tensor([0.5071, 0.4865, 0.4409]), atol=1e-4, rtol=0)
    assert torch.bincount(fine.train.labels).tolist() == [500] * 100
    assert torch.bincount(fine.test.labels).tolist() == [100] * 100
    _, groups = read_batch(real / FOLDER / "test", cifar100_format(10_000, "coarse"))
    pairs = set(zip(fine.test.labels.tolist(), groups.tolist(), strict=True))
    assert len(pairs) == 100, "every class belongs to one group"
    names = read_class_names(real / FOLDER / "meta", "coarse")
    people = {fine.class_names[one] for one, group in pairs if names[group] == "people"}
    assert people == {"baby", "boy", "girl", "man", "woman"}
