"""Settings of the optimiser, and the learning rate of each step."""

import math
from dataclasses import dataclass

from faustnet.errors import FaustnetError, require
from faustnet.training.optimisers.base import Optimiser
from faustnet.training.optimisers.muon import Muon
from faustnet.training.optimisers.standard import SGD, Adam, AdamW

OPTIMISERS: dict[str, type[Optimiser]] = {optimiser.name: optimiser for optimiser in (Adam, AdamW, SGD, Muon)}
DECAYS = ("cosine", "constant")


@dataclass(frozen=True)
class OptimiserSettings:
    """Optimiser and learning-rate schedule.

    Args:
        name: "adam", "adamw", "sgd" or "muon". Muon updates matrices; AdamW updates the other parameters.
        learning_rate: Peak learning rate.
        decay: Learning rate after the warm-up: "cosine" (falls to zero along a half cosine) or "constant".
        warmup: Fraction of the steps in which the learning rate rises linearly from zero.
        weight_decay: L2 penalty for adam and sgd; decoupled for adamw and muon.
        momentum: Momentum of sgd and muon.
    """

    name: str = "adam"
    learning_rate: float = 1e-3
    decay: str = "cosine"
    warmup: float = 0.0
    weight_decay: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.name not in OPTIMISERS:
            raise FaustnetError(f"optimiser.name must be {' or '.join(OPTIMISERS)}, got {self.name!r}.")
        if self.decay not in DECAYS:
            raise FaustnetError(f"optimiser.decay must be {' or '.join(DECAYS)}, got {self.decay!r}.")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise FaustnetError(f"optimiser.learning_rate must be positive, got {self.learning_rate}: try 0.001.")
        for key in ("warmup", "momentum"):
            value = getattr(self, key)
            require(0 <= value < 1, f"optimiser.{key} must be at least 0 and below 1, got {value}.")
        require(self.weight_decay >= 0, f"optimiser.weight_decay must be 0 or more, got {self.weight_decay}.")

    def create(self) -> Optimiser:
        """Return the optimiser called `name`."""
        return OPTIMISERS[self.name](self)

    def rates(self, epoch: int, epochs: int, batches: int) -> list[float]:
        """Return the learning rate of each batch of an epoch, numbered from 0."""
        return [self.rate(epoch * batches + batch, epochs * batches) for batch in range(batches)]

    def used_rate(self, planned: float) -> float:
        """Return the learning rate of the latest step, for which this one was planned."""
        return planned

    def end_epoch(self, loss: float) -> None:
        """Note that an epoch is over. The learning rate depends on the step only."""

    def restart(self) -> None:
        """Note that the next layer of the greedy schedule begins."""

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step `step` (from 0) out of `steps`."""
        rising = self.warmup * steps
        if step < rising:
            return self.learning_rate * (step + 1) / (rising + 1)
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))
