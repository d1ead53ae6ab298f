"""Layers, networks and what they are made of."""

from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.layers import Layer
from faustnet.nn.network import Network

__all__ = ["Layer", "Network", "NetworkSettings"]
