"""What `faustnet check` finds in data sets, and what a training says about its data."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import faustnet as package
from conftest import Answer, small_method
from faustnet.data import DataSet, Images, check_data, data_in_memory, load_data, obvious_findings
from faustnet.data.stored_pixels import StoredPixels
from faustnet.errors import FaustnetWarning

Command = Callable[..., Answer]
Arrays = dict[str, np.ndarray]
FAST = ["--widths", "16", "--embedding", "8", "--epochs", "1", "--device", "cpu"]


@pytest.fixture
def arrays(digits: DataSet) -> Arrays:
    """Digits as a user would save them."""
    return {
        "x_train": digits.train.all_pixels[:, 0].numpy().copy(),
        "y_train": digits.train.labels.numpy().copy(),
        "x_test": digits.test.all_pixels[:, 0].numpy().copy(),
        "y_test": digits.test.labels.numpy().copy(),
    }


@pytest.fixture
def find(faustnet: Command, tmp_path: Path) -> Callable[..., list[dict[str, str]]]:
    """What the command finds in arrays or in a path."""

    def found(data: Arrays | Path | str, *words: object) -> list[dict[str, str]]:
        path = data
        if isinstance(data, dict):
            path = tmp_path / "mine.npz"
            np.savez(path, **data)
        answer = faustnet("check", path, "--json", *words)
        findings = json.loads(answer.out)
        assert answer.code == (1 if findings else 0)
        assert all(set(one) == {"kind", "where", "message"} and one["message"].endswith(".") for one in findings)
        return findings

    return found


def copied(arrays: Arrays, part: str, classes: range) -> None:
    """Make all images of some classes copies of the first."""
    for label in classes:
        members = arrays[f"y_{part}"] == label
        arrays[f"x_{part}"][members] = arrays[f"x_{part}"][members][0]


def leak(arrays: Arrays) -> None:
    """Put training images in place of the test images of the last classes."""
    places = np.flatnonzero(arrays["y_test"] > 6)
    arrays["x_test"][places] = arrays["x_train"][: len(places)]


def test_a_clean_set_has_no_findings(faustnet: Command, find: Any) -> None:
    assert find("digits") == []
    answer = faustnet("check", "digits")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "Nothing was found.")
    assert answer.out.startswith("digits: 1,437 training images, 360 test images, 10 classes")


def test_test_classes_of_copies(arrays: Arrays, find: Any) -> None:
    copied(arrays, "test", range(5))
    found = find(arrays)
    assert [one["kind"] for one in found] == ["copies"] * 5
    assert [one["where"] for one in found] == [f"test/{label}" for label in range(5)]
    assert re.match(r"All \d\d test images of '0' are copies of one image: replace them", found[0]["message"])
    arrays["x_test"][np.flatnonzero(arrays["y_test"] == 0)[-3:]] += 1
    assert re.match(r"\d\d of the \d\d test images of '0' are", find(arrays)[0]["message"]), "most of them are enough"


def test_training_images_among_the_test_images(arrays: Arrays, find: Any) -> None:
    arrays["x_test"][:3], arrays["y_test"][:3] = arrays["x_train"][:3], arrays["y_train"][:3]
    arrays["y_test"][0] = (arrays["y_test"][0] + 1) % 10
    (found,) = find(arrays)
    assert (found["kind"], found["where"]) == ("overlap", "test")
    assert "3 of 360 test images (0.83%) are also training images, 1 of them with another label" in found["message"]


def test_one_image_with_two_labels(arrays: Arrays, find: Any) -> None:
    arrays["x_train"][1] = arrays["x_train"][0]
    arrays["y_train"][:2] = 3, 4
    (found,) = find(arrays)
    assert (found["kind"], found["where"]) == ("conflict", "train")
    assert found["message"].startswith("1 training image occurs with different labels, for example '3' and '4'")


def test_images_of_one_colour(arrays: Arrays, find: Any) -> None:
    arrays["x_train"][[4, 9]], arrays["x_test"][5] = 0, 16
    arrays["y_train"][[4, 9]] = 2
    train, test = find(arrays)
    assert (train["kind"], train["where"], test["where"]) == ("constant", "train", "test")
    assert train["message"].startswith("2 training images have a single colour (by class: '2' 2)")
    assert test["message"].startswith("1 test image has a single colour")


def test_classes_with_one_image_or_without_test_images(arrays: Arrays, find: Any) -> None:
    arrays["x_train"] = np.concatenate([arrays["x_train"], arrays["x_test"][:1] // 2])
    arrays["y_train"] = np.append(arrays["y_train"], 10)
    found = {one["kind"]: one for one in find(arrays)}
    assert found["single"] == {
        "kind": "single", "where": "train/10", "message": "'10' has a single training image: add more, or remove the class."
    }  # fmt: skip
    assert found["untested"]["where"] == "test/10"
    assert set(found) == {"single", "untested"}


@pytest.mark.parametrize(
    ("labels", "strange"),
    [
        ([-1, *range(10)], ["-1"]),
        ([*range(10), 255], ["255"]),
        ([-1, *range(1, 11), 99], ["-1", "99"]),
        ([*range(1, 12)], []),
        ([1, 5, 10, 25], []),
        ([-1, 1], []),
    ],
)
def test_labels_that_are_no_classes(labels: list[int], strange: list[str], arrays: Arrays, find: Any) -> None:
    for part in ("train", "test"):
        arrays[f"y_{part}"] = np.resize(labels, len(arrays[f"y_{part}"]))
    found = find(arrays)
    assert [(one["kind"], one["where"]) for one in found] == [("label", f"train/{name}") for name in strange]
    assert all("often marks missing labels: remove them, or number the classes from 0." in one["message"] for one in found)


@pytest.mark.parametrize("wrong", [-1, 10])
def test_labels_outside_the_class_names_of_shards(wrong: int, arrays: Arrays, find: Any, tmp_path: Path) -> None:
    arrays["y_test"][7] = wrong
    (found,) = find(as_shards(arrays, tmp_path / "shards", [f"digit {number}" for number in range(10)]))
    assert found["kind"] == "label"
    assert f"Labels must be from 0 to 9, the lines of classes.txt, but an image in {tmp_path}" in found["message"]
    assert f"has {wrong}. The images were not checked." in found["message"]


def as_shards(arrays: Arrays, folder: Path, names: list[str]) -> Path:
    """Write arrays as two shards for each part."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for kind in "xy":
            for number, array in enumerate(np.array_split(arrays[f"{kind}_{part}"], 2)):
                np.save(folder / part / f"{kind}-{number:05d}.npy", array)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    return folder


def test_shards_are_read_a_few_images_at_a_time(
    arrays: Arrays, find: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(arrays, "test", range(2))
    arrays["x_test"][-1] = arrays["x_train"][900]
    as_shards(arrays, tmp_path / "shards", [str(number) for number in range(10)])
    expected = find(arrays)
    largest = 0
    read = StoredPixels.read

    def reading(self: StoredPixels, index: np.ndarray, out: np.ndarray) -> None:
        nonlocal largest
        largest = max(largest, len(index))
        read(self, index, out)

    monkeypatch.setattr(StoredPixels, "read", reading)
    monkeypatch.setattr("faustnet.data.stored_pixels.CHUNK", 100)
    monkeypatch.setattr("faustnet.data.findings.CHUNK", 100)
    assert find(tmp_path / "shards") == expected
    assert [one["kind"] for one in expected] == ["copies", "copies", "overlap"]
    assert largest == 100
    page = tmp_path / "shards.html"
    find(tmp_path / "shards", "--page", page)
    assert "train/x-00001.npy[181]" in page.read_text(encoding="utf-8")


@pytest.fixture
def folder(arrays: Arrays, tmp_path: Path) -> Path:
    """A folder of image files with mistakes in it, and a class with a name that is no harmless HTML."""
    for part in ("train", "test"):
        for number in range(100):
            name = "<b>one" if arrays[f"y_{part}"][number] == 1 else str(arrays[f"y_{part}"][number])
            path = tmp_path / "own" / part / name / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(arrays[f"x_{part}"][number] * 15).save(path)
    twin = tmp_path / "own/train/0" / "twin.png"
    twin.write_bytes(sorted((tmp_path / "own/test/0").iterdir())[0].read_bytes())
    Image.new("L", (8, 8), 9).save(tmp_path / "own/test/<b>one/blank.png")
    (tmp_path / "own/train/2/empty.png").touch()
    return tmp_path / "own"


def test_an_image_in_no_class_folder_is_a_finding(folder: Path, find: Any) -> None:
    Image.new("L", (8, 8), 9).save(folder / "train" / "loose.png")
    *_, finding = find(folder)
    assert finding["kind"] == "skipped"
    assert f"1 image in no folder of a class, such as {folder / 'train' / 'loose.png'}" in finding["message"]


def test_a_page_shows_the_findings(folder: Path, find: Any, faustnet: Command, tmp_path: Path) -> None:
    found = find(folder)
    assert [one["kind"] for one in found] == ["overlap", "constant", "skipped"]
    assert "empty.png is not a readable image (it is empty)" in found[2]["message"]
    answer = faustnet("check", folder, "--page", tmp_path / "page.html")
    assert answer.code == 1
    assert "1 of 101 test images (0.99%) are also training images" in answer.out
    assert answer.out.splitlines()[-1] == f"written: {tmp_path / 'page.html'}"
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<img src="data:image/png;base64,') == 3
    assert str(folder / "train/0/twin.png") in page
    assert "&lt;b&gt;one/blank.png" in page
    assert "<b>" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.search(r"https?://|<script", page), "it loads nothing"


def test_a_page_needs_a_path_that_can_be_written(faustnet: Command, tmp_path: Path) -> None:
    assert "--page must end in .html, got x.txt" in faustnet("check", "digits", "--page", "x.txt").sentence
    assert "could not be written" in faustnet("check", "digits", "--page", tmp_path / "no/x.html").sentence
    answer = faustnet("check", "mnisd")
    assert (answer.code, answer.sentence) == (
        2, "faustnet: There is no data set or file 'mnisd': did you mean mnist?"
    )  # fmt: skip


def test_many_findings_of_a_kind_are_counted(arrays: Arrays, faustnet: Command, tmp_path: Path) -> None:
    arrays["y_train"] = np.append(arrays["y_train"], np.arange(10, 40))
    arrays["x_train"] = np.concatenate([arrays["x_train"], arrays["x_train"][:30] + 1])
    np.savez(tmp_path / "mine.npz", **arrays)
    lines = faustnet("check", tmp_path / "mine.npz").out.splitlines()
    assert sum(line.split()[:1] == ["single"] for line in lines) == 10
    assert "20 more findings of the kind single: add --json to list all" in lines


def test_texts(find: Any, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    good = [f"a fine film number {number}\tgood" for number in range(30)]
    bad = [f"a dull film number {number}\tbad" for number in range(30)]
    (tmp_path / "films").mkdir()
    train = ["text\tlabel", *good, *bad, "a fine film number 3\tbad"]
    (tmp_path / "films/train.tsv").write_text("\n".join(train), encoding="utf-8")
    test = ["text\tlabel", "a fine film number 7\tgood", "nothing like it\tgood", "a waste\tbad", "a bore\tbad"]
    (tmp_path / "films/test.tsv").write_text("\n".join(test), encoding="utf-8")
    page = tmp_path / "films.html"
    overlap, conflict = find(tmp_path / "films", "--page", page)
    assert "1 of 4 test texts (25.00%) are also training texts" in overlap["message"]
    assert "1 training text occurs with different labels, for example 'bad' and 'good'" in conflict["message"]
    assert "<blockquote>a fine film number 7</blockquote>" in page.read_text(encoding="utf-8")


def test_rows_of_a_table_may_be_constant_or_equal_within_a_class(find: Any) -> None:
    x, y = np.repeat(np.eye(3), 10, axis=0), np.repeat([0, 1, 2], 10)
    (found,) = find({"x_train": x, "y_train": y, "x_test": x[::10] + 1, "y_test": y[::10]})[:1]
    assert found["kind"] == "single", "only that each class has one test row"
    (found, *_) = find({"x_train": x, "y_train": y, "x_test": x[::5], "y_test": y[::5]})
    assert "6 of 6 test rows (100.00%) are also training rows" in found["message"]


def test_what_training_says_about_its_data(arrays: Arrays, faustnet: Command, tmp_path: Path) -> None:
    copied(arrays, "test", range(5))
    leak(arrays)
    arrays["y_train"][:9] = -1
    np.savez(tmp_path / "mine.npz", **arrays)
    answer = faustnet("train", "--dataset", tmp_path / "mine.npz", *FAST, "--out", tmp_path / "run")
    assert answer.code == 0
    warned = [line for line in answer.err.splitlines() if line.startswith("warning: ")]
    assert re.match(r"warning: All \d\d test images of '0' are copies of one image: replace", warned[0])
    assert len(warned) == 5, "no more, because the command lists all"
    assert f"To find everything in the data, use: faustnet check {tmp_path / 'mine.npz'}\n" in answer.err


def test_training_on_data_in_memory_names_the_function_that_finds_everything(
    arrays: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leak(arrays)
    recipe = {"network": {"widths": [16], "embedding": 8}, "training": {"epochs": 1}}
    train, test = ((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    package.train(recipe, tmp_path / "run", data=train, test=test, device="cpu")
    printed = capsys.readouterr().err
    assert "that were looked up are also training images" in printed
    assert "To find everything in the data, use: faustnet.data.check_data\n" in printed


def test_what_is_obvious_is_found_without_reading_everything(arrays: Arrays) -> None:
    kinds = [one.kind for one in obvious_findings(memory(arrays))]
    assert kinds == []
    copied(arrays, "test", range(2))
    leak(arrays)
    arrays["y_train"][:9] = -1
    found = obvious_findings(memory(arrays))
    assert [one.kind for one in found] == ["copies", "copies", "overlap", "label"]
    assert re.match(r"\d\d of 180 test images that were looked up are also training images", found[2].message)
    full = {one.kind for one in check_data(memory(arrays))}
    assert {one.kind for one in found} <= full


def memory(arrays: Arrays) -> DataSet:
    return data_in_memory((arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"]))


def test_samples_of_any_kind_are_looked_up() -> None:
    """Numbers alone, rows that are constant, and parts of two types."""
    labels = torch.arange(20) % 2
    for x, expected in (
        (torch.arange(20.0), 0),
        (torch.ones(20, 3), 0),
        (torch.arange(60).view(20, 3), 1),
        (torch.rand(20, 1, 4, 4).double(), 1),
    ):
        data = DataSet("own", ("a", "b"), Images(x, labels), Images(x[:5].clone(), labels[:5]))
        assert len(obvious_findings(data)) == expected
    data = DataSet("own", ("a", "b"), Images(x, labels), Images(x[:5].float(), labels[:5]))
    assert obvious_findings(data) == []


def test_streamed_images_are_not_read_to_look_for_mistakes(arrays: Arrays, tmp_path: Path) -> None:
    copied(arrays, "test", range(2))
    data = load_data(str(as_shards(arrays, tmp_path / "shards", [str(number) for number in range(10)])), stream="always")
    assert obvious_findings(data) == []


def test_a_trainer_warns_about_its_data(arrays: Arrays) -> None:
    x, y = torch.from_numpy(arrays["x_train"]).float().unsqueeze(1), torch.from_numpy(arrays["y_train"])
    about = {"train": (x, y), "optimiser": torch.optim.Adam}
    with pytest.warns(FaustnetWarning, match="64 of 64 test images are also training images") as warned:
        package.Trainer(small_method("faust-representative"), test=(x[:64], y[:64]), **about).fit(verbose=False)
    assert warned[0].filename == __file__, "the line of the user's is named"
    package.Trainer(small_method("faust-representative"), test=(x, y), **about).fit(verbose=False)  # on purpose
