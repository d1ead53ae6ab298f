"""Train neural networks layer by layer, by similarity, without backpropagation between layers."""

from faustnet.api import load, train
from faustnet.errors import FaustnetError
from faustnet.version import VERSION as __version__

__all__ = ["FaustnetError", "__version__", "load", "train"]
