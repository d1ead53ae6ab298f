"""Runs: recipes, run folders, checkpoints, trained models."""

from typing import TYPE_CHECKING

from faustnet._lazy import lazy_attributes

if TYPE_CHECKING:
    from faustnet.runs.folder import Run

__all__ = ["Run"]

__getattr__ = lazy_attributes(__name__, dict.fromkeys(__all__, "faustnet.runs.folder"))
