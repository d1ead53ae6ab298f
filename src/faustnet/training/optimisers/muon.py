"""Muon: a matrix moves by the nearest orthogonal one to its momentum, so that all of its directions move alike."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from faustnet.training.optimisers.base import BETAS, EPSILON, Optimiser, adam_change

ROUNDS = 5
POLYNOMIAL = (3.4445, -4.7750, 2.0315)  # drives singular values to about 1 in five rounds
ADAMS_SIZE = 0.2  # about the root mean square of what Adam changes, at a learning rate of 1


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices with nearly the same directions and singular values of about 1: U·Vᵀ of their U·S·Vᵀ, by Newton and
    Schulz's iteration. (n, outputs, inputs)"""
    a, b, c = POLYNOMIAL
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    if x.device.type == "cuda":
        x = x.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + torch.finfo(x.dtype).tiny)
    for _ in range(ROUNDS):
        square = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def muon_change(momentum: Tensor, gradient: Tensor, share: float) -> Tensor:
    """By what matrices change, at a learning rate of 1: with Nesterov's look ahead, and about as much as by Adam, so that
    one learning rate and weight decay suits both. What has more dimensions is a matrix all the same. (n, outputs, …)"""
    ahead = torch.lerp(gradient, momentum, share)
    flat = ahead.flatten(2)
    size = ADAMS_SIZE * max(flat.shape[-2:]) ** 0.5
    return (size * orthogonalised(flat)).view_as(ahead)


class Muon(Optimiser):
    """Muon for parameters of two dimensions and more, AdamW for the others."""

    name: ClassVar[str] = "muon"
    decoupled: ClassVar[bool] = True

    def _torch_optimiser(self, parameters: list[nn.Parameter], rate: Tensor) -> torch.optim.Optimizer:
        return TorchMuon(parameters, rate, self.settings.momentum, self.settings.weight_decay)

    def slots(self, dimensions: int) -> tuple[str, ...]:
        return ("momentum_buffer",) if dimensions > 1 else ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def update(self, weight: Tensor, gradient: Tensor, state: Sequence[Tensor], factors: Tensor, copy: Tensor) -> None:
        if weight.dim() <= 2:  # vectors of n layers
            super().update(weight, gradient, state, factors, copy)
            return
        gradient, (momentum,), share = gradient.to(weight.dtype), state, self.settings.momentum
        factors = factors.to(weight.dtype)
        _, _, kept, rate = (factor.view(-1, *[1] * (weight.dim() - 1)) for factor in factors.unbind(dim=1))
        active = (rate > 0).to(rate.dtype)
        momentum.lerp_(gradient, active * (1 - share))
        weight.mul_(1 - active * (1 - kept)).sub_(rate * muon_change(momentum, gradient, share))
        if copy is not weight:
            copy.copy_(weight)

    def _change(self, gradient: Tensor, active: Tensor, root: Tensor, *state: Tensor) -> Tensor:
        return adam_change(gradient, active, root, *state)


class TorchMuon(torch.optim.Optimizer):
    """Muon for parameters of two dimensions and more, which are (outputs, …), those of one shape together; AdamW for the
    others. The learning rate is a tensor, and nothing here waits for the device."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: Tensor, momentum: float, weight_decay: float):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "capturable": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate, alike = group["lr"], defaultdict[torch.Size, list[nn.Parameter]](list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._memory(parameter)["step"] += 1
                    parameter.mul_(1 - rate * group["weight_decay"])
                    alike[parameter.shape].append(parameter)
            for shape, parameters in alike.items():
                change = self._muon if len(shape) > 1 else self._adam
                for parameter, moved in zip(parameters, change(parameters, group["momentum"]), strict=True):
                    parameter.sub_(rate * moved)

    def _muon(self, parameters: list[nn.Parameter], share: float) -> Iterable[Tensor]:
        momenta = [self._memory(p)["momentum_buffer"].lerp_(_gradient(p), 1 - share) for p in parameters]
        return muon_change(torch.stack(momenta), torch.stack([_gradient(p) for p in parameters]), share)

    def _adam(self, parameters: list[nn.Parameter], share: float) -> Iterable[Tensor]:
        for parameter in parameters:
            memory = self._memory(parameter)
            yield _adam_step(memory["exp_avg"], memory["exp_avg_sq"], _gradient(parameter), memory["step"])

    def _memory(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        memory = self.state[parameter]
        if not memory:
            memory["step"] = torch.zeros((), device=parameter.device)
            for word in ("momentum_buffer",) if parameter.dim() > 1 else ("exp_avg", "exp_avg_sq"):
                memory[word] = torch.zeros_like(parameter)
        return memory


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _adam_step(mean: Tensor, square: Tensor, gradient: Tensor, step: Tensor) -> Tensor:
    """Update Adam's two moments and return the change of a parameter at a learning rate of 1."""
    mean.lerp_(gradient, 1 - BETAS[0])
    square.lerp_(gradient.square(), 1 - BETAS[1])
    step = step.to(gradient.dtype)
    root = (square / (1 - BETAS[1] ** step)).sqrt()
    return mean / (1 - BETAS[0] ** step) / (root + EPSILON)
