"""Train neural networks layer by layer, by similarity, without backpropagation between layers.

The names in `__all__` are the public interface. They are imported when they are first used.
"""

from typing import TYPE_CHECKING

from faustnet import _deprecated
from faustnet._lazy import lazy_attributes
from faustnet.errors import FaustnetError
from faustnet.version import VERSION as __version__

if TYPE_CHECKING:
    from faustnet import data, losses, methods, nn, testing
    from faustnet.api import load, train
    from faustnet.estimator import FaustClassifier
    from faustnet.methods import LocalMethod, Method
    from faustnet.methods.backprop import Backprop
    from faustnet.methods.centroid import FaustCentroid
    from faustnet.methods.collaborative import CollaborativeFF
    from faustnet.methods.cwc import CwC
    from faustnet.methods.faust import FaustRepresentative
    from faustnet.methods.ffcm import FFCM
    from faustnet.methods.forward_forward import ForwardForward
    from faustnet.methods.prototype import FaustPrototype
    from faustnet.methods.symba import SymBa
    from faustnet.methods.trifecta import Trifecta
    from faustnet.methods.vanilla import FaustTriplet, FaustTuplet
    from faustnet.nn.network import Network
    from faustnet.runs.folder import Run
    from faustnet.runs.model import Model
    from faustnet.training.trainer import Trainer

__all__ = [
    "FFCM",
    "Backprop",
    "CollaborativeFF",
    "CwC",
    "FaustCentroid",
    "FaustClassifier",
    "FaustPrototype",
    "FaustRepresentative",
    "FaustTriplet",
    "FaustTuplet",
    "FaustnetError",
    "ForwardForward",
    "LocalMethod",
    "Method",
    "Model",
    "Network",
    "Run",
    "SymBa",
    "Trainer",
    "Trifecta",
    "__version__",
    "data",
    "load",
    "losses",
    "methods",
    "nn",
    "testing",
    "train",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "Backprop": "faustnet.methods.backprop",
        "CollaborativeFF": "faustnet.methods.collaborative",
        "CwC": "faustnet.methods.cwc",
        "FFCM": "faustnet.methods.ffcm",
        "FaustCentroid": "faustnet.methods.centroid",
        "FaustClassifier": "faustnet.estimator",
        "FaustPrototype": "faustnet.methods.prototype",
        "FaustRepresentative": "faustnet.methods.faust",
        "FaustTriplet": "faustnet.methods.vanilla",
        "FaustTuplet": "faustnet.methods.vanilla",
        "ForwardForward": "faustnet.methods.forward_forward",
        "LocalMethod": "faustnet.methods",
        "Method": "faustnet.methods",
        "Model": "faustnet.runs.model",
        "Network": "faustnet.nn.network",
        "Run": "faustnet.runs.folder",
        "SymBa": "faustnet.methods.symba",
        "Trainer": "faustnet.training.trainer",
        "Trifecta": "faustnet.methods.trifecta",
        "load": "faustnet.api",
        "train": "faustnet.api",
    },
    modules=("data", "losses", "methods", "nn", "testing"),
)


def __dir__() -> list[str]:
    return __all__


_deprecated.install()
