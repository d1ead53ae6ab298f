"""Real training of the real sizes on real data, by the commands that users type."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Answer

Command = Callable[..., Answer]
pytestmark = pytest.mark.usefixtures("all_cores")


def test_faust_reaches_96_percent_on_digits(faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("train", "--recipe", "digits", "--device", "cpu", "--out", tmp_path / "run", "--json")
    assert json.loads(answer.out)["test_accuracy"] >= 0.96


@pytest.mark.parametrize("name", ["faust-representative", "faust-prototype", "faust-centroid"])
def test_all_of_the_objective_together_reaches_96_percent_on_digits(name: str, faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet(
        "train", "--recipe", "digits", "--method", name, "--set", "options.final_scale=0.1", "--set", "options.matching=1",
        "--set", "options.contrast=0.2", "--epochs", 8, "--device", "cpu", "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert json.loads(answer.out)["test_accuracy"] >= 0.96


@pytest.mark.parametrize(("dataset", "epochs", "bar"), [("mnist", 3, 0.975), ("cifar10", 4, 0.50)])
def test_faust_representative_with_its_defaults(
    dataset: str, epochs: int, bar: float, large_data: Path, faustnet: Command, tmp_path: Path
) -> None:
    answer = faustnet(
        "train", "--dataset", dataset, "--method", "faust-representative", "--widths", "500,500,500", "--epochs", epochs,
        "--batch-size", "256", "--seed", "0", "--device", "cpu", "--data-dir", large_data, "--out", tmp_path / "run",
    )  # fmt: skip
    assert answer.code == 0
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["test_accuracy"] >= bar
    assert min(metrics["layer_accuracy"]) >= bar - 0.01
