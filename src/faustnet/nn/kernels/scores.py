"""The scores of classes with one reference each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from faustnet.nn.kernels.tuplet import FEW, _tile


@triton.jit
def _scores(
    embedding, references, scores, rows, classes, values,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Process some rows: their negative distances to all references."""
    at, to = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, CLASSES)
    real, known = at < rows, to < classes
    products = tl.zeros((ROWS, CLASSES), dtype=tl.float32)
    squares, others = tl.zeros((ROWS,), dtype=tl.float32), tl.zeros((CLASSES,), dtype=tl.float32)
    for start in range(0, values, VALUES):
        v = start + tl.arange(0, VALUES)
        e = _tile(embedding, at, real, v, values)
        r = _tile(references, to, known, v, values)
        products = tl.dot(e, tl.trans(r), products, input_precision="tf32x3")
        squares += tl.sum(e * e, axis=1)
        others += tl.sum(r * r, axis=1)
    distances = tl.maximum(squares[:, None] + others[None, :] - 2 * products, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(scores + at[:, None] * classes + to[None, :], -tl.sqrt(distances), mask=real[:, None] & known[None, :])


def reference_scores(embedding: Tensor, references: Tensor) -> Tensor:
    """Return the negative distance of each row to each of at most MOST_REFERENCES references, in float32.
    (B, e), (C, e) → (B, C)"""
    embedding, references = embedding.contiguous(), references.contiguous()
    (rows, values), classes = embedding.shape, len(references)
    scores = embedding.new_empty(rows, classes, dtype=torch.float32)
    size = max(FEW, triton.next_power_of_2(classes))
    block = 64 if size <= 64 else 16
    _scores[(triton.cdiv(rows, block),)](
        embedding, references, scores, rows, classes, values,
        ROWS=block, CLASSES=size, VALUES=64 if size < 128 else 32, num_warps=4 if size < 128 else 8,
    )  # fmt: skip
    return scores
