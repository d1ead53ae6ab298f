"""Rows divided by their lengths."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from faustnet.nn.kernels.contrastive import SHORTEST


@triton.jit
def _unit_rows(rows, units, width, shortest, SIZE: tl.constexpr):
    """Process one row: divide it by its length, which is at least `shortest`."""
    first, at = tl.program_id(0).to(tl.int64) * width, tl.arange(0, SIZE)
    x = tl.load(rows + first + at, mask=at < width, other=0.0).to(tl.float32)
    length = tl.maximum(tl.sqrt(tl.sum(x * x, axis=0)), shortest, propagate_nan=tl.PropagateNan.ALL)
    tl.store(units + first + at, x / length, mask=at < width)


@triton.jit
def _unit_rows_backward(by_units, rows, by_rows, width, shortest, SIZE: tl.constexpr):
    """Process one row: subtract the part of the gradient along the row, unless it is shorter than `shortest`, and divide by
    the length."""
    first, at = tl.program_id(0).to(tl.int64) * width, tl.arange(0, SIZE)
    x = tl.load(rows + first + at, mask=at < width, other=0.0).to(tl.float32)
    by_unit = tl.load(by_units + first + at, mask=at < width, other=0.0).to(tl.float32)
    own = tl.sqrt(tl.sum(x * x, axis=0))
    length = tl.maximum(own, shortest, propagate_nan=tl.PropagateNan.ALL)
    unit = x / length
    along = tl.where(own < shortest, 0.0, tl.sum(by_unit * unit, axis=0))
    tl.store(by_rows + first + at, (by_unit - along * unit) / length, mask=at < width)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        units, width = torch.empty_like(rows), rows.shape[-1]
        size, warps = _program(width)
        _unit_rows[(rows.numel() // width,)](rows, units, width, SHORTEST, SIZE=size, num_warps=warps)
        ctx.save_for_backward(rows)
        return units

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_units: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        by_rows, width = torch.empty_like(rows), rows.shape[-1]
        size, warps = _program(width)
        _unit_rows_backward[(rows.numel() // width,)](
            by_units.contiguous(), rows, by_rows, width, SHORTEST, SIZE=size, num_warps=warps
        )
        return by_rows


def _program(width: int) -> tuple[int, int]:
    """Return the number of values and of warps of a program."""
    size = triton.next_power_of_2(width)
    return size, min(max(size // 256, 1), 8)


def unit_rows(rows: Tensor) -> Tensor:
    """Return `torch.nn.functional.normalize(rows, dim=-1)`, for rows of at most WIDEST values. Lengths are computed in
    float32. The gradient cannot be differentiated again. (…, width) → (…, width)"""
    return _UnitRows.apply(rows)
