"""The history of a training: losses and accuracies by epoch."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Epoch:
    """Losses and accuracies of one epoch.

    Under the greedy schedule, a layer that is not trained in this epoch has no loss (None), and a layer that has not been
    trained yet has no accuracy. An epoch without evaluation has no accuracies.
    """

    epoch: int  # from 1
    losses: list[float | None]  # of each layer
    layer_accuracy: list[float | None]  # of each layer alone
    first_layers_accuracy: list[float | None]  # of layers {1}, {1, 2}, … together
    accuracy: float | None  # of all layers, by their weights; under the greedy schedule of those that were trained
    learning_rate: float  # of the last step
    seconds: float  # without evaluation


def curves(epoch: Epoch, learners: Sequence[str], voters: Sequence[str]) -> dict[str, float | None]:
    """Return the values of an epoch by the names of their curves; None if not measured."""
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
    """Return the history as CSV: one row per epoch, one column per curve."""
    file = io.StringIO()
    rows = [{"epoch": epoch.epoch, **curves(epoch, learners, voters)} for epoch in history]
    if rows:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file.getvalue()
