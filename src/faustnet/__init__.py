"""Train neural networks layer by layer, by similarity, without backpropagation between layers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from faustnet.errors import FaustnetError
from faustnet.version import VERSION as __version__

if TYPE_CHECKING:
    from faustnet.api import load, train
    from faustnet.estimator import FaustClassifier

__all__ = ["FaustClassifier", "FaustnetError", "__version__", "load", "train"]

ROOMS = {"load": "api", "train": "api", "FaustClassifier": "estimator"}


def __getattr__(name: str) -> Any:
    """What is in the other rooms when it is asked for: torch and scikit-learn are slow to import."""
    if name not in ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"faustnet.{ROOMS[name]}"), name)
