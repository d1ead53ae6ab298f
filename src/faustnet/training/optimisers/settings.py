"""Which optimiser, and the learning rate of each step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError, unknown
from faustnet.training.optimisers.muon import BETAS, Muon

OPTIMISERS = ("adam", "adamw", "sgd", "muon")
DECAYS = ("cosine", "constant")


@dataclass(frozen=True)
class OptimiserSettings:
    """`name` is "adam", "adamw", "sgd" or "muon", `learning_rate` the highest one. `warmup` is the share of the steps during
    which it rises; after it, by `decay`, it is "constant" or falls along a half "cosine" to zero. `weight_decay` acts
    through the gradient, or with "adamw" and "muon" by itself. `momentum` is SGD's, and Muon's, which is for matrices: with
    it, AdamW has the rest."""

    name: str = "adam"
    learning_rate: float = 1e-3
    decay: str = "cosine"
    warmup: float = 0.0
    weight_decay: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.name not in OPTIMISERS:
            raise unknown("optimiser", self.name, OPTIMISERS)
        if self.decay not in DECAYS:
            raise FaustnetError(f"The learning rate's decay is {' or '.join(DECAYS)}, not {self.decay!r}.")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise FaustnetError(f"The learning rate must be positive, not {self.learning_rate}: 0.001 is a good start.")
        if not (0 <= self.warmup < 1 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise FaustnetError("Warm-up and momentum lie from 0 to below 1, and weight decay is not negative.")

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Its learning rate is a tensor on the parameters' device, so that a recorded step can change it. On a GPU, where
        steps are recorded, the optimiser remembers zeros from the start."""
        parameters = list(parameters)
        device = parameters[0].device
        fused, decay = device.type in ("cpu", "cuda"), self.weight_decay
        rate = torch.tensor(self.learning_rate, device=device, dtype=torch.float64 if device.type == "cpu" else None)
        optimiser: torch.optim.Optimizer
        if self.name == "sgd":
            optimiser = torch.optim.SGD(parameters, rate, momentum=self.momentum, weight_decay=decay, fused=fused)
        elif self.name == "muon":
            optimiser = Muon(parameters, rate, self.momentum, decay)
        else:
            kind = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
            optimiser = kind(parameters, rate, weight_decay=decay, fused=fused, capturable=device.type == "cuda")
        if device.type == "cuda":
            _remember_nothing(optimiser, rate)
        return optimiser

    def words(self, *, matrix: bool) -> tuple[str, ...]:
        """What is remembered of a parameter, in torch's words, beside the count of steps."""
        if self.name in ("adam", "adamw") or (self.name == "muon" and not matrix):
            return "exp_avg", "exp_avg_sq"
        return ("momentum_buffer",) if self.momentum or self.name == "muon" else ()

    def factors(self, rates: Tensor, steps: Tensor, active: Tensor) -> Tensor:
        """For layers with these learning rates, that take so many steps with this one, and those of them that do take it:
        what Adam's change is multiplied by, the root of the second moment's correction, what is left of a weight that
        decays, and the learning rate, which is 0 where nothing is done. (…) each → (…, 4)"""
        size, root = rates, torch.ones_like(rates)
        if self.name != "sgd":
            steps = steps.to(rates.dtype)
            size, root = rates / (1 - BETAS[0] ** steps), (1 - BETAS[1] ** steps).sqrt()
        return torch.stack([size, root, 1 - rates * self.weight_decay, rates * active], dim=-1)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step `step` (from 0) out of `steps`."""
        rising = self.warmup * steps
        if step < rising:
            return self.learning_rate * (step + 1) / (rising + 1)
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))


def remembered(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """All that an optimiser keeps from step to step."""
    values = (value for memory in optimiser.state.values() for value in memory.values())
    return [value for value in values if isinstance(value, Tensor)]


def _remember_nothing(optimiser: torch.optim.Optimizer, rate: Tensor) -> None:
    """A step of no length for one parameter after the other, to have the memory made, which is then emptied."""
    usual = rate.clone()
    rate.zero_()
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
            optimiser.step()
            parameter.grad = None
    for value in remembered(optimiser):
        value.zero_()
    rate.copy_(usual)
