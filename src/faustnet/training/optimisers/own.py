"""Optimisers of torch, or of the user's own, as functions that make one.

A plain Adam, AdamW or SGD is replaced by the package's own form of it, which computes the same and is faster: it can be
recorded as a CUDA graph and can update several layers at once. All others are used as they are, step by step, also those
with hooks or with a replaced `step`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError, require
from faustnet.methods import LocalMethod, Method
from faustnet.methods.stepping import MakeOptimiser, made_optimiser
from faustnet.system.customised import is_customised_optimiser
from faustnet.training.optimisers.base import BETAS, EPSILON, Optimiser
from faustnet.training.optimisers.schedulers import MakeScheduler, made_scheduler, only_changes_the_rate, step_scheduler
from faustnet.training.optimisers.settings import OptimiserSettings
from faustnet.training.optimisers.updates import Updates, trainable

EVERY = ("epoch", "batch")
USUAL: dict[type, dict[str, Any]] = {  # settings of torch's optimisers that the package's own form of them has
    torch.optim.Adam: {"betas": BETAS, "eps": EPSILON, "amsgrad": False, "maximize": False, "decoupled_weight_decay": False},
    torch.optim.AdamW: {"betas": BETAS, "eps": EPSILON, "amsgrad": False, "maximize": False},
    torch.optim.SGD: {"dampening": 0, "nesterov": False, "maximize": False},
}
NAMES: dict[type, str] = {torch.optim.Adam: "adam", torch.optim.AdamW: "adamw", torch.optim.SGD: "sgd"}


class OwnOptimiser:
    """An optimiser of the user's, one instance for each layer. It is used as it is, so steps are not recorded.

    Args:
        make: Function that returns an optimiser of a list of parameters.
        make_scheduler: Function that returns a learning-rate scheduler of an optimiser; None for none.
        every: "epoch" or "batch": when the scheduler takes its step.
    """

    recordable = False
    counts_steps = False
    updates_together = False

    def __init__(self, make: MakeOptimiser, make_scheduler: MakeScheduler | None, every: str):
        self.make, self.make_scheduler, self.every = make, make_scheduler, every
        self.made: list[OwnUpdates] = []

    def updates(self, method: Method, units: Sequence[list[nn.Parameter]]) -> Updates:
        """Return the updates of the parameters of each unit, such as a layer."""
        self.made = [OwnUpdates(self, method, found) for unit in units if (found := trainable(unit))]
        return LayerUpdates(self.made)

    def factors(self, rates: Tensor, steps: Tensor, active: Tensor) -> Tensor:
        """Return whether each layer takes its step, in the form of `Optimiser.factors`. (…) each → (…, 4)"""
        return active.to(rates.dtype).unsqueeze(-1).expand(*active.shape, 4)

    def rates(self, epoch: int, epochs: int, batches: int) -> list[float]:
        """Return the present learning rate for each batch; the optimiser's own is used."""
        group = self.made[0].optimiser.param_groups[0] if self.made else {"lr": 0.0}
        return [float(group.get("lr", 0.0))] * batches

    def create(self) -> "OwnOptimiser":
        return self

    def used_rate(self, planned: float) -> float:
        """Return the learning rate of the latest step."""
        return self.made[0].used_rate if self.made else planned

    def restart(self) -> None:
        """Do nothing: `updates` makes new optimisers and schedulers for the next layer of the greedy schedule."""

    def end_epoch(self, loss: float) -> None:
        for updates in self.made:
            updates.end_epoch(loss)

    @property
    def learning_rate(self) -> float:
        return self.rates(0, 1, 1)[0]


class OwnUpdates(Updates):
    """Updates of one layer's parameters by an optimiser of the user's."""

    def __init__(self, own: OwnOptimiser, method: Method, parameters: list[nn.Parameter]):
        self.optimiser = made_optimiser(own.make, parameters)
        names = {parameter: name for name, parameter in method.named_parameters()}
        updated = (parameter for group in self.optimiser.param_groups for parameter in group["params"])
        self.parameters = {names[parameter]: parameter for parameter in updated if parameter in names}  # in its order
        self.scheduler = made_scheduler(own.make_scheduler, self.optimiser, own.every) if own.make_scheduler else None
        self.every = own.every
        self.used_rate = 0.0  # of the latest step

    @property
    def names(self) -> set[str]:
        return set(self.parameters)

    def step(self, rate: Tensor) -> None:
        if all(parameter.grad is None for group in self.optimiser.param_groups for parameter in group["params"]):
            return  # it is the turn of another layer
        self.used_rate = float(self.optimiser.param_groups[0].get("lr", 0.0))
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.scheduler is not None and self.every == "batch":
            step_scheduler(self.scheduler)

    def changes(self) -> list[Tensor]:
        values = (value for state in self.optimiser.state.values() for value in state.values())
        return [value for value in values if isinstance(value, Tensor)]

    def state(self) -> dict[str, Tensor]:
        names, state = list(self.parameters), self.optimiser.state_dict()["state"]
        return {
            f"{names[n]}/{word}": torch.as_tensor(value)
            for n, values in state.items()
            for word, value in values.items()
            if value is not None
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        numbers = {name: number for number, name in enumerate(self.parameters)}
        whole = self.optimiser.state_dict()
        whole["state"] = {}
        for key, tensor in tensors.items():
            name, word = key.split("/")
            parameter = self.parameters[name].detach()
            if tensor.shape not in ((), parameter.shape):
                raise ValueError(f"the shape of {word} of {name} in the optimiser state does not match the network")
            if tensor.shape == parameter.shape:  # in the same order of memory too
                tensor = torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)
            whole["state"].setdefault(numbers[name], {})[word] = tensor
        if len(whole["state"]) != len(numbers):
            raise ValueError("the optimiser state has other parameters than the network")
        self.optimiser.load_state_dict(whole)

    def end_epoch(self, loss: float) -> None:
        if self.scheduler is not None and self.every == "epoch":
            step_scheduler(self.scheduler, loss)


class LayerUpdates(Updates):
    """Updates of several layers, each by an optimiser of its own."""

    def __init__(self, layers: Sequence[OwnUpdates]):
        self.layers = layers

    @property
    def names(self) -> set[str]:
        return set().union(*(layer.names for layer in self.layers))

    def step(self, rate: Tensor) -> None:
        for layer in self.layers:
            layer.step(rate)

    def changes(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in layer.changes()]

    def state(self) -> dict[str, Tensor]:
        return {key: tensor for layer in self.layers for key, tensor in layer.state().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for layer in self.layers:
            layer.restore({key: tensor for key, tensor in tensors.items() if key.split("/")[0] in layer.names})


class KnownOptimiser:
    """A plain Adam, AdamW or SGD of torch, in the package's own form, with a learning-rate scheduler of torch.

    The scheduler works on an optimiser of one parameter that is never used, and its learning rate is taken from there.
    Other changes of that optimiser would have no effect and are refused.
    """

    def __init__(
        self,
        settings: OptimiserSettings,
        make: MakeOptimiser,
        make_scheduler: MakeScheduler | None,
        every: str,
        made: Sequence[torch.optim.Optimizer] = (),
    ):
        self.settings, self.every = settings, every
        self.make, self.make_scheduler = make, make_scheduler
        self.unused = [(optimiser, _setting(optimiser)) for optimiser in made]
        self.restart()

    def restart(self) -> None:
        """Begin again with the first learning rate, for the next layer of the greedy schedule."""
        self.stand_in = self.make([nn.Parameter(torch.zeros(1))])
        self.scheduler = made_scheduler(self.make_scheduler, self.stand_in, self.every) if self.make_scheduler else None
        self.epoch_rates: tuple[int, list[float]] | None = None  # of the latest epoch, which may be continued
        self.setting = _setting(self.stand_in)  # that holds now

    def create(self) -> Optimiser:
        return self.settings.create()

    def rates(self, epoch: int, epochs: int, batches: int) -> list[float]:
        """Return the learning rate of each batch of an epoch."""
        if self.epoch_rates is None or self.epoch_rates[0] != epoch or len(self.epoch_rates[1]) != batches:
            self.epoch_rates = epoch, self.next_rates(batches)
        return self.epoch_rates[1]

    def _check_unchanged(self, allowed: str = "") -> None:
        """Refuse other settings than those that the steps are computed with. That one that is allowed may change."""
        for optimiser, before in (*self.unused, (self.stand_in, self.setting)):
            for key, value in _setting(optimiser).items():
                if value != before.get(key, value) and not (optimiser is self.stand_in and key == allowed):
                    raise FaustnetError(
                        f"optimiser must keep {key}={before[key]}, but it was changed to {value}, which has no effect on "
                        f"the faster form of torch's {type(optimiser).__name__}: use a scheduler, or a class of your own "
                        "that is derived from it."
                    )

    def next_rates(self, count: int) -> list[float]:
        """Return the learning rates of the next batches."""
        self._check_unchanged(allowed="lr")
        rates = [self._next_rate() for _ in range(count)]
        self.setting = _setting(self.stand_in)
        return rates

    def _next_rate(self) -> float:
        rate = float(self.stand_in.param_groups[0]["lr"])
        if self.scheduler is not None and self.every == "batch":
            self.stand_in.step()  # otherwise torch warns that the scheduler is ahead of it
            step_scheduler(self.scheduler)
        return rate

    def used_rate(self, planned: float) -> float:
        """Return the learning rate of the latest step."""
        return planned

    def end_epoch(self, loss: float) -> None:
        self._check_unchanged()
        if self.scheduler is not None and self.every == "epoch":
            self.stand_in.step()
            step_scheduler(self.scheduler, loss)

    @property
    def learning_rate(self) -> float:
        return self.settings.learning_rate


def optimiser_from(
    make: MakeOptimiser, make_scheduler: MakeScheduler | None, every: str, method: Method
) -> KnownOptimiser | OwnOptimiser:
    """Return the fastest form of an optimiser for this method."""
    require(every in EVERY, f"scheduler_every must be {' or '.join(EVERY)}, got {every!r}.")
    layers = [list(layer.parameters()) for layer in method.network] if isinstance(method, LocalMethod) else []
    units = [found for unit in layers or [list(method.parameters())] if (found := trainable(unit))]
    made = [made_optimiser(make, unit) for unit in units]
    require(bool(units), "method must have trainable parameters, got none: set requires_grad_(True) for some.")
    known = {_settings_of(optimiser) for optimiser in made}  # before a scheduler replaces `step`
    if make_scheduler is not None and not only_changes_the_rate(made_scheduler(make_scheduler, made[0], every)):
        return OwnOptimiser(make, make_scheduler, every)
    settings = known.pop() if len(known) == 1 else None
    if settings is None:
        return OwnOptimiser(make, make_scheduler, every)
    return KnownOptimiser(settings, make, make_scheduler, every, made)


def _setting(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the settings of an optimiser's first group of parameters."""
    return {key: value for key, value in optimiser.param_groups[0].items() if key not in ("params", "initial_lr")}


def _settings_of(optimiser: torch.optim.Optimizer) -> OptimiserSettings | None:
    """Return the settings of an optimiser that the package has in its own form."""
    usual = USUAL.get(type(optimiser))
    if usual is None or is_customised_optimiser(optimiser) or len(optimiser.param_groups) != 1 or optimiser.state:
        return None
    (group,) = optimiser.param_groups
    if any(group[key] != value for key, value in usual.items()) or isinstance(group["lr"], Tensor):
        return None
    return OptimiserSettings(
        name=NAMES[type(optimiser)],
        learning_rate=group["lr"],
        decay="constant",
        weight_decay=group["weight_decay"],
        momentum=group.get("momentum", 0.9),
    )
