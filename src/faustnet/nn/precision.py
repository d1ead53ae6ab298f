"""Precision of matrix products while training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from faustnet.nn.layers import Layer
from faustnet.nn.modules import CastModule

PRECISIONS = ("tf32", "float32", "bfloat16")


def set_compute_dtype(module: nn.Module, precision: str) -> None:
    """Make layers compute products in bfloat16 while training, if that is the precision. Weights, sums, losses and updates
    stay in float32, and so does evaluation. Layers with weights in modules of other packages use `torch.autocast`."""
    dtype = torch.bfloat16 if precision == "bfloat16" else None
    for part in module.modules():
        if isinstance(part, CastModule):
            part.compute_dtype = dtype
        elif isinstance(part, Layer):
            own = (type(inner).__module__.startswith("faustnet.") for inner in part.modules() if inner._parameters)
            part.autocast_dtype = None if all(own) else dtype


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
