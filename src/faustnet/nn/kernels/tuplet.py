"""The tuplet loss with shared references, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # values per program of `scale_layers`
MOST_REFERENCES = 256  # maximum number of references of `reference_tuplet`
FEW = 16  # references, for which small programs are faster


@triton.jit
def _tile(matrix, rows, real, columns, width):
    """Load these rows and columns of a matrix (…, width); zero for rows that are not `real` and columns outside."""
    inside = real[:, None] & (columns < width)[None, :]
    return tl.load(matrix + rows[:, None] * width + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _first_of_class(labels, own, to, count, REFERENCES: tl.constexpr):
    """Return whether no earlier label equals the own one at each of these places."""
    earlier = tl.zeros((REFERENCES,), dtype=tl.int32)
    for start in range(0, count, 16):
        before = start + tl.arange(0, 16)
        other = tl.load(labels + before, mask=before < count, other=-1)
        same = (other[None, :] == own[:, None]) & (before[None, :] < to[:, None])
        earlier += tl.sum(same.to(tl.int32), axis=1)
    return earlier == 0


@triton.jit
def _tuplet(
    embedding, labels, losses, by_embedding, by_products,
    anchors, references, values, scale, smoothing,
    IN_BATCH: tl.constexpr, PRECISION: tl.constexpr,
    ANCHORS: tl.constexpr, REFERENCES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Process some anchors of one layer: their losses, and the gradients by the anchors and by their products with the
    references. A label that is not the number of a reference makes them NaN."""
    layer = tl.program_id(1).to(tl.int64)
    at, to = tl.program_id(0) * ANCHORS + tl.arange(0, ANCHORS), tl.arange(0, REFERENCES)
    real, known = at < anchors, to < references
    embedding += layer * (anchors + references) * values
    by_embedding += layer * (anchors + references) * values
    labels += layer * anchors
    products = tl.zeros((ANCHORS, REFERENCES), dtype=tl.float32)
    squares = tl.zeros((REFERENCES,), dtype=tl.float32)
    for start in range(0, values, VALUES):
        v = start + tl.arange(0, VALUES)
        a = _tile(embedding, at, real, v, values)
        r = _tile(embedding, anchors + to, known, v, values)
        products = tl.dot(a, tl.trans(r), products, input_precision=PRECISION)
        squares += tl.sum(r * r, axis=1)
    label, name = tl.load(labels + at, mask=real, other=0), to.to(tl.int64)
    if IN_BATCH:
        name = tl.load(labels + to, mask=known, other=-1)
        known = known & _first_of_class(labels, name, to, references, REFERENCES)
    own = (name[None, :] == label[:, None]) & known[None, :]
    z = tl.where(known[None, :], (2 * products - squares[None, :]) * scale, float("-inf"))
    z -= tl.max(z, axis=1)[:, None]
    p = tl.exp(z)
    total = tl.where(tl.sum(own.to(tl.int32), axis=1) > 0, tl.sum(p, axis=1), float("nan"))[:, None]
    p = p / total
    target = tl.where(own, 1 - smoothing, 0.0) + smoothing / tl.sum(known.to(tl.float32), axis=0)
    target = tl.where(known[None, :], target, 0.0)
    log_p = tl.where(known[None, :], z - tl.log(total), 0.0)
    tl.store(losses + layer * anchors + at, -tl.sum(target * log_p, axis=1), mask=real)
    by_product = tl.where(known[None, :] & real[:, None], (p - target) * (2 * scale / anchors), 0.0)
    place = (layer * anchors + at)[:, None] * references + to[None, :]
    tl.store(by_products + place, by_product, mask=real[:, None] & (to < references)[None, :])
    for start in range(0, values, VALUES):
        v = start + tl.arange(0, VALUES)
        r = _tile(embedding, anchors + to, known, v, values)
        by_a = tl.dot(by_product, r, input_precision=PRECISION)
        tl.store(by_embedding + at[:, None] * values + v[None, :], by_a, mask=real[:, None] & (v < values)[None, :])


@triton.jit
def _tuplet_references(
    embedding, losses, by_products, means, by_embedding, anchors, references, values,
    PRECISION: tl.constexpr, ANCHORS: tl.constexpr, REFERENCES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Process some columns of some references of one layer: sum their gradient over all anchors. The first program of a
    layer also computes its mean loss."""
    layer = tl.program_id(2).to(tl.int64)
    v, to = tl.program_id(0) * VALUES + tl.arange(0, VALUES), tl.program_id(1) * REFERENCES + tl.arange(0, REFERENCES)
    inside = (to < references)[:, None] & (v < values)[None, :]
    embedding += layer * (anchors + references) * values
    by_embedding += layer * (anchors + references) * values
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        loss = tl.zeros((ANCHORS,), dtype=tl.float32)
        for start in range(0, anchors, ANCHORS):
            at = start + tl.arange(0, ANCHORS)
            loss += tl.load(losses + layer * anchors + at, mask=at < anchors, other=0.0)
        tl.store(means + layer, tl.sum(loss, axis=0) / anchors)
    by_r = tl.zeros((REFERENCES, VALUES), dtype=tl.float32)
    totals = tl.zeros((REFERENCES,), dtype=tl.float32)
    for start in range(0, anchors, ANCHORS):
        at = start + tl.arange(0, ANCHORS)
        real = at < anchors
        by_product = _tile(by_products, layer * anchors + at, real, to, references)
        a = _tile(embedding, at, real, v, values)
        by_r = tl.dot(tl.trans(by_product), a, by_r, input_precision=PRECISION)
        totals += tl.sum(by_product, axis=0)
    place = (anchors + to)[:, None] * values + v[None, :]
    r = _tile(embedding, anchors + to, to < references, v, values)
    tl.store(by_embedding + place, by_r - totals[:, None] * r, mask=inside)


def product_precision(embedding: Tensor, references: int) -> str:
    """Return how a kernel multiplies. TF32 represents bfloat16 exactly; for float32 it is used where torch is allowed to.
    Otherwise a product is split into three, which is as precise as float32.

    Few references are multiplied so fast that the precision makes no difference to the kernel. The kernels beside it were
    scheduled better with split products: a step of four layers in bfloat16 was faster on an H200."""
    if embedding.dtype == torch.bfloat16:
        return "tf32x3" if references <= FEW else "tf32"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def reference_tuplet(
    embedding: Tensor, labels: Tensor, scale: float, label_smoothing: float, *, in_batch: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of each layer and its gradient, as `losses.reference_tuplet_loss` does for K = 1,
    or `losses.batch_tuplet_loss` with `in_batch`.

    There are at most MOST_REFERENCES references R. (…, B + R, e), (…, B) → (…), (…, B + R, e)
    """
    embedding, labels = embedding.contiguous(), labels.contiguous()
    rows, values = embedding.shape[-2:]
    anchors = labels.shape[-1]
    references, layers = rows - anchors, labels.numel() // anchors
    losses = embedding.new_empty(labels.shape, dtype=torch.float32)
    by_products, means = losses.new_empty(layers, anchors, references), losses.new_empty(labels.shape[:-1])
    by_embedding = torch.empty_like(embedding)
    size = max(FEW, triton.next_power_of_2(references))
    precision = product_precision(embedding, references)
    _tuplet[(triton.cdiv(anchors, 16), layers)](
        embedding, labels, losses, by_embedding, by_products,
        anchors, references, values, scale, label_smoothing,
        IN_BATCH=in_batch, PRECISION=precision,
        ANCHORS=16, REFERENCES=size, VALUES=64 if size < 256 else 32, num_warps=2 if size == FEW else 4 if size < 128 else 8,
    )  # fmt: skip
    block = min(size, 32)
    _tuplet_references[(triton.cdiv(values, 32), triton.cdiv(references, block), layers)](
        embedding, losses, by_products, means, by_embedding, anchors, references, values,
        PRECISION=precision, ANCHORS=64, REFERENCES=block, VALUES=32, num_warps=2,
    )  # fmt: skip
    return means, by_embedding


@triton.jit
def _scale(values, factors, products, length, SIZE: tl.constexpr):
    """Process some values of one layer: multiply them by the layer's factor."""
    layer = tl.program_id(1).to(tl.int64)
    within = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    at = layer * length + within
    product = tl.load(values + at, mask=within < length).to(tl.float32) * tl.load(factors + layer).to(tl.float32)
    tl.store(products + at, product, mask=within < length)


def scale_layers(values: Tensor, factors: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Multiply the values of each layer by its factor, several times as fast as torch does. The products have the same dtype
    as the values, or `dtype`. (…, R, e), (…) → (…, R, e)"""
    layers, values = factors.numel(), values.contiguous()
    products, length = torch.empty_like(values, dtype=dtype), values.numel() // layers
    _scale[(triton.cdiv(length, BLOCK), layers)](values, factors.contiguous(), products, length, SIZE=BLOCK)
    return products
