"""Time and memory of training and prediction, compared with plain PyTorch: `faustnet bench`."""

from faustnet.bench.answers import Answers
from faustnet.bench.suite import PARTS, Bench, run

__all__ = ["PARTS", "Answers", "Bench", "run"]
