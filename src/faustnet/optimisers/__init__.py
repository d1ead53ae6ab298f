"""Optimisers: which one, its learning rate at each step, and how it works on several layers at once."""

from faustnet.optimisers.settings import OptimiserSettings, remembered
from faustnet.optimisers.stacked import StackedOptimiser

__all__ = ["OptimiserSettings", "StackedOptimiser", "remembered"]
