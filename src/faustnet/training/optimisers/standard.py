"""Adam, AdamW and SGD, as torch has them."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from faustnet.training.optimisers.base import Optimiser, adam_change


def fused(rate: Tensor) -> bool:
    """Whether torch has fused optimisers for the device."""
    return rate.device.type in ("cpu", "cuda")


class Adam(Optimiser):
    name: ClassVar[str] = "adam"
    decoupled: ClassVar[bool] = False
    torch_class: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam

    def _torch_optimiser(self, parameters: list[nn.Parameter], rate: Tensor) -> torch.optim.Optimizer:
        decay, capturable = self.settings.weight_decay, rate.device.type == "cuda"
        return self.torch_class(parameters, rate, weight_decay=decay, fused=fused(rate), capturable=capturable)

    def slots(self, dimensions: int) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _change(self, gradient: Tensor, active: Tensor, root: Tensor, *state: Tensor) -> Tensor:
        return adam_change(gradient, active, root, *state)


class AdamW(Adam):
    name: ClassVar[str] = "adamw"
    decoupled: ClassVar[bool] = True
    torch_class: ClassVar[type[torch.optim.Adam]] = torch.optim.AdamW


class SGD(Optimiser):
    name: ClassVar[str] = "sgd"
    decoupled: ClassVar[bool] = False
    counts_steps: ClassVar[bool] = False

    def _torch_optimiser(self, parameters: list[nn.Parameter], rate: Tensor) -> torch.optim.Optimizer:
        settings = self.settings
        return torch.optim.SGD(
            parameters, rate, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=fused(rate)
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
