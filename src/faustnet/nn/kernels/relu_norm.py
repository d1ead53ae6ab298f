"""ReLU and layer norm in one kernel."""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

WIDEST = 8192  # maximum row length of `relu_norm`
EPSILON = 1e-5  # added to the variance, as in PyTorch's layer norm


@triton.jit
def _relu_norm(hidden, bias, activation, means, scales, count, width, epsilon, SIZE: tl.constexpr):
    """Process one row: add the bias of its layer, ReLU, subtract the mean, divide by the standard deviation.

    Each layer has `count` rows."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    inside = at < width
    h = tl.load(hidden + row * width + at, mask=inside, other=0.0).to(tl.float32)
    h = tl.maximum(h + tl.load(bias + row // count * width + at, mask=inside, other=0.0).to(tl.float32), 0.0)
    mean = tl.sum(h, axis=0) / width
    centred = tl.where(inside, h - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + epsilon)
    tl.store(activation + row * width + at, centred * scale, mask=inside)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)


@triton.jit
def _relu_norm_backward(by_activation, activation, means, scales, by_hidden, width, SIZE: tl.constexpr):
    """Process one row: compute the gradient by `hidden` from the gradient by the activation."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    inside = at < width
    a = tl.load(activation + row * width + at, mask=inside, other=0.0).to(tl.float32)
    by_a = tl.load(by_activation + row * width + at, mask=inside, other=0.0).to(tl.float32)
    mean, scale = tl.load(means + row), tl.load(scales + row)
    by_h = (by_a - tl.sum(by_a, axis=0) / width - a * (tl.sum(by_a * a, axis=0) / width)) * scale
    dead = (-mean * scale).to(activation.dtype.element_ty).to(tl.float32)  # the activation of values that ReLU set to zero
    tl.store(by_hidden + row * width + at, tl.where(a > dead, by_h, 0.0), mask=inside)


@triton.jit
def _sum_rows(rows, sums, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Process some columns of one layer: sum its `count` rows."""
    layer = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < count)[:, None] & (column < width)[None, :]
        total += tl.load(rows + (layer * count + row)[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(sums + layer * width + column, tl.sum(total, axis=0), mask=column < width)


class _ReluNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, bias: Tensor, update: Callable[[Tensor], None] | None) -> Tensor:
        hidden, bias = hidden.contiguous(), bias.contiguous()
        count, width = hidden.shape[-2:]
        rows = hidden.numel() // width
        activation, statistics = torch.empty_like(hidden), hidden.new_empty(2, rows, dtype=torch.float32)
        size = triton.next_power_of_2(width)
        _relu_norm[(rows,)](hidden, bias, activation, *statistics, count, width, EPSILON, SIZE=size)
        ctx.save_for_backward(activation, statistics)
        ctx.update = update
        return activation

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_activation: Tensor) -> tuple[Tensor, Tensor | None, None]:
        activation, statistics = ctx.saved_tensors
        by_hidden, width = torch.empty_like(activation), activation.shape[-1]
        size = triton.next_power_of_2(width)
        _relu_norm_backward[(statistics.shape[1],)](
            by_activation.contiguous(), activation, *statistics, by_hidden, width, SIZE=size
        )
        if ctx.update is None:
            return by_hidden, sum_rows(by_hidden), None
        ctx.update(by_hidden)
        return by_hidden, None, None


def relu_norm(hidden: Tensor, bias: Tensor, update: Callable[[Tensor], None] | None = None) -> Tensor:
    """Return layer_norm(relu(hidden + bias)) without gain and offset, for rows of at most WIDEST values.

    The backward pass calls `update`, if it is given, with the gradient by `hidden`, and leaves the gradient by the bias to
    it. The gradient cannot be differentiated again. (…, R, width), (…, width) → (…, R, width)
    """
    return _ReluNorm.apply(hidden, bias, update)


def sum_rows(rows: Tensor) -> Tensor:
    """(…, R, width) → (…, width)"""
    *layers, count, width = rows.shape
    sums = rows.new_empty(*layers, width)
    _sum_rows[(triton.cdiv(width, 32), sums.numel() // width)](rows, sums, count, width, ROWS=128, COLUMNS=32)
    return sums
