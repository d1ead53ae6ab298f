"""Warnings about a training that goes wrong: a loss that explodes or does not change, an accuracy of guessing."""

import math
from collections.abc import Sequence

from torch import Tensor

from faustnet.training.history import Epoch

PATIENCE = 3  # epochs, or evaluations, in a row that a warning needs,
STEPS = 100  # after at least this number of batches
EXPLODED = 10.0  # ratio of a loss to the loss of the untrained method, or to 1, from which it has exploded
STILL = 5e-3  # relative difference of losses below which they have not changed
GUESSING = 0.01  # relative difference of a loss and that of guessing below which they are the same
MEASURABLE = 50  # evaluated samples below which the accuracy of guessing cannot be told from others


class Diagnosis:
    """Looks at the epochs of a training and gives at most one warning.

    Args:
        names: Name of each part of the method that has a loss.
        start: Loss of each part before the training.
        labels: Labels of the samples that are used for evaluation. (n,)
        classes: Number of classes.
    """

    def __init__(self, names: Sequence[str], start: Sequence[float], labels: Tensor, classes: int):
        self.names, self.start, self.classes = names, start, classes
        self.learning_rate = 0.0
        self.from_trained = False  # whether the training starts from trained weights, whose losses may not change any more
        counts = labels.cpu().bincount(minlength=classes)
        self.count = int(counts.sum())
        self.shares = (counts.double() / max(1, self.count)).tolist()
        self.warned = False

    def warning(self, history: Sequence[Epoch], batches: int, learning_rate: float) -> str | None:
        """Return a warning about the last epoch of a history, with this number of batches in an epoch and this peak learning
        rate, or None."""
        if self.warned:
            return None
        self.learning_rate = learning_rate
        found = self._exploded(history[-1])
        if found is None and len(history) * batches >= STEPS:
            found = self._guessing(history) or self._still(history)
        self.warned = found is not None
        return found

    def _exploded(self, epoch: Epoch) -> str | None:
        for name, before, now in zip(self.names, self.start, epoch.losses, strict=True):
            if now is not None and abs(now) > EXPLODED * max(abs(before), 1.0):
                whose = f" of {name}" if len(self.names) > 1 else ""
                return (
                    f"The loss{whose} has grown from {before:.4g} before the training to {now:.4g} in epoch {epoch.epoch}: "
                    f"try a learning rate below {self.learning_rate:g}, or a warm-up."
                )
        return None

    def _guessing(self, history: Sequence[Epoch]) -> str | None:
        """Recognise a method that guesses, by its accuracy, or by its loss if there is no evaluation."""
        evaluated = [epoch.accuracy for epoch in history if epoch.accuracy is not None]
        value = math.log(self.classes)
        recent = [losses[-PATIENCE:] for losses in _trained_losses(history)]
        at_value = bool(recent) and all(abs(loss - value) < GUESSING * value for losses in recent for loss in losses)
        remedy = f"try another learning rate than {self.learning_rate:g}, and check that the labels belong to the samples."
        if len(evaluated) >= PATIENCE:
            if not all(map(self._is_chance, evaluated[-PATIENCE:])):
                return None
            if not at_value:
                return (
                    f"The accuracy after {len(history)} epochs, {evaluated[-1]:.2%}, is that of guessing among "
                    f"{self.classes} classes: {remedy}"
                )
        elif evaluated or not at_value:
            return None
        return f"The loss stays at {value:.4g}, that of guessing among {self.classes} classes (ln {self.classes}): {remedy}"

    def _is_chance(self, accuracy: float) -> bool:
        """Whether an accuracy is that of guessing at random, up to its standard error, or of always naming one class."""
        if self.count < MEASURABLE:
            return False
        chance = 1 / self.classes
        at_random = accuracy <= chance + math.sqrt(chance * (1 - chance) / self.count)
        return at_random or any(abs(accuracy - share) < 1e-9 for share in self.shares)

    def _still(self, history: Sequence[Epoch]) -> str | None:
        """Recognise losses that have never changed."""
        found = _trained_losses(history)
        changed = any(max(losses) - min(losses) >= STILL * abs(losses[0]) for losses in found)
        if self.from_trained or not found or changed:
            return None
        mean = sum(losses[-1] for losses in found) / len(found)
        return (
            f"The loss has not changed in {len(found[0])} epochs and is still {mean:.4g}: try a learning rate above "
            f"{self.learning_rate:g}."
        )


def _trained_losses(history: Sequence[Epoch]) -> list[list[float]]:
    """Return the losses by epoch of each part that was trained in the last epoch; none if these are too few epochs."""
    parts = zip(*(epoch.losses for epoch in history), strict=True)
    found = [[loss for loss in losses if loss is not None] for losses in parts if losses[-1] is not None]
    return found if min(map(len, found), default=0) >= PATIENCE else []
