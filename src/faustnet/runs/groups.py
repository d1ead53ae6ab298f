"""Groups of finished runs, such as the seeds of one recipe, as plain values for a comparison."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from faustnet.errors import require
from faustnet.runs.folder import METRICS, Run
from faustnet.runs.recipes import differences

Facts = dict[str, Any]  # about one run
SHOWN = 5  # keys in a note, at most


def read_groups(a: Sequence[Path], b: Sequence[Path]) -> tuple[list[Facts], list[Facts], list[str]]:
    """Read the results of two groups of finished runs on the same data set. The third list has notes about runs of one group
    that differ in more or less than their seeds."""
    _check_distinct(a, b)
    groups = [[_finished(folder) for folder in folders] for folders in (a, b)]
    _check_same_data([run for group in groups for run in group])
    notes = [note for name, group in zip("AB", groups, strict=True) for note in _notes(name, group)]
    first, second = ([_facts(run) for run in group] for group in groups)
    return first, second, notes


def _check_distinct(a: Sequence[Path], b: Sequence[Path]) -> None:
    first, second = ([folder.resolve() for folder in group] for group in (a, b))
    for folder in (*a, *b):
        path = folder.resolve()
        require(path not in first or path not in second, f"{folder} is in both groups: give each run once.")
        require((first + second).count(path) == 1, f"{folder} is given several times: give each run once.")


def _finished(folder: Path) -> Run:
    run = Run.open(folder)
    require(run.finished, f"{folder} is not finished: finish the training with 'faustnet train --resume --out {folder}'.")
    return run


def _check_same_data(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        names = first.recipe.dataset, run.recipe.dataset
        require(
            names[0] == names[1],
            f"All runs must have the same data set, but {first.folder} has {names[0]} and {run.folder} has {names[1]}.",
        )
        same = first.recipe.data.digest == run.recipe.data.digest and _counts(first) == _counts(run)
        require(
            same, f"All runs must have the same data, but {first.folder} and {run.folder} have different data of {names[0]}."
        )


def _counts(run: Run) -> list[int]:
    """Number of test images of each class."""
    return [sum(row) for row in run.metrics["confusion"]]


def _notes(name: str, runs: Sequence[Run]) -> list[str]:
    keys = sorted({key for run in runs[1:] for key in differences(runs[0].recipe, run.recipe)} - {"seed"})
    found = []
    if "method" in keys:
        keys = [key for key in keys if not key.startswith("options.")]  # other methods have other options
    if keys:
        shown = ", ".join(keys[:SHOWN]) + (", …" if len(keys) > SHOWN else "")
        found.append(f"The runs of {name} do not only differ in their seeds, but also in {shown}.")
    for one, other in combinations(runs, 2):
        if one.recipe == other.recipe:
            found.append(f"{one.folder} and {other.folder} have the same recipe and seed: the intervals may be too small.")
    return found


def _facts(run: Run) -> Facts:
    metrics = run.metrics
    kept = {key: metrics[key] for key in ("test_accuracy", "layer_accuracy", "voters")}
    for accuracy in (kept["test_accuracy"], *kept["layer_accuracy"]):
        require(
            0 <= accuracy <= 1,
            f"{run.folder / METRICS} is damaged, because it has an accuracy of {accuracy:g}: train again in another folder.",
        )
    return {"run": str(run.folder), "method": run.recipe.method, "dataset": run.recipe.dataset, **kept}
