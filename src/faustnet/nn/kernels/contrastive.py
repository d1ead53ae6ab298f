"""The supervised contrastive loss with a margin, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from faustnet.nn.kernels.tuplet import _tile, product_precision

SHORTEST = 1e-12  # length of a row that is divided by its length, as in torch
STRIPS = 8  # parts of the columns of a row, at most, whose statistics are computed by different programs
ROWS, COLUMNS, VALUES = 32, 64, 64  # per tile of the cosines, and values of an embedding per product
FEW = 16  # rows per tile of the gradient, for more programs
WARPS = 8  # per program; with fewer, a tile of the cosines would need more registers than there are


@triton.jit
def _similarities(cosine, alike, margin, MARGIN: tl.constexpr):
    """Add the margin to the cosines of pairs of the same class; the sum is at most 1."""
    if MARGIN:
        closer = tl.minimum(cosine + margin, 1.0, propagate_nan=tl.PropagateNan.ALL)
        cosine = tl.where(alike, closer, cosine)
    return cosine


@triton.jit
def _cosines(
    embedding, labels, margins, cosines, scales, log_sums, positives, counts,
    batch, values, strip, layer_step, label_step, temperature, shortest,
    MARGIN: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Process some rows and one strip of the columns of one layer: their cosines and, for each row, log Σ exp of the logits
    of all other rows in the strip, the sum of the logits of those of the same class, and their number. The first program of
    a strip also stores 1 / length of the rows that are its columns."""
    layer, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = at < batch
    embedding += layer * layer_step
    labels += layer * label_step
    cosines += layer * batch * batch
    label, margin = tl.load(labels + at, mask=real, other=0), 0.0
    if MARGIN:
        margin = tl.load(margins + layer).to(tl.float32)
    top = tl.full((ROWS,), -1e30, dtype=tl.float32)  # finite: a difference of infinities would be NaN
    total, positive = tl.zeros((ROWS,), dtype=tl.float32), tl.zeros((ROWS,), dtype=tl.float32)
    count = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, strip, COLUMNS):
        to = part.to(tl.int64) * strip + start + tl.arange(0, COLUMNS)
        known = to < batch
        cosine = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        own, other = tl.zeros((ROWS,), dtype=tl.float32), tl.zeros((COLUMNS,), dtype=tl.float32)
        for first in range(0, values, VALUES):
            v = first + tl.arange(0, VALUES)
            a, b = _tile(embedding, at, real, v, values), _tile(embedding, to, known, v, values)
            cosine = tl.dot(a, tl.trans(b), cosine, input_precision=PRECISION)
            own += tl.sum(a * a, axis=1)
            other += tl.sum(b * b, axis=1)
        own = 1 / tl.maximum(tl.sqrt(own), shortest, propagate_nan=tl.PropagateNan.ALL)
        other = 1 / tl.maximum(tl.sqrt(other), shortest, propagate_nan=tl.PropagateNan.ALL)
        compared = (at[:, None] != to[None, :]) & known[None, :]
        cosine = tl.where(compared, cosine * own[:, None] * other[None, :], 0.0)
        tl.store(cosines + at[:, None] * batch + to[None, :], cosine, mask=real[:, None] & known[None, :])
        if tl.program_id(0) == 0:
            tl.store(scales + layer * batch + to, other, mask=known)
        alike = compared & (label[:, None] == tl.load(labels + to, mask=known, other=0)[None, :])
        logits = _similarities(cosine, alike, margin, MARGIN) / temperature
        positive += tl.sum(tl.where(alike, logits, 0.0), axis=1)
        count += tl.sum(alike.to(tl.float32), axis=1)
        logits = tl.where(compared, logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, axis=1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(logits - higher[:, None]), axis=1)
        top = higher
    place = (layer * tl.num_programs(1) + part) * batch + at
    tl.store(log_sums + place, top + tl.log(tl.where(total == 0, 1.0, total)), mask=real)
    tl.store(positives + place, positive, mask=real)
    tl.store(counts + place, count, mask=real)


@triton.jit
def _combined(log_sums, counts, at, real, batch, strips, STRIPS: tl.constexpr):
    """Return log Σ exp of the logits of all strips for some rows, or 0 without any; the number of rows of the same class,
    at least 1; and whether there are any, 1 or 0."""
    part = tl.arange(0, STRIPS)
    inside = (part < strips)[:, None] & real[None, :]
    place = part[:, None] * batch + at[None, :]
    parts = tl.load(log_sums + place, mask=inside, other=-1e30)
    top = tl.max(parts, axis=0)
    log_sum = top + tl.log(tl.sum(tl.exp(parts - top[None, :]), axis=0))
    count = tl.sum(tl.load(counts + place, mask=inside, other=0.0), axis=0)
    return tl.where(log_sum < -1e29, 0.0, log_sum), tl.maximum(count, 1.0), (count > 0).to(tl.float32)


@triton.jit
def _gradient(
    embedding, labels, margins, cosines, scales, log_sums, positives, counts, losses, by_embedding,
    batch, values, strips, layer_step, label_step, temperature,
    MARGIN: tl.constexpr, PRECISION: tl.constexpr, STRIPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Process some values of some rows of one layer: the gradient of the mean loss. The first program of a layer also stores
    that loss.

    The loss of a row i depends on its cosines c_ij, and those of other rows on c_ji, which are the same numbers. If g is the
    sum of both gradients by them, that by the row of length 1 is Σ g_ij row_j. Its part along the row itself, which does not
    change the direction, is Σ g_ij c_ij."""
    layer, strips_at = tl.program_id(2).to(tl.int64), tl.program_id(2).to(tl.int64) * strips * batch
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    v = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    real = at < batch
    embedding += layer * layer_step
    labels += layer * label_step
    cosines += layer * batch * batch
    scales += layer * batch
    log_sums += strips_at
    positives += strips_at
    counts += strips_at
    label, margin = tl.load(labels + at, mask=real, other=0), 0.0
    if MARGIN:
        margin = tl.load(margins + layer).to(tl.float32)
    log_sum, count, counted = _combined(log_sums, counts, at, real, batch, strips, STRIPS)
    by_rows, along = tl.zeros((ROWS, VALUES), dtype=tl.float32), tl.zeros((ROWS,), dtype=tl.float32)
    loss, part = tl.zeros((COLUMNS,), dtype=tl.float32), tl.arange(0, STRIPS)
    for start in range(0, batch, COLUMNS):
        to = start + tl.arange(0, COLUMNS)
        known = to < batch
        its_log_sum, its_count, its_counted = _combined(log_sums, counts, to, known, batch, strips, STRIPS)
        inside = (part < strips)[:, None] & known[None, :]
        positive = tl.sum(tl.load(positives + part[:, None] * batch + to[None, :], mask=inside, other=0.0), axis=0)
        loss += its_log_sum * its_counted - positive / its_count - tl.log(its_count)
        cosine = tl.load(cosines + at[:, None] * batch + to[None, :], mask=real[:, None] & known[None, :], other=0.0)
        compared = (at[:, None] != to[None, :]) & real[:, None] & known[None, :]
        alike = compared & (label[:, None] == tl.load(labels + to, mask=known, other=0)[None, :])
        logits = tl.where(compared, _similarities(cosine, alike, margin, MARGIN) / temperature, float("-inf"))
        by_cosine = tl.exp(logits - log_sum[:, None]) * counted[:, None]
        by_cosine += tl.exp(logits - its_log_sum[None, :]) * its_counted[None, :]
        by_cosine -= tl.where(alike, 1 / count[:, None] + 1 / its_count[None, :], 0.0)
        if MARGIN:  # where the sum would be above 1, a change of the cosine changes nothing
            by_cosine *= ((cosine + margin <= 1) | (alike == 0)).to(tl.float32)
        along += tl.sum(by_cosine * cosine, axis=1)
        scale = tl.load(scales + to, mask=known, other=0.0)
        b = _tile(embedding, to, known, v, values)
        by_rows = tl.dot(by_cosine * scale[None, :], b, by_rows, input_precision=PRECISION)
    scale = tl.load(scales + at, mask=real, other=0.0)
    a = _tile(embedding, at, real, v, values) * scale[:, None]
    by_a = (by_rows - along[:, None] * a) * (scale / (batch * temperature))[:, None]
    place = (layer * batch + at)[:, None] * values + v[None, :]
    tl.store(by_embedding + place, by_a, mask=real[:, None] & (v < values)[None, :])
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(losses + layer, tl.sum(loss, axis=0) / batch)


def marginal_contrastive(
    embedding: Tensor, labels: Tensor, margin: float | Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of each layer and its gradient, as `losses.marginal_contrastive_loss` does, both in float32.

    The cosines of all pairs are in memory until the gradient is computed, which is before this function returns.
    (…, B, e), (…, B), () or (…) → (…), (…, B, e)
    """
    batch, values = embedding.shape[-2:]
    rows, labels = embedding.reshape(-1, batch, values), labels.reshape(-1, batch)
    if rows.stride()[1:] != (values, 1):  # layers may be any distance apart, such as a part of the rows of each
        rows = rows.contiguous()
    if labels.stride(1) != 1:  # and may share their labels
        labels = labels.contiguous()
    layers = len(rows)
    losses = embedding.new_empty(embedding.shape[:-2], dtype=torch.float32)
    by_embedding, scales = losses.new_empty(embedding.shape), losses.new_empty(layers, batch)
    cosines = losses.new_empty(layers, batch, batch)
    has_margin, margins = isinstance(margin, Tensor) or margin != 0, scales
    if isinstance(margin, Tensor):
        margins = margin.expand(losses.shape).contiguous()
    elif has_margin:
        margins = torch.full_like(losses, float(margin))
    strip = triton.cdiv(triton.cdiv(batch, COLUMNS), STRIPS) * COLUMNS
    strips = triton.cdiv(batch, strip)
    parts = losses.new_empty(3, layers, strips, batch)
    steps, precision = (rows.stride(0), labels.stride(0), float(temperature)), product_precision(embedding, batch)
    _cosines[(triton.cdiv(batch, ROWS), strips, layers)](
        rows, labels, margins, cosines, scales, *parts, batch, values, strip, *steps, SHORTEST,
        MARGIN=has_margin, PRECISION=precision, ROWS=ROWS, COLUMNS=COLUMNS, VALUES=VALUES, num_warps=WARPS,
    )  # fmt: skip
    _gradient[(triton.cdiv(batch, FEW), triton.cdiv(values, VALUES), layers)](
        rows, labels, margins, cosines, scales, *parts, losses, by_embedding, batch, values, strips, *steps,
        MARGIN=has_margin, PRECISION=precision, STRIPS=STRIPS,
        ROWS=FEW, COLUMNS=COLUMNS, VALUES=VALUES, num_warps=WARPS,
    )  # fmt: skip
    return losses, by_embedding
