"""Data with many classes and few images of each: training, evaluation, and the files of the run."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Answer
from faustnet.errors import FaustnetError
from faustnet.runs.confusion import restored_matrix, stored_matrix
from faustnet.runs.folder import METRICS, Run

Command = Callable[..., Answer]
CLASSES = 230


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with one to four images each."""
    folder, numbers = tmp_path_factory.mktemp("many") / "data", np.random.default_rng(0)
    for number in range(CLASSES):
        own = folder / f"class {number:03d}"
        own.mkdir(parents=True)
        for image in range(1 + number % 4):
            Image.fromarray(numbers.integers(256, size=(6, 6), dtype=np.uint8)).save(own / f"{image}.png")
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path, faustnet: Command) -> Path:
    settings = ("--widths", "16,8", "--epochs", "1", "--batch-size", "64", "--device", "cpu")
    answer = faustnet("train", "--dataset", folder, *settings, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    return tmp_path / "run"


def test_a_folder_of_many_classes_is_trained_and_evaluated(run: Path, faustnet: Command) -> None:
    measured = json.loads(faustnet("evaluate", run, "--json").out)[0]
    confusion = measured["confusion"]
    assert (len(confusion), len(confusion[0])) == (CLASSES, CLASSES)
    assert Run.open(run).metrics["confusion"] == confusion
    stored = json.loads((run / METRICS).read_text())["confusion"]
    assert stored["classes"] == CLASSES
    assert sum(count for _, _, count in stored["counts"]) == sum(map(sum, confusion)) > 0


def test_the_most_frequent_errors_are_printed_in_place_of_a_large_matrix(run: Path, faustnet: Command) -> None:
    printed = faustnet("evaluate", run).out
    assert "Most frequent errors among 230 classes:" in printed
    assert printed.count("class ") == 2 + 2 * 10, "the heading and ten kinds of errors"
    confusion = Run.open(run).metrics["confusion"]
    largest = max(count for i, row in enumerate(confusion) for j, count in enumerate(row) if i != j)
    assert printed.rstrip().splitlines()[-10].split()[-1] == str(largest)


def test_a_matrix_is_stored_and_restored() -> None:
    small = [[3, 0], [1, 2]]
    assert stored_matrix(small) is small
    assert restored_matrix(small) is small
    large = np.random.default_rng(0).integers(3, size=(201, 201)) // 2
    stored = json.loads(json.dumps(stored_matrix(large.tolist())))
    assert len(stored["counts"]) == np.count_nonzero(large)
    assert np.array_equal(restored_matrix(stored), large)


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"classes": 230},
        {"classes": 1e3, "counts": []},
        {"classes": 10**9, "counts": []},
        {"classes": 230, "counts": [[0, 230, 1]]},
        {"classes": 230, "counts": [[-1, 0, 1]]},
        {"classes": 230, "counts": [[0, 0, 0]]},
        {"classes": 230, "counts": [[0, 0]]},
        {"classes": 230, "counts": [[0, 0, 1.5]]},
        {"classes": 230, "counts": [[0, 0, 1], [0, 0, 2]]},
        {"classes": 230, "counts": 7},
    ],
)
def test_a_damaged_matrix_is_refused(damaged: object, run: Path) -> None:
    with pytest.raises(ValueError, match=r"it has|its entries"):
        restored_matrix(damaged)
    metrics = json.loads((run / METRICS).read_text())
    (run / METRICS).write_text(json.dumps({**metrics, "confusion": damaged}))
    with pytest.raises(FaustnetError, match=r"metrics\.json"):
        Run.open(run).metrics  # noqa: B018
