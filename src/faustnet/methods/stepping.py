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
    return [made_optimiser(make, parameters) for parameters in found if parameters]


def made_optimiser(make: MakeOptimiser, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Call the user's function, and check what it returns."""
    made = make(parameters) if callable(make) and not isinstance(make, torch.optim.Optimizer) else None
    if not isinstance(made, torch.optim.Optimizer):
        raise FaustnetError(
            f"optimiser must be a function that returns a torch.optim.Optimizer of a list of parameters, got "
            f"{type(made).__name__}: try lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)."
        )
    if isinstance(made, torch.optim.LBFGS):
        raise FaustnetError("optimiser must take a step without a closure, which LBFGS cannot: use another one.")
    updated = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    require(
        updated == {id(parameter) for parameter in parameters},
        f"optimiser must update all {len(parameters)} parameters that it is given, and no others, got {len(updated)}.",
    )
    return made


def not_prepared(method: "Method") -> FaustnetError:
    """Return the error for losses that need references before they were chosen."""
    return FaustnetError(f"{method.name} is not ready to train: call prepare(train) before computing losses.")


def check_owners(method: "Method") -> None:
    """Refuse trainable parameters outside of the layers, or in two of them, where layers are trained separately."""
    owners: dict[int, str] = {}
    for name, parameter in method.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            continue
        if not name.startswith("network.layers."):
            raise FaustnetError(
                f"{method.name} has a trainable parameter {name} outside its layers, which only the sequential schedule "
                "could train: move it into a layer, or freeze it with requires_grad_(False)."
            )
        layer = ".".join(name.split(".")[:3])
        if owners.setdefault(id(parameter), layer) != layer:
            raise FaustnetError(
                f"The parameter {name} is shared with another layer, but each layer is trained by its own loss: give every "
                "layer a parameter of its own."
            )


def check_optimisers(method: "Method", optimisers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse optimisers that would leave a parameter untrained."""
    one = isinstance(optimisers, torch.optim.Optimizer)
    if one or not (isinstance(optimisers, Sequence) and all(isinstance(o, torch.optim.Optimizer) for o in optimisers)):
        got = "one optimiser" if one else repr(optimisers)
        raise FaustnetError(f"optimisers must be a list of torch's optimisers, got {got}: use method.optimisers(…).")
    all_updated = [id(parameter) for one in optimisers for group in one.param_groups for parameter in group["params"]]
    updated = set(all_updated)
    require(
        len(updated) == len(all_updated),
        f"optimisers must have each parameter once, got {len(all_updated) - len(updated)} more than once: use "
        "method.optimisers(…).",
    )
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
