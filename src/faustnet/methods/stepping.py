"""Optimisers of the layers, for one's own training loop."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from faustnet.errors import FaustnetError, require

if TYPE_CHECKING:
    from faustnet.methods.base import Method

MakeOptimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def layer_optimisers(method: "Method", make: MakeOptimiser, *, local: bool) -> list[torch.optim.Optimizer]:
    """Return an optimiser of the trainable parameters of each layer, or of all of them together."""
    units: Sequence[nn.Module] = list(method.network) if local else [method]
    found = [[parameter for parameter in unit.parameters() if parameter.requires_grad] for unit in units]
    return [make(parameters) for parameters in found if parameters]


def check_optimisers(method: "Method", optimisers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse optimisers that would leave a parameter untrained."""
    if isinstance(optimisers, torch.optim.Optimizer):
        raise FaustnetError("optimisers must be a list, got one optimiser: use method.optimisers(…), or put it in a list.")
    updated = {id(parameter) for one in optimisers for group in one.param_groups for parameter in group["params"]}
    for name, parameter in method.named_parameters():
        require(
            not parameter.requires_grad or id(parameter) in updated,
            f"optimisers must have all trainable parameters, but {name} is missing: use method.optimisers(…), or freeze it "
            "with requires_grad_(False).",
        )


def step_all(optimisers: Sequence[torch.optim.Optimizer]) -> None:
    """Take a step with those optimisers whose parameters have gradients, and clear the gradients."""
    for optimiser in optimisers:
        if any(parameter.grad is not None for group in optimiser.param_groups for parameter in group["params"]):
            optimiser.step()
            optimiser.zero_grad()
