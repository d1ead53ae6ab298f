"""All methods, by name. To add one, add a module to this package and a line to METHODS."""

from collections.abc import Mapping
from typing import Any

from faustnet.errors import errors_about_options, unknown
from faustnet.methods.backprop import Backprop
from faustnet.methods.base import STATISTICS_IMAGES, Method
from faustnet.methods.centroid import FaustCentroid
from faustnet.methods.collaborative import CollaborativeFF
from faustnet.methods.cwc import CwC
from faustnet.methods.deep_supervision import DeepSupervision
from faustnet.methods.faust import Faust, FaustRepresentative
from faustnet.methods.ffcm import FFCM
from faustnet.methods.forward_forward import ForwardForward
from faustnet.methods.local import LocalMethod
from faustnet.methods.modes import evaluating
from faustnet.methods.mono_forward import MonoForward
from faustnet.methods.prediction import PredictionSettings
from faustnet.methods.predsim import PredSim
from faustnet.methods.prototype import FaustPrototype
from faustnet.methods.sffa import SFFA
from faustnet.methods.source import Source, some_positions
from faustnet.methods.symba import SymBa
from faustnet.methods.trifecta import Trifecta
from faustnet.methods.vanilla import FaustTriplet, FaustTuplet
from faustnet.nn.architectures import NetworkSettings, Shape
from faustnet.system.devices import check_memory

__all__ = [
    "METHODS", "STATISTICS_IMAGES", "Faust", "LocalMethod", "Method", "PredictionSettings", "Source", "build", "evaluating",
    "method_named", "some_positions",
]  # fmt: skip

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Backprop,
        DeepSupervision,
        ForwardForward,
        SymBa,
        SFFA,
        FFCM,
        CollaborativeFF,
        CwC,
        MonoForward,
        Trifecta,
        PredSim,
        FaustTriplet,
        FaustTuplet,
        FaustRepresentative,
        FaustPrototype,
        FaustCentroid,
    )
}


def method_named(name: str) -> type[Method]:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def build(name: str, shape: Shape, classes: int, network: NetworkSettings, options: Mapping[str, Any]) -> Method:
    """Return a new method for images of this shape. Its initial weights are drawn from torch's global generator."""
    method = method_named(name)
    check_memory(network.weights(shape))
    layers = method.make_network(shape, classes, network)
    with errors_about_options(options):
        return method(layers, classes, **options)
