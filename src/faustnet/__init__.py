"""Train neural networks layer by layer, by similarity, without backpropagation between layers."""

from typing import TYPE_CHECKING, Any

from faustnet.api import load, train
from faustnet.errors import FaustnetError
from faustnet.version import VERSION as __version__

if TYPE_CHECKING:
    from faustnet.estimator import FaustClassifier

__all__ = ["FaustClassifier", "FaustnetError", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """The estimator when it is asked for: scikit-learn is as slow to import as torch."""
    if name != "FaustClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from faustnet.estimator import FaustClassifier

    return FaustClassifier
