"""Optimisers of the layers, for one's own training loop."""

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError, require

if TYPE_CHECKING:
    from faustnet.methods.base import Method

PATIENCE = 20  # steps without a gradient after which a parameter is reported
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
    require(
        not any(isinstance(optimiser, torch.optim.LBFGS) for optimiser in optimisers),
        "optimisers must take a step without a closure, which LBFGS cannot: use another one.",
    )
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


@contextmanager
def with_gradients() -> Iterator[None]:
    """Compute gradients in this block, also inside of `torch.no_grad()`."""
    require(
        not torch.is_inference_mode_enabled(),
        "Training needs gradients, which torch.inference_mode() forbids: train outside of it.",
    )
    with torch.enable_grad():
        yield


class Stepping:
    """Optimisers for one's own training loop, checked for a method, and the parameters that they have not trained so far."""

    def __init__(self, method: "Method", optimisers: Sequence[torch.optim.Optimizer]):
        check_optimisers(method, optimisers)
        if method.is_local:
            check_owners(method)
        self.optimisers, self.parameters = optimisers, _parameters(method, optimisers)
        self.unreached = {name for name, parameter in method.named_parameters() if parameter.requires_grad}
        self.steps = 0

    def holds(self, method: "Method", optimisers: Sequence[torch.optim.Optimizer]) -> bool:
        """Return whether these are the optimisers that were checked, with the same parameters, and the trainable parameters
        of the method are the same too."""
        if self.optimisers is not optimisers:
            return False
        now = _parameters(method, optimisers)
        return len(now) == len(self.parameters) and all(map(operator.is_, now, self.parameters))

    def note_gradients(self, method: "Method") -> None:
        """Note which parameters have a gradient now."""
        if self.unreached:
            self.unreached -= {name for name, parameter in method.named_parameters() if parameter.grad is not None}

    def end_step(self) -> None:
        """Warn once about parameters without a gradient. A block that is skipped at random has one sooner or later."""
        self.steps += 1
        if self.unreached and self.steps == PATIENCE:
            warnings.warn(
                f"The parameter {min(self.unreached)} got no gradient from any loss in {PATIENCE} steps: use it in the "
                "layer or in its loss, or freeze it with requires_grad_(False).",
                stacklevel=3,
            )


def _parameters(method: "Method", optimisers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    """Return the trainable parameters of a method, and those of its optimisers."""
    trainable = [parameter for parameter in method.parameters() if parameter.requires_grad]
    return trainable + [parameter for one in optimisers for group in one.param_groups for parameter in group["params"]]


def step_all(optimisers: Sequence[torch.optim.Optimizer]) -> None:
    """Take a step with those optimisers whose parameters have gradients, and clear the gradients."""
    for optimiser in optimisers:
        if any(parameter.grad is not None for group in optimiser.param_groups for parameter in group["params"]):
            optimiser.step()
            optimiser.zero_grad()
