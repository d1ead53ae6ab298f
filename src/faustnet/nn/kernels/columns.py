"""Matrices that are stored column by column, for products that sum over their rows.

The fastest TF32 kernels of cuBLAS for Hopper GPUs need both matrices of a product to be stored along the dimension that is
summed over. In the product that is the gradient of a weight, that is the dimension of the rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ALIGNED = 8  # columns begin at multiples of so many values: 32 bytes, what one access to memory reads
ROWS, COLUMNS = 64, 64  # per program


def prefers_columns(matrices: Tensor) -> bool:
    """Return whether products that sum over the rows of such matrices are faster if these are stored column by column."""
    return (
        matrices.is_cuda
        and matrices.dtype == torch.float32
        and torch.backends.cuda.matmul.fp32_precision == "tf32"
        and torch.cuda.get_device_capability(matrices.device)[0] == 9
    )


def empty_columns(matrices: Tensor) -> Tensor:
    """Return memory for matrices of this shape, stored column by column. (…, R, width) → (…, R, width)"""
    *layers, count, width = matrices.shape
    padded = triton.cdiv(count, ALIGNED) * ALIGNED
    return matrices.new_empty(*layers, width, padded)[..., :count].mT


@triton.jit
def _columns(rows, columns, count, width, column_stride, layer_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Process some rows and columns of one layer: copy them."""
    layer = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < width)[None, :]
    tile = tl.load(rows + layer * count * width + row[:, None] * width + column[None, :], mask=inside)
    tl.store(columns + layer * layer_stride + column[None, :] * column_stride + row[:, None], tile, mask=inside)


def stored_by_columns(matrices: Tensor) -> Tensor:
    """Return matrices that are stored column by column: a copy, unless they are. (n, R, width) → (n, R, width)"""
    if matrices.stride(-2) == 1:
        return matrices
    matrices = matrices.contiguous()
    layers, count, width = matrices.shape
    found = empty_columns(matrices)
    grid = triton.cdiv(count, ROWS), triton.cdiv(width, COLUMNS), layers
    _columns[grid](matrices, found, count, width, found.stride(2), found.stride(0), ROWS=ROWS, COLUMNS=COLUMNS, num_warps=8)
    return found
