"""Optimisers: their settings in a recipe, the learning rate of each step, and the update of several layers at once."""

from faustnet.training.optimisers.base import Optimiser
from faustnet.training.optimisers.own import KnownOptimiser, OwnOptimiser, optimiser_from
from faustnet.training.optimisers.settings import OPTIMISERS, OptimiserSettings
from faustnet.training.optimisers.updates import Updates

AnyOptimiser = Optimiser | OwnOptimiser  # that a schedule uses
AnySettings = OptimiserSettings | KnownOptimiser | OwnOptimiser  # that a training creates one from

__all__ = [
    "OPTIMISERS", "AnyOptimiser", "AnySettings", "KnownOptimiser", "Optimiser", "OptimiserSettings", "OwnOptimiser",
    "Updates", "optimiser_from",
]  # fmt: skip
