"""Which optimiser, and the learning rate of each step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from faustnet.errors import FaustnetError, unknown

OPTIMISERS = ("adam", "adamw", "sgd")
DECAYS = ("cosine", "constant")


@dataclass(frozen=True)
class OptimiserSettings:
    """`warmup` is the share of the steps during which the learning rate rises; after it, it is constant or falls along
    a half cosine to zero. `momentum` is SGD's."""

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
        parameters = list(parameters)
        rate, decay = self.learning_rate, self.weight_decay
        fused = parameters[0].device.type in ("cpu", "cuda")
        if self.name == "sgd":
            return torch.optim.SGD(parameters, rate, momentum=self.momentum, weight_decay=decay, fused=fused)
        kind = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return kind(parameters, rate, weight_decay=decay, fused=fused)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step `step` (from 0) out of `steps`."""
        rising = self.warmup * steps
        if step < rising:
            return self.learning_rate * (step + 1) / (rising + 1)
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))
