"""Accuracy by the number of classes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Answer
from faustnet.data import load_data
from faustnet.errors import FaustnetError
from faustnet.reproduce.class_counts import ClassCountJob

Command = Callable[..., Answer]
DIGITS = load_data("digits")


def test_some_classes_keep_their_images_and_their_order() -> None:
    some = DIGITS.only(["7", "2", "5"])
    assert some.class_names == ("2", "5", "7")
    for part, whole in ((some.train, DIGITS.train), (some.test, DIGITS.test)):
        for number, label in enumerate((2, 5, 7)):
            expected = whole.all_pixels[whole.labels == label]
            torch.testing.assert_close(part.all_pixels[part.labels == number], expected)
        assert len(part) == sum(int((whole.labels == label).sum()) for label in (2, 5, 7))


def test_files_stay_beside_their_images(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for number, name in enumerate(("bird", "cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for place in range(3):
                pixels = np.full((6, 6), 40 * number + place, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{place}.png")
    data = load_data(str(tmp_path))
    assert data.paths is not None
    some = data.only(data.class_names[1:])
    assert some.paths is not None
    for part, images in (("train", some.train), ("test", some.test)):
        assert [path.parent.name for path in some.paths[part]] == [
            some.class_names[label] for label in images.labels.tolist()
        ]


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FaustnetError, match="There is no class 'ten'"):
        DIGITS.only(["1", "ten"])


def test_a_smaller_number_of_classes_is_a_part_of_a_larger_one() -> None:
    few, many, others = (
        ClassCountJob("digits/mlp", count, seed).data(lambda name: DIGITS).class_names
        for count, seed in ((3, 1), (6, 1), (6, 2))
    )
    assert set(few) < set(many)
    assert many != others


def test_a_recipe_and_its_twin_by_the_number_of_classes(faustnet: Command, tmp_path: Path) -> None:
    words = ["reproduce", "class-counts", "--base", "digits/mlp", "--seeds", "1", "--device", "cpu", "--out", tmp_path]
    assert faustnet(*words, "--counts", "2,4").code == 0
    cells = json.loads((tmp_path / "class-counts.json").read_text())
    assert {(cell["role"], cell["count"]) for cell in cells} == {(r, n) for r in ("local", "backprop") for n in (2, 4)}
    for cell in cells:
        assert cell["of"] == "digits/mlp"
        assert cell["mean"] > 97
        assert json.loads((tmp_path / f"class-counts/{cell['name'].replace('/', '-')}-{cell['count']}-0.json").read_text())
    lines = (tmp_path / "class-counts.md").read_text().splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["2", "4"]
    assert (tmp_path / "figures/class-counts.svg").exists()


def test_all_classes_are_those_of_the_best_recipes(faustnet: Command, tmp_path: Path) -> None:
    """A run on all classes is the run of `reproduce best`, and need not be trained again."""
    words = ["--seeds", "1", "--device", "cpu", "--out", tmp_path]
    assert faustnet("reproduce", "class-counts", "--base", "digits/mlp", "--counts", "10", *words).code == 0
    file = tmp_path / "class-counts/digits-mlp-10-0.json"
    trained = json.loads(file.read_text())
    for path in (file, tmp_path / "class-counts/digits-mlp-backprop-10-0.json"):
        path.unlink()
    assert faustnet("reproduce", "best", "--names", "digits/mlp", *words).code == 0
    best = json.loads((tmp_path / "best/digits-mlp-0.json").read_text())
    assert faustnet("reproduce", "class-counts", "--base", "digits/mlp", "--counts", "2,10", *words).code == 0
    assert json.loads(file.read_text()) == {**best, "count": 10}
    assert trained["test_accuracy"] == best["test_accuracy"]
    few = json.loads((tmp_path / "class-counts/digits-mlp-2-0.json").read_text())
    assert few["environment"]["started"] != best["environment"]["started"], "it was trained on its own classes"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--counts", "1"], "--counts must be at least 2, got 1"),
        (["--counts", "11"], "--counts must be at most 10 for digits, got 11"),
        (["--base", "digits/cnn"], "There is no recipe 'digits/cnn'"),
    ],
)
def test_bad_input_is_refused(options: list[str], said: str, faustnet: Command, tmp_path: Path) -> None:
    result = faustnet("reproduce", "class-counts", "--base", "digits/mlp", *options, "--out", tmp_path / "out")
    assert result.code
    assert said in result.sentence
