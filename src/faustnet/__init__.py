"""Train neural networks layer by layer, by similarity, without backpropagation between layers.

The names in `__all__` are the public interface. They are imported when they are first used.
"""

from typing import TYPE_CHECKING

from faustnet import _deprecated
from faustnet._lazy import lazy_attributes
from faustnet.errors import FaustnetError, FaustnetWarning
from faustnet.version import VERSION as __version__

if TYPE_CHECKING:
    from faustnet import data, losses, methods, nn, testing
    from faustnet.api import change_model, load, train
    from faustnet.estimator import FaustClassifier
    from faustnet.methods import (
        FFCM,
        SFFA,
        Backprop,
        CollaborativeFF,
        CwC,
        DeepSupervision,
        FaustCentroid,
        FaustPrototype,
        FaustRepresentative,
        FaustTriplet,
        FaustTuplet,
        ForwardForward,
        LocalMethod,
        Method,
        MonoForward,
        PredSim,
        SymBa,
        Trifecta,
    )  # fmt: skip
    from faustnet.nn.network import Network
    from faustnet.runs.folder import Run
    from faustnet.runs.model import Model
    from faustnet.training.distributed import join_ranks
    from faustnet.training.trainer import Callback, Trainer

__all__ = [
    "FFCM", "SFFA", "Backprop", "Callback", "CollaborativeFF", "CwC", "DeepSupervision", "FaustCentroid", "FaustClassifier",
    "FaustPrototype", "FaustRepresentative", "FaustTriplet", "FaustTuplet", "FaustnetError", "FaustnetWarning",
    "ForwardForward", "LocalMethod", "Method", "Model", "MonoForward", "Network", "PredSim", "Run", "SymBa", "Trainer",
    "Trifecta", "__version__", "change_model", "data", "join_ranks", "load", "losses", "methods", "nn", "testing", "train",
]  # fmt: skip

_MODULES = ("data", "losses", "methods", "nn", "testing")
_PLACES = {  # all other names come from faustnet.methods
    "FaustClassifier": "estimator", "Model": "runs.model", "Network": "nn.network", "Run": "runs.folder",
    "Callback": "training.trainer", "Trainer": "training.trainer", "join_ranks": "training.distributed", "load": "api",
    "change_model": "api", "train": "api",
}  # fmt: skip

__getattr__ = lazy_attributes(
    __name__, {name: f"faustnet.{_PLACES.get(name, 'methods')}" for name in {*__all__} - {*_MODULES}}, _MODULES
)


def __dir__() -> list[str]:
    return __all__


_deprecated.install()
