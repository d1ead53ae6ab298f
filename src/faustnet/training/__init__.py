"""Training: the trainer, its schedules, optimisers and ranks, and evaluation."""

from typing import TYPE_CHECKING

from faustnet._lazy import lazy_attributes

if TYPE_CHECKING:
    from faustnet.training.loop import Diverged
    from faustnet.training.settings import TrainingSettings
    from faustnet.training.trainer import Trainer

__all__ = ["Diverged", "Trainer", "TrainingSettings"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Diverged": "faustnet.training.loop",
        "Trainer": "faustnet.training.trainer",
        "TrainingSettings": "faustnet.training.settings",
    },
)
