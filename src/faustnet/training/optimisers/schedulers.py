"""Learning-rate schedulers of torch, or of the user's own, as functions that make one."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from faustnet.errors import FaustnetError, require

MakeScheduler = Callable[[torch.optim.Optimizer], Any]  # an LRScheduler or a ReduceLROnPlateau


def made_scheduler(make: MakeScheduler, optimiser: torch.optim.Optimizer, every: str) -> Any:
    """Call the user's function, and check what it returns."""
    try:
        made = make(optimiser)
    except TypeError:
        made = make  # no function of an optimiser alone
    found = getattr(made, "__name__", type(made).__name__)
    require(
        made is not make and callable(getattr(made, "step", None)),
        f"scheduler must be a function that returns a learning-rate scheduler of an optimiser, got {found}: try lambda "
        "optimiser: torch.optim.lr_scheduler.StepLR(optimiser, 5).",
    )
    require(
        getattr(made, "optimizer", optimiser) is optimiser,
        "scheduler must return a new scheduler of the optimiser that it is given, got one of another optimiser: make a new "
        "one in each call.",
    )
    require(
        every == "epoch" or not isinstance(made, ReduceLROnPlateau),
        'scheduler_every must be "epoch" for ReduceLROnPlateau, which needs the loss of an epoch, got "batch".',
    )
    return made


def step_scheduler(scheduler: LRScheduler | ReduceLROnPlateau, loss: float = 0.0) -> None:
    try:
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(loss)
        else:
            scheduler.step()
    except ValueError as error:
        raise FaustnetError(
            f"scheduler refuses to take a step ({error}): make one for at least as many steps as the training has."
        ) from error


def only_changes_the_rate(scheduler: Any) -> bool:
    """Whether a scheduler, with those that it consists of, is one of torch's that changes the learning rate alone."""
    known = type(scheduler).__module__ == "torch.optim.lr_scheduler"
    parts = getattr(scheduler, "_schedulers", ())
    return known and not getattr(scheduler, "cycle_momentum", False) and all(map(only_changes_the_rate, parts))
