"""Adam, AdamW and SGD, as torch has them."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from faustnet.training.optimisers.base import BETAS, EPSILON, Optimiser, adam_change
from faustnet.training.optimisers.updates import Trained


def has_fused(rate: Tensor) -> bool:
    """Whether torch has fused optimisers for the device."""
    return rate.device.type in ("cpu", "cuda")


def adam_step(trained: Sequence[Trained], rate: Tensor, decay: float, *, decoupled: bool) -> None:
    """Take a step of torch's Adam, or of AdamW if the weight decay is `decoupled`."""
    weights, gradients, states = map(list, zip(*trained, strict=True))
    means, squares, steps = ([state[word] for state in states] for word in ("exp_avg", "exp_avg_sq", "step"))
    adam(
        weights,
        gradients,
        means,
        squares,
        [],
        steps,
        fused=has_fused(rate),
        capturable=rate.device.type == "cuda",
        decoupled_weight_decay=decoupled,
        amsgrad=False,
        beta1=BETAS[0],
        beta2=BETAS[1],
        lr=rate,
        weight_decay=decay,
        eps=EPSILON,
        maximize=False,
    )


class Adam(Optimiser):
    name: ClassVar[str] = "adam"
    decoupled: ClassVar[bool] = False
    has_kernel: ClassVar[bool] = True

    def step(self, trained: Sequence[Trained], rate: Tensor) -> None:
        adam_step(trained, rate, self.settings.weight_decay, decoupled=self.decoupled)

    def slots(self, dimensions: int) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _change(self, gradient: Tensor, active: Tensor, root: Tensor, *state: Tensor) -> Tensor:
        return adam_change(gradient, active, root, *state)


class AdamW(Adam):
    name: ClassVar[str] = "adamw"
    decoupled: ClassVar[bool] = True


class SGD(Optimiser):
    name: ClassVar[str] = "sgd"
    decoupled: ClassVar[bool] = False
    has_kernel: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = False

    def step(self, trained: Sequence[Trained], rate: Tensor) -> None:
        if self.decoupled:  # torch has no such SGD
            super().step(trained, rate)
            return
        weights, gradients, states = map(list, zip(*trained, strict=True))
        sgd(
            weights,
            gradients,
            [state.get("momentum_buffer") for state in states],
            fused=has_fused(rate),
            weight_decay=self.settings.weight_decay,
            momentum=self.settings.momentum,
            lr=rate,  # type: ignore[arg-type]  # a tensor too
            dampening=0,
            nesterov=False,
            maximize=False,
        )

    def slots(self, dimensions: int) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.settings.momentum else ()

    def _bias_corrections(self, rates: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return rates, torch.ones_like(rates)

    def _change(self, gradient: Tensor, active: Tensor, root: Tensor, *state: Tensor) -> Tensor:
        if not state:
            return gradient.clone()
        (momentum,) = state
        momentum.mul_(1 - active * (1 - self.settings.momentum)).add_(active * gradient)
        return momentum.clone()
