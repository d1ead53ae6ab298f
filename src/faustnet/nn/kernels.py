"""GPU kernels in Triton: ReLU with layer norm, the tuplet loss, and the optimiser update.

Triton is installed with the GPU builds of PyTorch, so this module is imported only where `devices.has_triton` is true.
All kernels compute in float32; their inputs and outputs may have another type. With TRITON_INTERPRET=1 set before Triton
is imported, they run on CPU tensors too, slowly, which the tests use.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1024  # values per program of `update`
WIDEST = 8192  # maximum row length of `relu_norm`
MOST_REFERENCES = 128  # maximum number of references of `reference_tuplet`
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
    def forward(ctx: Any, hidden: Tensor, bias: Tensor) -> Tensor:
        hidden, bias = hidden.contiguous(), bias.contiguous()
        count, width = hidden.shape[-2:]
        rows = hidden.numel() // width
        activation, statistics = torch.empty_like(hidden), hidden.new_empty(2, rows, dtype=torch.float32)
        size = triton.next_power_of_2(width)
        _relu_norm[(rows,)](hidden, bias, activation, *statistics, count, width, EPSILON, SIZE=size)
        ctx.save_for_backward(activation, statistics)
        return activation

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_activation: Tensor) -> tuple[Tensor, Tensor]:
        activation, statistics = ctx.saved_tensors
        *layers, count, width = activation.shape
        by_hidden, by_bias = torch.empty_like(activation), activation.new_empty(*layers, width)
        size = triton.next_power_of_2(width)
        _relu_norm_backward[(statistics.shape[1],)](
            by_activation.contiguous(), activation, *statistics, by_hidden, width, SIZE=size
        )
        blocks = triton.cdiv(width, 16), by_bias.numel() // width
        _sum_rows[blocks](by_hidden, by_bias, count, width, ROWS=32, COLUMNS=16)
        return by_hidden, by_bias


def relu_norm(hidden: Tensor, bias: Tensor) -> Tensor:
    """Return layer_norm(relu(hidden + bias)) without gain and offset, for rows of at most WIDEST values.

    The gradient cannot be differentiated again. (…, R, width), (…, width) → (…, R, width)
    """
    return _ReluNorm.apply(hidden, bias)


@triton.jit
def _tile(matrix, rows, real, columns, width):
    """Load these rows and columns of a matrix (…, width); zero for rows that are not `real` and columns outside."""
    inside = real[:, None] & (columns < width)[None, :]
    return tl.load(matrix + rows[:, None] * width + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _tuplet(
    embedding, labels, losses, by_embedding, by_products,
    anchors, references, values, scale, smoothing,
    ANCHORS: tl.constexpr, REFERENCES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Process some anchors of one layer: their losses, and the gradients by the anchors and by their products with the
    references. A label that is not the number of a reference makes them NaN."""
    layer = tl.program_id(1).to(tl.int64)
    at, to = tl.program_id(0) * ANCHORS + tl.arange(0, ANCHORS), tl.arange(0, REFERENCES)
    real, known = at < anchors, to < references
    embedding += layer * (anchors + references) * values
    by_embedding += layer * (anchors + references) * values
    products = tl.zeros((ANCHORS, REFERENCES), dtype=tl.float32)
    squares = tl.zeros((REFERENCES,), dtype=tl.float32)
    for start in range(0, values, VALUES):
        v = start + tl.arange(0, VALUES)
        a = _tile(embedding, at, real, v, values)
        r = _tile(embedding, anchors + to, known, v, values)
        products = tl.dot(a, tl.trans(r), products, input_precision="tf32x3")
        squares += tl.sum(r * r, axis=1)
    z = tl.where(known[None, :], (2 * products - squares[None, :]) * scale, float("-inf"))
    z -= tl.max(z, axis=1)[:, None]
    p = tl.exp(z)
    label = tl.load(labels + layer * anchors + at, mask=real, other=0)
    total = tl.where((label >= 0) & (label < references), tl.sum(p, axis=1), float("nan"))[:, None]
    p = p / total
    target = tl.where(to[None, :] == label[:, None], 1 - smoothing, 0.0) + smoothing / references
    target = tl.where(known[None, :], target, 0.0)
    log_p = tl.where(known[None, :], z - tl.log(total), 0.0)
    tl.store(losses + layer * anchors + at, -tl.sum(target * log_p, axis=1), mask=real)
    by_product = tl.where(known[None, :] & real[:, None], (p - target) * (2 * scale / anchors), 0.0)
    place = (layer * anchors + at)[:, None] * references + to[None, :]
    tl.store(by_products + place, by_product, mask=real[:, None] & known[None, :])
    for start in range(0, values, VALUES):
        v = start + tl.arange(0, VALUES)
        r = _tile(embedding, anchors + to, known, v, values)
        by_a = tl.dot(by_product, r, input_precision="tf32x3")
        tl.store(by_embedding + at[:, None] * values + v[None, :], by_a, mask=real[:, None] & (v < values)[None, :])


@triton.jit
def _tuplet_references(
    embedding, by_products, by_embedding, anchors, references, values,
    ANCHORS: tl.constexpr, REFERENCES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Process some columns of the references of one layer: sum their gradient over all anchors."""
    layer = tl.program_id(1).to(tl.int64)
    v, to = tl.program_id(0) * VALUES + tl.arange(0, VALUES), tl.arange(0, REFERENCES)
    inside = (to < references)[:, None] & (v < values)[None, :]
    embedding += layer * (anchors + references) * values
    by_embedding += layer * (anchors + references) * values
    by_r = tl.zeros((REFERENCES, VALUES), dtype=tl.float32)
    totals = tl.zeros((REFERENCES,), dtype=tl.float32)
    for start in range(0, anchors, ANCHORS):
        at = start + tl.arange(0, ANCHORS)
        real = at < anchors
        by_product = _tile(by_products, layer * anchors + at, real, to, references)
        a = _tile(embedding, at, real, v, values)
        by_r = tl.dot(tl.trans(by_product), a, by_r, input_precision="tf32x3")
        totals += tl.sum(by_product, axis=0)
    place = (anchors + to)[:, None] * values + v[None, :]
    r = _tile(embedding, anchors + to, to < references, v, values)
    tl.store(by_embedding + place, by_r - totals[:, None] * r, mask=inside)


def reference_tuplet(embedding: Tensor, labels: Tensor, scale: float, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each anchor and the gradient of the mean loss, as `losses.reference_tuplet_loss` does for K = 1.

    There are at most MOST_REFERENCES classes. (…, B + C, e), (…, B) → (…, B), (…, B + C, e)
    """
    embedding, labels = embedding.contiguous(), labels.contiguous()
    rows, values = embedding.shape[-2:]
    anchors = labels.shape[-1]
    references, layers = rows - anchors, labels.numel() // anchors
    losses = embedding.new_empty(labels.shape, dtype=torch.float32)
    by_embedding, by_products = torch.empty_like(embedding), losses.new_empty(layers, anchors, references)
    size = max(16, triton.next_power_of_2(references))
    _tuplet[(triton.cdiv(anchors, 16), layers)](
        embedding, labels, losses, by_embedding, by_products,
        anchors, references, values, scale, label_smoothing,
        ANCHORS=16, REFERENCES=size, VALUES=64, num_warps=2,
    )  # fmt: skip
    _tuplet_references[(triton.cdiv(values, 16), layers)](
        embedding, by_products, by_embedding, anchors, references, values,
        ANCHORS=32, REFERENCES=size, VALUES=16, num_warps=1,
    )  # fmt: skip
    return losses, by_embedding


@triton.jit
def _update(
    weight, gradient, first, second, factors, copy,
    length, decay, momentum, new1, beta2, new2, epsilon,
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


def update(
    weight: Tensor,
    gradient: Tensor,
    memory: Sequence[Tensor],
    factors: Tensor,
    copy: Tensor,
    *,
    decay: float,
    decoupled: bool,
    momentum: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Take one optimiser step for n layers in place: SGD, SGD with momentum or Adam, for 0, 1 or 2 tensors in `memory`.

    The new weights are also written to `copy`, unless it is `weight` itself. Layers whose last factor is 0 are left
    unchanged. All tensors (n, …), except factors (n, 4), float64: see `Optimiser.factors`.
    """
    layers, length = len(weight), weight[0].numel()
    first, second = (*memory, weight, weight)[:2]
    _update[(triton.cdiv(length, BLOCK), layers)](
        weight, gradient.contiguous(), first, second, factors, copy,
        length, decay, momentum, 1 - betas[0], betas[1], 1 - betas[1], epsilon,
        MEMORY=len(memory), DECOUPLED=decoupled, COPY=copy is not weight, SIZE=BLOCK,
    )  # fmt: skip
