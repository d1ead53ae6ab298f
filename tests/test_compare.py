"""Two groups of runs: the difference of their accuracies, its interval, and what is called better."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

import faustnet as library
from conftest import Answer
from faustnet.report.comparison import compare_groups, welch_interval

Command = Callable[..., Answer]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of two layers, of another method, and of a single output."""
    folder = tmp_path_factory.mktemp("trained")
    table: dict[str, Any] = {"network": {"widths": [24, 16]}, "training": {"epochs": 1, "batch_size": 128}}
    for method, seeds in {"faust-representative": 2, "faust-tuplet": 2, "backprop": 1}.items():
        for seed in range(seeds):
            library.train({**table, "method": method, "seed": seed}, folder / f"{method}-{seed}", device="cpu")
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runs, in the folder where we are."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


A, B = ("faust-representative-0", "faust-representative-1"), ("faust-tuplet-0", "faust-tuplet-1")


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def recipe(folder: Path, old: str, new: str) -> None:
    text = (folder / "recipe.toml").read_text()
    assert old in text
    (folder / "recipe.toml").write_text(text.replace(old, new))


@pytest.mark.filterwarnings("ignore:Precision loss")  # of scipy, for equal values
@pytest.mark.parametrize(("n", "m", "spread"), [(2, 2, 1.0), (5, 3, 0.1), (3, 7, 30.0), (5, 5, 0.0)])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_the_interval_is_that_of_scipy(n: int, m: int, spread: float, confidence: float) -> None:
    numbers = np.random.default_rng(n)
    a, b = numbers.normal(0.9, 0.01, n).tolist(), (0.88 + spread * numbers.normal(0, 0.01, m)).tolist()
    expected = ttest_ind(a, b, equal_var=False).confidence_interval(confidence)
    found = welch_interval(a, b, confidence)
    assert found == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_the_interval_is_the_formula_in_plain_loops() -> None:
    a, b = [0.91, 0.93, 0.92], [0.88, 0.90]
    means, parts = [], []
    for values in (a, b):
        mean = sum(values) / len(values)
        means.append(mean)
        parts.append(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    s = math.sqrt(parts[0] + parts[1])
    freedom = s**4 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 1)
    low, high = welch_interval(a, b) or (0, 0)
    assert (low + high) / 2 == pytest.approx(means[0] - means[1])
    t = (high - low) / 2 / s
    steps = np.linspace(0, t, 200_001)  # the quantile, by integrating the density up to it
    density = (1 + steps**2 / freedom) ** (-(freedom + 1) / 2)
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    assert 2 * scale * np.trapezoid(density, steps) == pytest.approx(0.95, abs=1e-6)


@pytest.mark.parametrize(("a", "b"), [([0.9], [0.8, 0.7]), ([0.9, 0.8], [0.7]), ([0.9, 0.9], [0.8, 0.8])])
def test_there_is_no_interval_without_a_spread(a: list[float], b: list[float]) -> None:
    assert welch_interval(a, b) is None


def facts(*accuracies: float) -> list[dict[str, Any]]:
    return [{"test_accuracy": one, "layer_accuracy": [one], "voters": ["output"]} for one in accuracies]


@pytest.mark.parametrize(
    ("a", "b", "better"),
    [
        ((0.92, 0.91, 0.93), (0.82, 0.81, 0.80), "A"),
        ((0.82, 0.81, 0.80), (0.92, 0.91, 0.93), "B"),
        ((0.92, 0.91, 0.93), (0.91, 0.92, 0.90), None),
        ((0.92, 0.82), (0.81, 0.80), None),
        ((0.99,), (0.10, 0.11), None),
        ((0.99, 0.99), (0.10, 0.10), None),
    ],
    ids=["A", "B", "near", "wide", "single", "equal"],
)
def test_only_a_difference_whose_interval_leaves_out_zero_is_called_better(
    a: tuple[float, ...], b: tuple[float, ...], better: str | None
) -> None:
    found = compare_groups(facts(*a), facts(*b))
    (row,) = found["rows"]
    assert row["better"] == better
    assert row["difference"] == pytest.approx(sum(a) / len(a) - sum(b) / len(b))
    if row["interval"]:
        assert (row["interval"][0] > 0 or row["interval"][1] < 0) == (better is not None)
    else:
        assert len(found["notes"]) == 1


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_real_runs_are_compared_layer_by_layer(runs: Path, faustnet: Command) -> None:
    answer = faustnet("compare", *A, "--with", *B, "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert (found["a"], found["b"], found["dataset"], found["notes"]) == ([*A], [*B], "digits", [])
    metrics = [[json.loads((runs / name / "metrics.json").read_text()) for name in group] for group in (A, B)]
    assert [row["name"] for row in found["rows"]] == ["all layers", "layer 1", "layer 2"]
    for place, row in enumerate(found["rows"]):
        a, b = ([m["layer_accuracy"][place - 1] if place else m["test_accuracy"] for m in group] for group in metrics)
        assert (row["a"]["values"], row["b"]["values"]) == (a, b)
        expected = ttest_ind(a, b, equal_var=False).confidence_interval()
        assert row["interval"] == pytest.approx([expected.low, expected.high])
    assert json.loads(faustnet("compare", "--json", *A, f"--with={B[0]}", B[1]).out) == found
    assert json.loads(faustnet("compare", *A, "--with", B[0], "--json", B[1]).out) == found
    assert json.loads(faustnet("compare", *A, "--with", B[0], "--with", B[1], "--json").out) == found


def test_the_table_says_who_is_better_and_nothing_where_the_interval_includes_zero(runs: Path, faustnet: Command) -> None:
    for name, accuracy, layers in (
        (A[0], 0.95, [0.9, 0.5]),
        (A[1], 0.94, [0.8, 0.51]),
        (B[0], 0.85, [0.85, 0.9]),
        (B[1], 0.86, [0.86, 0.91]),
    ):
        edit(runs / name / "metrics.json", test_accuracy=accuracy, layer_accuracy=layers)
    lines = faustnet("compare", *A, "--with", *B).out.splitlines()
    assert lines[:2] == [f"A: {', '.join(A)} (faust-representative)", f"B: {', '.join(B)} (faust-tuplet)"]
    rows = {line.split("  ")[0].strip(): " ".join(line.split()) for line in lines}
    assert rows["all layers"] == "all layers 94.50 ± 0.71 85.50 ± 0.71 +9.00 +5.96 to +12.04 A is better"
    assert rows["layer 1"].endswith("no clear difference")
    assert "−40.00" in rows["layer 2"]
    assert rows["layer 2"].endswith("B is better")


def test_what_cannot_be_compared_is_left_out_and_noted(runs: Path, faustnet: Command) -> None:
    answer = faustnet("compare", *A, "--with", "backprop-0")
    assert answer.code == 0
    assert "layer 1" not in answer.out
    assert "Layers are not compared, because the runs predict from different numbers of layers: 1 and 2." in answer.out
    assert "There are no intervals, because B has one run only" in answer.out
    assert "better" not in answer.out


def test_runs_of_a_group_that_are_no_seeds_of_one_recipe_are_noted(runs: Path, faustnet: Command) -> None:
    notes = json.loads(faustnet("compare", *A, B[0], "--with", B[1], "--json").out)["notes"]
    assert notes[0] == "The runs of A do not only differ in their seeds, but also in method."
    shutil.copytree(A[0], "copy")
    notes = json.loads(faustnet("compare", *A, "copy", "--with", *B, "--json").out)["notes"]
    assert notes == [f"{A[0]} and copy have the same recipe and seed: the intervals may be too small."]


def unfinished(folder: Path) -> None:
    (folder / "metrics.json").unlink()


def continued(folder: Path) -> None:
    recipe(folder, "epochs = 1", "epochs = 9")


def other_set(folder: Path) -> None:
    recipe(folder, 'dataset = "digits"', 'dataset = "mnist"')


def other_images(folder: Path) -> None:
    edit(folder / "metrics.json", confusion=[[1 if row == column else 0 for column in range(10)] for row in range(10)])


def damaged(folder: Path) -> None:
    (folder / "metrics.json").write_text("{}")


def impossible(folder: Path) -> None:
    edit(folder / "metrics.json", layer_accuracy=[0.5, 1e308])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (unfinished, f"{B[1]} is not finished: finish the training with 'faustnet train --resume --out {B[1]}'."),
        (continued, f"{B[1]} is not finished"),
        (other_set, f"must have the same data set, but {A[0]} has digits and {B[1]} has mnist."),
        (other_images, f"must have the same data, but {A[0]} and {B[1]} have different data of digits."),
        (damaged, "metrics.json is damaged"),
        (impossible, "metrics.json is damaged, because it has an accuracy of 1e+308"),
        (shutil.rmtree, f"{B[1]} is not a run folder"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused(
    change: Callable[[Path], None], said: str, runs: Path, faustnet: Command
) -> None:
    change(runs / B[1])
    answer = faustnet("compare", *A, "--with", *B, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.sentence


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Each group needs at least one run folder: faustnet compare A… --with B…, got none for A."),
        (["--with", *B], "got none for A."),
        ([*A], "got none for B."),
        ([*A, "--with", "--json"], "got none for B."),
        ([*A, "--with", B[0], f"./{A[0]}"], f"{A[0]} is in both groups: give each run once."),
        ([A[0], f"{A[1]}/../{A[0]}", "--with", *B], f"{A[0]} is given several times: give each run once."),
        ([*A, "--with", B[0], B[0]], f"{B[0]} is given several times: give each run once."),
    ],
)
def test_groups_need_runs_and_each_run_once(words: list[str], said: str, runs: Path, faustnet: Command) -> None:
    answer = faustnet("compare", *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.sentence
