"""Optimisers: which one, its learning rate at each step, and how it works on several layers at once."""

from faustnet.training.optimisers.settings import OptimiserSettings, remembered
from faustnet.training.optimisers.stacked import StackedOptimiser

__all__ = ["OptimiserSettings", "StackedOptimiser", "remembered"]
