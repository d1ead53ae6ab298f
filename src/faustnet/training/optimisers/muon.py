"""Muon: a matrix moves by the nearest orthogonal one to its momentum, so that all of its directions move alike."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from faustnet.training.optimisers.base import BETAS, EPSILON, Optimiser, adam_change
from faustnet.training.optimisers.standard import fused

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
    return _scaled_orthogonal(torch.lerp(gradient, momentum, share))


def _scaled_orthogonal(ahead: Tensor) -> Tensor:
    """(n, outputs, …) → (n, outputs, …)"""
    flat = ahead.flatten(2)
    return orthogonalised(flat).mul_(ADAMS_SIZE * max(flat.shape[-2:]) ** 0.5).view_as(ahead)


class Muon(Optimiser):
    """Muon for parameters of two dimensions and more, AdamW for the others."""

    name: ClassVar[str] = "muon"
    decoupled: ClassVar[bool] = True
    updates_together: ClassVar[bool] = True

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
            given = [parameter for parameter in group["params"] if parameter.grad is not None]
            matrices = [parameter for parameter in given if parameter.dim() > 1]
            vectors = [parameter for parameter in given if parameter.dim() <= 1]
            if matrices:
                self._move_matrices(matrices, group["lr"], group["momentum"], group["weight_decay"])
            if vectors:
                self._move_vectors(vectors, group["lr"], group["weight_decay"])

    def _move_matrices(self, parameters: list[nn.Parameter], rate: Tensor, share: float, decay: float) -> None:
        """Muon. Everything but the iteration is one operation for all matrices."""
        torch._foreach_add_([self._memory(parameter)["step"] for parameter in parameters], 1)
        weights: list[Tensor] = [parameter.detach() for parameter in parameters]
        gradients = [_gradient(parameter) for parameter in parameters]
        momenta = [self._memory(parameter)["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - share)
        ahead = torch._foreach_lerp(gradients, momenta, share)
        alike = defaultdict[torch.Size, list[int]](list)
        for number, weight in enumerate(weights):
            alike[weight.shape].append(number)
        changes = list(ahead)
        for numbers in alike.values():
            moved = _scaled_orthogonal(torch.stack([ahead[number] for number in numbers])).mul_(rate)
            for number, change in zip(numbers, moved, strict=True):
                changes[number] = change
        if decay:
            torch._foreach_mul_(weights, 1 - rate * decay)
        torch._foreach_sub_(weights, changes)

    def _move_vectors(self, parameters: list[nn.Parameter], rate: Tensor, decay: float) -> None:
        """AdamW, as torch has it."""
        memories = [self._memory(parameter) for parameter in parameters]
        adamw(
            [parameter.detach() for parameter in parameters],
            [_gradient(parameter) for parameter in parameters],
            [memory["exp_avg"] for memory in memories],
            [memory["exp_avg_sq"] for memory in memories],
            [],
            [memory["step"] for memory in memories],
            fused=fused(rate),
            capturable=rate.device.type == "cuda",
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=decay,
            eps=EPSILON,
            maximize=False,
        )

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
