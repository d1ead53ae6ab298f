"""ReLU and layer norm in one kernel."""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from faustnet.nn.kernels import columns

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
def _relu_norm_backward(
    by_activation, activation, means, scales, by_hidden, count, width,
    layer_stride, row_stride, column_stride, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Process some rows of one layer: compute the gradient by `hidden` from the gradient by the activation."""
    layer, within, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    real, row = within < count, layer * count + within
    inside = real[:, None] & (at < width)[None, :]
    place = row[:, None] * width + at[None, :]
    a = tl.load(activation + place, mask=inside, other=0.0).to(tl.float32)
    by_a = tl.load(by_activation + place, mask=inside, other=0.0).to(tl.float32)
    mean, scale = tl.load(means + row, mask=real, other=0.0), tl.load(scales + row, mask=real, other=0.0)
    sums, along = tl.sum(by_a, axis=1) / width, tl.sum(by_a * a, axis=1) / width
    by_h = (by_a - sums[:, None] - a * along[:, None]) * scale[:, None]
    dead = (-mean * scale).to(activation.dtype.element_ty).to(tl.float32)  # the activation of values that ReLU set to zero
    by_h = tl.where(a > dead[:, None], by_h, 0.0)
    place = layer * layer_stride + within[:, None] * row_stride + at[None, :] * column_stride
    tl.store(by_hidden + place, by_h, mask=inside)


@triton.jit
def _sum_rows(rows, sums, count, width, layer_stride, row_stride, column_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Process some columns of one layer: sum its `count` rows."""
    layer = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < count)[:, None] & (column < width)[None, :]
        place = layer * layer_stride + row[:, None] * row_stride + column[None, :] * column_stride
        total += tl.load(rows + place, mask=inside, other=0.0)
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
        columnwise = ctx.update is not None and columns.prefers_columns(activation)  # only products over all rows follow
        by_hidden = (columns.empty_columns if columnwise else torch.empty_like)(activation)
        count, width = activation.shape[-2:]
        rows = columns.ALIGNED if columnwise else 1  # per program
        _relu_norm_backward[(triton.cdiv(count, rows), statistics.shape[1] // count)](
            by_activation.contiguous(), activation, *statistics, by_hidden, count, width, *_strides(by_hidden),
            ROWS=rows, SIZE=triton.next_power_of_2(width), num_warps=8 if columnwise else 4,
        )  # fmt: skip
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
    grid = triton.cdiv(width, 32), sums.numel() // width
    _sum_rows[grid](rows, sums, count, width, *_strides(rows), ROWS=128, COLUMNS=32)
    return sums


def _strides(rows: Tensor) -> tuple[int, int, int]:
    """Return the strides of layers, rows and columns. (…, R, width)"""
    return rows.stride(-3) if rows.dim() > 2 else 0, rows.stride(-2), rows.stride(-1)
