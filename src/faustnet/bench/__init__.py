"""What training and predicting cost, measured side by side with plain PyTorch: `faustnet bench`."""

from faustnet.bench.suite import PARTS, run

__all__ = ["PARTS", "run"]
