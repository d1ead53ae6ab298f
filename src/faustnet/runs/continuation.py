"""Continuing a training with another number of epochs."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from faustnet.errors import FaustnetError, require
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe
from faustnet.system.randomness import generator_states, seeded
from faustnet.training.history import Epoch
from faustnet.training.loop import TrainingLoop

NEW_OPTIMISER = "the optimiser starts anew, because a finished run has no optimiser state"


def check_schedule(recipe: Recipe) -> None:
    """Refuse another number of epochs if it would change epochs that are done already."""
    if recipe.training.schedule == "greedy":
        raise FaustnetError(
            "training.epochs cannot be changed with training.schedule=greedy, which trains the layers one after the other: "
            "use the first value, or start a new run from this one with start.model (--from)."
        )


def check_epochs_left(epochs: int, done: int) -> None:
    """Refuse a new number of epochs that leaves nothing to train."""
    require(
        epochs > done,
        f"training.epochs must be more than {done}, the number of epochs that this run has done, to continue it, "
        f"got {epochs}.",
    )


def finished_state(
    model: Model, history: list[dict[str, Any]], trainer: TrainingLoop
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a state for `TrainingLoop.restore` after the last epoch of a finished training, without optimiser state
    and with new random numbers."""
    names = tuple(trainer.train.class_names)
    require(
        model.class_names == names,
        f"The model must have the classes of the training data, {', '.join(names)}, to be trained further, got "
        f"{', '.join(model.class_names)}: start a new run from it with start.model (--from).",
    )
    with seeded(trainer.seed * 1_000_003 + len(history), trainer.device):
        generators = generator_states(trainer.device)
    tensors = {f"method.{name}": tensor for name, tensor in model.method.state_dict().items()}
    tensors |= {f"generator.{name}": tensor for name, tensor in generators.items()}
    tensors["totals"] = torch.zeros_like(trainer.schedule.totals)
    epochs = [asdict(Epoch(**epoch)) for epoch in history]
    return tensors, {"history": epochs, "batch": 0, "seconds": 0.0}
