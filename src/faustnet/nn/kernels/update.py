"""The optimiser update."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # values per program of `update`


class Rule(NamedTuple):
    """An update: SGD, SGD with momentum or Adam, for 0, 1 or 2 tensors of state per weight."""

    decay: float  # of the weights
    decoupled: bool  # whether the weights decay directly, not through the gradient
    momentum: float  # of SGD
    betas: tuple[float, float]  # of Adam
    epsilon: float  # of Adam

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the kernels need, without `decoupled`."""
        return self.decay, self.momentum, 1 - self.betas[0], self.betas[1], 1 - self.betas[1], self.epsilon


@triton.jit
def _update(
    weight, gradient, first, second, factors, copy, length,
    decay, momentum, new1, beta2, new2, epsilon,
    MEMORY: tl.constexpr, DECOUPLED: tl.constexpr, COPY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Process some values of one layer: the optimiser step, with every value read and written once."""
    layer = tl.program_id(1).to(tl.int64)
    if tl.load(factors + layer * 4 + 3) != 0:
        size = tl.load(factors + layer * 4).to(tl.float32)
        root = tl.load(factors + layer * 4 + 1).to(tl.float32)
        kept = tl.load(factors + layer * 4 + 2).to(tl.float32)
        within = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        inside, at = within < length, layer * length + within
        w = tl.load(weight + at, mask=inside)
        g = tl.load(gradient + at, mask=inside).to(tl.float32)
        if DECOUPLED:
            w = w * kept
        else:
            g = g + decay * w
        if MEMORY == 0:
            w = w - size * g
        if MEMORY == 1:
            m = tl.load(first + at, mask=inside) * momentum + g
            w = w - size * m
            tl.store(first + at, m, mask=inside)
        if MEMORY == 2:
            m = tl.load(first + at, mask=inside)
            m = m + (g - m) * new1
            v = tl.load(second + at, mask=inside) * beta2 + g * g * new2
            w = w - size * m / (tl.sqrt(v) / root + epsilon)
            tl.store(first + at, m, mask=inside)
            tl.store(second + at, v, mask=inside)
        tl.store(weight + at, w, mask=inside)
        if COPY:
            tl.store(copy + at, w, mask=inside)


def update(weight: Tensor, gradient: Tensor, memory: Sequence[Tensor], factors: Tensor, copy: Tensor, rule: Rule) -> None:
    """Take one optimiser step for n layers in place.

    The new weights are also written to `copy`, unless it is `weight` itself. Layers whose last factor is 0 are left
    unchanged. All tensors (n, …), except factors (n, 4), float64: see `Optimiser.factors`. Weights, memory and copy have the
    same order of memory, without gaps.
    """
    layers, length = len(weight), weight[0].numel()
    if gradient.stride() != weight.stride():  # values are found by their place in memory
        gradient = torch.empty_like(weight, dtype=gradient.dtype).copy_(gradient)
    first, second = (*memory, weight, weight)[:2]
    _update[(triton.cdiv(length, BLOCK), layers)](
        weight, gradient, first, second, factors, copy, length, *rule.numbers,
        MEMORY=len(memory), DECOUPLED=rule.decoupled, COPY=copy is not weight, SIZE=BLOCK,
    )  # fmt: skip
