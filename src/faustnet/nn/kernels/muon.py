"""Muon's update, without its matrix products."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # values per program
TILE = 64  # rows and columns per program


@triton.jit
def _look_ahead(gradient, momentum, factors, ahead, squares, length, share, SIZE: tl.constexpr):
    """Process some values of one matrix: update the momentum, unless the matrix is not active, and look ahead by Nesterov's
    rule. The sum of the squares is stored for each program."""
    matrix, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    within = part * SIZE + tl.arange(0, SIZE)
    inside, at = within < length, matrix * length + within
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(momentum + at, mask=inside, other=0.0)
    active = tl.load(factors + matrix * 4 + 3) != 0
    m = tl.where(active, g + (m - g) * share, m)
    tl.store(momentum + at, m, mask=inside)
    x = g + (m - g) * share
    tl.store(ahead + at, x, mask=inside)
    tl.store(squares + matrix * tl.num_programs(0) + part, tl.sum(x * x, axis=0))


@triton.jit
def _normalise(ahead, squares, length, parts, SIZE: tl.constexpr):
    """Process some values of one matrix: divide by the root of the sum of all squares."""
    matrix = tl.program_id(1).to(tl.int64)
    sums = tl.zeros((SIZE,), dtype=tl.float32)
    for start in range(0, parts, SIZE):
        part = start + tl.arange(0, SIZE)
        sums += tl.load(squares + matrix * parts + part, mask=part < parts, other=0.0)
    total = tl.sum(sums, axis=0)
    within = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside, at = within < length, matrix * length + within
    x = tl.load(ahead + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(ahead + at, x / tl.maximum(tl.sqrt(total), 1e-30), mask=inside)


@triton.jit
def _move(weight, change, factors, copy, length, size, COPY: tl.constexpr, SIZE: tl.constexpr):
    """Process some values of one matrix: decay, and subtract the change. Matrices that are not active stay as they are."""
    matrix = tl.program_id(1).to(tl.int64)
    rate = tl.load(factors + matrix * 4 + 3).to(tl.float32)
    if rate != 0:
        kept = tl.load(factors + matrix * 4 + 2).to(tl.float32)
        within = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        inside, at = within < length, matrix * length + within
        w = tl.load(weight + at, mask=inside) * kept
        w = w - rate * size * tl.load(change + at, mask=inside).to(tl.float32)
        tl.store(weight + at, w, mask=inside)
        if COPY:
            tl.store(copy + at, w, mask=inside)


@triton.jit
def _polynomial(squares, results, length, a, b, c, TILE: tl.constexpr):
    """Process one tile of one matrix: a·I + b·S + c·S·S."""
    matrix = tl.program_id(2).to(tl.int64) * length * length
    row, column = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    within_rows, within_columns = (row < length)[:, None], (column < length)[None, :]
    product = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, length, TILE):
        middle = start + tl.arange(0, TILE)
        left = squares + matrix + row[:, None] * length + middle[None, :]
        right = squares + matrix + middle[:, None] * length + column[None, :]
        inside = middle < length
        one = tl.load(left, mask=within_rows & inside[None, :], other=0.0)
        other = tl.load(right, mask=inside[:, None] & within_columns, other=0.0)
        product = tl.dot(one, other, product)
    at = matrix + row[:, None] * length + column[None, :]
    inside = within_rows & within_columns
    value = c * product + b * tl.load(squares + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(results + at, value + tl.where(row[:, None] == column[None, :], a, 0.0), mask=inside)


def polynomial(squares: Tensor, factors: tuple[float, float, float]) -> Tensor:
    """Return a·I + b·S + c·S² of n square matrices, for factors a, b and c. (n, d, d) → (n, d, d)"""
    results, length = torch.empty_like(squares), squares.shape[-1]
    tiles = triton.cdiv(length, TILE)
    _polynomial[(tiles, tiles, len(squares))](squares, results, length, *factors, TILE=TILE)
    return results


class LookAhead:
    """What n matrices of one shape look ahead to, by Nesterov's rule, divided by their Frobenius norms."""

    def __init__(self, n: int, outputs: int, inputs: int, device: torch.device):
        self.parts = triton.cdiv(outputs * inputs, BLOCK)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # Triton's interpreter multiplies no bfloat16
        self.matrices = torch.empty(n, outputs, inputs, dtype=dtype, device=device)
        self.squares = torch.empty(n, self.parts, device=device)

    def write(self, first: int, gradient: Tensor, momentum: Tensor, factors: Tensor, share: float) -> None:
        """Update the momentum of some matrices in place, starting with number `first`, and write what they look ahead to.
        All are without gaps in one order of memory. (m, outputs, …), (m, outputs, …), (m, 4): see `Optimiser.factors`"""
        there = slice(first, first + len(gradient))
        _look_ahead[(self.parts, len(gradient))](
            gradient, momentum, factors, self.matrices[there], self.squares[there], gradient[0].numel(), share, SIZE=BLOCK
        )

    def normalise(self) -> None:
        """Divide all matrices by their norms, when all are written; a matrix of zeros is unchanged."""
        length, shape = self.matrices[0].numel(), (self.parts, len(self.matrices))
        _normalise[shape](self.matrices, self.squares, length, self.parts, SIZE=BLOCK)


def move(weight: Tensor, change: Tensor, factors: Tensor, size: float, copy: Tensor) -> None:
    """Move m matrices by changes of this size in place, as `Optimiser.update` does. All are without gaps in one order of
    memory. (m, outputs, …), (m, outputs, …), (m, 4)"""
    length = weight[0].numel()
    _move[(triton.cdiv(length, BLOCK), len(weight))](
        weight, change, factors, copy, length, size, COPY=copy is not weight, SIZE=BLOCK
    )
