"""Time and memory of training and prediction, compared with plain PyTorch: `faustnet bench`."""

from faustnet.bench.suite import PARTS, run

__all__ = ["PARTS", "run"]
