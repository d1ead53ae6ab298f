"""The columns of the table that a training prints: losses, accuracies and seconds of every epoch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from faustnet.training.history import Epoch

CELL = 9  # characters of a column, at least
EPOCH = 7  # of the first column, at least


@dataclass(frozen=True)
class Columns:
    """Columns that are wide enough for their names, and numbers that are short enough for their columns.

    Args:
        learners: Names of the parts that have a loss.
        voters: Names of the parts that have an accuracy.
        epochs: Number of epochs.
    """

    learners: Sequence[str]
    voters: Sequence[str]
    epochs: int

    @property
    def names(self) -> list[str]:
        together = ["all"] if len(self.voters) > 1 else []
        return [*self.learners, "", *self.voters, *together, "seconds"]

    @property
    def cell(self) -> int:
        """Characters of a column, including a space before it."""
        return max(CELL, 1 + max(map(len, self.names)))

    @property
    def first(self) -> int:
        """Characters of the first column."""
        return max(EPOCH, 1 + len(f"{self.epochs}/{self.epochs}"))

    def heading(self, accuracies: str) -> tuple[str, str]:
        """Return two lines above the epochs; `accuracies` is the title of the accuracies."""
        losses = "loss".rjust(self.cell).ljust(self.cell * len(self.learners) + self.cell // 3)
        return f"{'':{self.first}}{losses} {accuracies}", f"{'epoch':>{self.first}}{self._cells(self.names)}"

    def line(self, epoch: Epoch) -> str:
        """Return the line of an epoch."""
        alone = epoch.layer_accuracy or [None] * len(self.voters)
        accuracies = [*alone, epoch.accuracy] if len(self.voters) > 1 else [epoch.accuracy]
        percent = [None if value is None else 100 * value for value in accuracies]
        cells = [self._number(loss, 4) for loss in epoch.losses] + [""] + [self._number(value, 2) for value in percent]
        return f"{f'{epoch.epoch}/{self.epochs}':>{self.first}}{self._cells([*cells, self._number(epoch.seconds, 1)])}"

    def _number(self, value: float | None, digits: int) -> str:
        """Return a number with this many decimals, or with fewer or an exponent if that is too long."""
        if value is None:
            return "–"
        texts = (format(value, style) for style in (f".{digits}f", ".2f", ".1e", ".0e"))
        return next(text for text in texts if len(text) < self.cell)

    def _cells(self, texts: Iterable[str]) -> str:
        return "".join(text.rjust(self.cell) if text else " " * (self.cell // 3) for text in texts)
