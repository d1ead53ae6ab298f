"""Precision of matrix products while training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from faustnet.nn.modules import CastModule

PRECISIONS = ("tf32", "float32", "bfloat16")


def set_compute_dtype(module: nn.Module, precision: str) -> None:
    """Make layers compute products in bfloat16 while training, if that is the precision. Weights, sums, losses and updates
    stay in float32, and so does evaluation."""
    for layer in module.modules():
        if isinstance(layer, CastModule):
            layer.compute_dtype = torch.bfloat16 if precision == "bfloat16" else None


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Allow TF32 for float32 products on GPUs in this block, unless the precision is "float32"."""
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee" if precision == "float32" else "tf32"
    try:
        yield
    finally:
        for backend, old in zip(backends, before, strict=True):
            backend.fp32_precision = old
