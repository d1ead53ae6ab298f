"""Numbers of the charts of a report, from the facts of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOGETHER = "all layers"

Facts = Mapping[str, Any]  # about one run, from `inspect_run`


def training_curves(run: Facts) -> list[dict[str, Any]]:
    """Return accuracy in % and loss of each layer or output by epoch, with None where it was not measured."""
    history, learners, voters = run["history"], run["learners"], run["metrics"]["voters"]
    names = list(dict.fromkeys([*learners, *voters]))

    def over_epochs(key: str, known: list[str], name: str, factor: float) -> list[float | None]:
        rows = (dict(zip(known, epoch.get(key) or [], strict=False)) for epoch in history)
        return [_times(row.get(name), factor) for row in rows]

    found: list[dict[str, Any]] = []
    if len(voters) > 1:
        together = [_times(epoch.get("accuracy"), 100) for epoch in history]
        found.append({"name": TOGETHER, "together": True, "accuracy": together, "loss": [None] * len(history)})
    for place, name in enumerate(names):
        accuracy = over_epochs("layer_accuracy", voters, name, 100)
        loss = over_epochs("losses", learners, name, 1)
        found.append({"name": name, "place": place, "alone": len(names) == 1, "accuracy": accuracy, "loss": loss})
    return found


def _times(value: float | None, factor: float) -> float | None:
    """Multiply and round a value; values that are not finite become None."""
    return None if value is None or not math.isfinite(value * factor) else round(value * factor, 5)


def first_layers(count: int) -> list[str]:
    """Return the names of the first layers together: {1}, {1, 2}, …, or {1–4} for more than three."""
    sets = (", ".join(map(str, range(1, last + 1))) if last <= 3 else f"1–{last}" for last in range(1, count + 1))
    return [f"{{{numbers}}}" for numbers in sets]


@dataclass(frozen=True)
class ClassResult:
    """Test images of one class, and what is predicted for them."""

    name: str
    images: int
    correct: int
    confused_with: str | None  # the most frequent wrong class
    confused: int  # images that are predicted as that class

    @property
    def accuracy(self) -> float | None:
        """Fraction of the images that are predicted correctly; None without images."""
        return self.correct / self.images if self.images else None


def by_class(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> list[ClassResult]:
    """Return the result of each class from a confusion matrix. (C, C)"""
    found = []
    for number, (row, name) in enumerate(zip(confusion, names, strict=True)):
        wrong = [0 if other == number else count for other, count in enumerate(row)]
        most = max(wrong)
        found.append(ClassResult(name, sum(row), row[number], names[wrong.index(most)] if most else None, most))
    return found
