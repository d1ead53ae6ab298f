"""Optimisers: their settings in a recipe, the learning rate of each step, and the update of several layers at once."""

from faustnet.training.optimisers.base import Optimiser, state_tensors
from faustnet.training.optimisers.settings import OPTIMISERS, OptimiserSettings

__all__ = ["OPTIMISERS", "Optimiser", "OptimiserSettings", "state_tensors"]
