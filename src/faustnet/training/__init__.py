"""Training: the trainer, its schedules, optimisers and ranks, and evaluation."""

from typing import TYPE_CHECKING

from faustnet._lazy import lazy_attributes

if TYPE_CHECKING:
    from faustnet.training.trainer import Diverged, Trainer, TrainingSettings

__all__ = ["Diverged", "Trainer", "TrainingSettings"]

__getattr__ = lazy_attributes(__name__, dict.fromkeys(__all__, "faustnet.training.trainer"))
