"""Time and memory of training and prediction, compared with plain PyTorch: `faustnet bench`."""

from faustnet.bench.measurement_cache import MeasurementCache
from faustnet.bench.suite import PARTS, Bench, run

__all__ = ["PARTS", "Bench", "MeasurementCache", "run"]
