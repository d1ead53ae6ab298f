"""Muon: a matrix moves by the nearest orthogonal one to its momentum, so that all of its directions move alike."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, cycle
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from faustnet.nn.side_stream import SideStream
from faustnet.system.devices import has_triton
from faustnet.training.optimisers.base import Optimiser, adam_change
from faustnet.training.optimisers.standard import adam_step
from faustnet.training.optimisers.updates import Trained

if TYPE_CHECKING:
    from faustnet.training.optimisers.settings import OptimiserSettings

ROUNDS = 5
POLYNOMIAL = (3.4445, -4.7750, 2.0315)  # drives singular values to about 1 in five rounds
STREAMS = 4  # in which matrices of different shapes are updated at the same time
ADAMS_SIZE = 0.2  # about the root mean square of what Adam changes, at a learning rate of 1


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices with nearly the same directions and singular values of about 1: U·Vᵀ of their U·S·Vᵀ, by Newton and
    Schulz's iteration. (n, outputs, inputs)"""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + torch.finfo(x.dtype).tiny)
    return _iterated(x).to(matrices.dtype)


def _iterated(x: Tensor, polynomial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Newton and Schulz's iteration, x ← a·x + b·s·x + c·s²·x with s = x·xᵀ, from matrices with a norm of 1. `polynomial`
    computes a + b·s + c·s². (n, outputs, inputs)"""
    a, b, c = POLYNOMIAL
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(ROUNDS):
        square = torch.bmm(x, x.mT)
        if polynomial is not None:
            x = torch.bmm(polynomial(square), x)
        else:
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _size(outputs: int, inputs: int) -> float:
    """Return the factor of an orthogonal matrix that makes a change about as large as one by Adam, so that one learning
    rate and weight decay suits both."""
    return ADAMS_SIZE * max(outputs, inputs) ** 0.5


def _scaled_orthogonal(ahead: Tensor) -> Tensor:
    """Return by what matrices change, at a learning rate of 1. What has more dimensions is a matrix all the same.
    (n, outputs, …) → (n, outputs, …)"""
    flat = ahead.flatten(2)
    return orthogonalised(flat).mul_(_size(*flat.shape[1:])).view_as(ahead)


class Matrices(NamedTuple):
    """m matrices, or what has more dimensions: their weights, and all that an update of Muon needs."""

    weight: Tensor  # (m, outputs, …)
    gradient: Tensor  # the same shape, as all of these
    momentum: Tensor
    factors: Tensor  # (m, 4): see `Optimiser.factors`
    copy: Tensor  # where the new weights are also written, or the weights themselves

    def in_memory_order(self) -> "Matrices | None":
        """Return views without gaps in the order of memory, for kernels on a GPU; the order of a matrix's inputs does not
        matter. None if there are no such views, or no such kernels."""
        weight, gradient, momentum, factors, copy = self
        if weight.dtype != torch.float32 or not has_triton(weight.device):
            return None
        dimensions = range(weight.dim())
        for order in (dimensions, (0, 1, *dimensions[3:], 2)):  # as they are, or with the channels last
            weight, gradient, momentum, copy = (part.permute(*order) for part in (self.weight, *self[1:3], self.copy))
            if weight.is_contiguous() and momentum.is_contiguous() and copy.is_contiguous():
                copy = weight if self.copy is self.weight else copy
                return Matrices(weight, gradient.contiguous(), momentum, factors, copy)
        return None


def _move_by_kernels(parts: Sequence[Matrices], share: float) -> None:
    """Move matrices of one shape, in the order of their memory, all together."""
    from faustnet.nn import kernels

    outputs, inputs = parts[0].weight.shape[1], parts[0].weight[0, 0].numel()
    numbers = list(accumulate((len(part.weight) for part in parts), initial=0))
    ahead = kernels.LookAhead(numbers[-1], outputs, inputs, parts[0].weight.device)
    for part, first in zip(parts, numbers, strict=False):
        ahead.write(first, part.gradient, part.momentum, part.factors, share)
    ahead.normalise()
    changes = _iterated(ahead.matrices, lambda squares: kernels.polynomial(squares, POLYNOMIAL)).contiguous()
    for part, first in zip(parts, numbers, strict=False):
        own = changes[first : first + len(part.weight)]
        kernels.move(part.weight, own, part.factors, _size(outputs, inputs), part.copy)


class Muon(Optimiser):
    """Muon for parameters of two dimensions and more, AdamW for the others."""

    name: ClassVar[str] = "muon"
    decoupled: ClassVar[bool] = True
    has_kernel: ClassVar[bool] = True
    updates_together: ClassVar[bool] = True

    def __init__(self, settings: "OptimiserSettings"):
        super().__init__(settings)
        self.sides: list[SideStream] = []  # for matrices of different shapes

    def step(self, trained: Sequence[Trained], rate: Tensor) -> None:
        """Update all matrices of one shape together, and vectors by AdamW. Nothing here waits for the device."""
        matrices = [one for one in trained if one.weight.dim() > 1]
        vectors = [one for one in trained if one.weight.dim() <= 1]
        if matrices:
            self._move_matrices(matrices, rate)
        if vectors:
            adam_step(vectors, rate, self.settings.weight_decay, decoupled=True)

    def _move_matrices(self, trained: Sequence[Trained], rate: Tensor) -> None:
        """Muon, by kernels where there are any."""
        torch._foreach_add_([state["step"] for _, _, state in trained], 1)
        factors = torch.stack([rate, rate, 1 - rate * self.settings.weight_decay, rate]).unsqueeze(0)
        alike = defaultdict[torch.Size, list[Matrices]](list)
        others: list[Trained] = []
        for one in trained:
            weight, gradient, momentum = (part.unsqueeze(0) for part in (*one[:2], one.state["momentum_buffer"]))
            if ordered := Matrices(weight, gradient, momentum, factors, weight).in_memory_order():
                alike[ordered.weight.shape].append(ordered)
            else:
                others.append(one)
        if not self.sides:
            self.sides = [SideStream(rate.device) for _ in range(STREAMS)]
        largest_first = sorted(alike.values(), key=lambda parts: -len(parts) * parts[0].weight.numel())
        for parts, side in zip(largest_first, cycle(self.sides), strict=False):
            side.keep(factors, *(part.gradient for part in parts))
            with side.fork():
                _move_by_kernels(parts, self.settings.momentum)
        for side in self.sides:
            side.join()
        if others:
            self._move_others(others, rate)

    def _move_others(self, trained: Sequence[Trained], rate: Tensor) -> None:
        """Muon by torch's operations. Everything but the iteration is one operation for all matrices."""
        weights, gradients = [one.weight for one in trained], [one.gradient for one in trained]
        momenta = [one.state["momentum_buffer"] for one in trained]
        share, decay = self.settings.momentum, self.settings.weight_decay
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

    def slots(self, dimensions: int) -> tuple[str, ...]:
        return ("momentum_buffer",) if dimensions > 1 else ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def update(self, weight: Tensor, gradient: Tensor, state: Sequence[Tensor], factors: Tensor, copy: Tensor) -> None:
        if weight.dim() <= 2:  # vectors of n layers
            super().update(weight, gradient, state, factors, copy)
            return
        (momentum,), share = state, self.settings.momentum
        if ordered := Matrices(weight, gradient, momentum, factors, copy).in_memory_order():
            _move_by_kernels([ordered], share)
            return
        gradient, factors = gradient.to(weight.dtype), factors.to(weight.dtype)
        _, _, kept, rate = (factor.view(-1, *[1] * (weight.dim() - 1)) for factor in factors.unbind(dim=1))
        active = (rate > 0).to(rate.dtype)
        momentum.lerp_(gradient, active * (1 - share))
        change = _scaled_orthogonal(torch.lerp(gradient, momentum, share))
        weight.mul_(1 - active * (1 - kept)).sub_(rate * change)
        if copy is not weight:
            copy.copy_(weight)

    def _change(self, gradient: Tensor, active: Tensor, root: Tensor, *state: Tensor) -> Tensor:
        return adam_change(gradient, active, root, *state)
