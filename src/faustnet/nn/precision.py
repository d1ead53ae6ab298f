"""How exactly matrices are multiplied while training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from faustnet.nn.modules import CastModule

PRECISIONS = ("tf32", "float32", "bfloat16")


def set_compute_dtype(module: nn.Module, precision: str) -> None:
    """Have a module's layers multiply in bfloat16, if that is the precision. All else stays float32: weights, sums,
    losses, updates, and everything in evaluation."""
    for layer in module.modules():
        if isinstance(layer, CastModule):
            layer.compute_dtype = torch.bfloat16 if precision == "bfloat16" else None


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """In this block GPUs that have TF32 use it for float32 products, unless the precision is "float32"."""
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [kind.fp32_precision for kind in kinds]
    for kind in kinds:
        kind.fp32_precision = "ieee" if precision == "float32" else "tf32"
    try:
        yield
    finally:
        for kind, precise in zip(kinds, before, strict=True):
            kind.fp32_precision = precise
