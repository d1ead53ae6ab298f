"""What is written down of a training, epoch by epoch."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Epoch:
    """One line of the history. Layers that did not train, or not yet, have none; an epoch that was not measured has no
    accuracies."""

    epoch: int  # from 1
    losses: list[float | None]
    layer_accuracy: list[float | None]
    first_layers_accuracy: list[float | None]  # of {1}, {1, 2}, … together
    accuracy: float | None  # of all layers that have begun to train, by their weights once all have
    learning_rate: float  # of the last step
    seconds: float  # training alone, without the evaluation


def curves(epoch: Epoch, learners: Sequence[str], voters: Sequence[str]) -> dict[str, float | None]:
    """One line of the history by the names of its curves, with nothing where nothing was measured."""
    accuracies: list[float | None] = [None] * len(voters)
    alone, first = epoch.layer_accuracy or accuracies, epoch.first_layers_accuracy or accuracies
    joined = [f"accuracy/layers 1-{number}" for number in range(2, len(voters) + 1)]
    return {
        **{f"loss/{name}": loss for name, loss in zip(learners, epoch.losses, strict=True)},
        **{f"accuracy/{name}": value for name, value in zip(voters, alone, strict=True)},
        **dict(zip(joined, first[1:], strict=True)),
        "accuracy/all": epoch.accuracy,
        "learning_rate": epoch.learning_rate,
        "seconds": epoch.seconds,
    }


def history_csv(history: Sequence[Epoch], learners: Sequence[str], voters: Sequence[str]) -> str:
    """A row for each epoch, a column for each curve."""
    file = io.StringIO()
    rows = [{"epoch": epoch.epoch, **curves(epoch, learners, voters)} for epoch in history]
    if rows:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file.getvalue()
