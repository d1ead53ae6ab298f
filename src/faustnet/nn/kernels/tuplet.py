"""The tuplet loss with shared references, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # values per program of `scale_layers`
MOST_REFERENCES = 128  # maximum number of references of `reference_tuplet`


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
    _tuplet_references[(triton.cdiv(values, 32), layers)](
        embedding, by_products, by_embedding, anchors, references, values,
        ANCHORS=64, REFERENCES=size, VALUES=32, num_warps=2 if size == 16 else 4,
    )  # fmt: skip
    return losses, by_embedding


@triton.jit
def _scale(values, factors, products, length, SIZE: tl.constexpr):
    """Process some values of one layer: multiply them by the layer's factor."""
    layer = tl.program_id(1).to(tl.int64)
    within = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    at = layer * length + within
    product = tl.load(values + at, mask=within < length).to(tl.float32) * tl.load(factors + layer).to(tl.float32)
    tl.store(products + at, product, mask=within < length)


def scale_layers(values: Tensor, factors: Tensor) -> Tensor:
    """Multiply the values of each layer by its factor, several times as fast as torch does. (…, R, e), (…) → (…, R, e)"""
    layers = factors.numel()
    products, length = torch.empty_like(values), values.numel() // layers
    _scale[(triton.cdiv(length, BLOCK), layers)](values, factors.contiguous(), products, length, SIZE=BLOCK)
    return products
