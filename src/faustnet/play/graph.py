"""A network as a list of simple operations and one block of weights, for the script in a page."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.nn.bodies import ConvBody, DenseBody
from faustnet.nn.heads import ConvHead
from faustnet.nn.layers import Layer
from faustnet.nn.modules import EPSILON, BatchNorm, ConvNorm, Linear

Operation = dict[str, Any]  # its name under "do", and its arguments; tensors are numbers in `Weights.tensors`


@dataclass
class Weights:
    """Tensors in single precision, one after the other."""

    tensors: list[dict[str, Any]] = field(default_factory=list)  # the first value and the shape of each
    parts: list[bytes] = field(default_factory=list)
    count: int = 0  # of all values

    def add(self, tensor: Tensor) -> int:
        """Append a tensor, and return its number."""
        values = tensor.detach().cpu().numpy().astype("<f4")
        self.tensors.append({"first": self.count, "shape": list(values.shape)})
        self.parts.append(np.ascontiguousarray(values).tobytes())
        self.count += values.size
        return len(self.tensors) - 1

    def to_bytes(self) -> bytes:
        """Return all values, little-endian."""
        return b"".join(self.parts)


def layer_operations(layer: Layer, number: int, weights: Weights) -> dict[str, Any]:
    """Describe a layer in evaluation mode: the operations of its body and of its head, and what it passes on."""
    head = [] if layer.head is None else _operations(layer.head, number, weights)
    if layer.unit:
        head.append({"do": "normalise", "gain": 1.0 if layer.gain is None else layer.gain.item()})
    body = _operations(layer.body, number, weights)
    return {"body": body, "head": head, "passes_embedding": layer.passes_embedding}


def _operations(module: nn.Module, number: int, weights: Weights) -> list[Operation]:
    translate = TRANSLATIONS.get(type(module))
    if translate is None:
        raise FaustnetError(
            f"A page cannot compute {type(module).__name__} in layer {number}, only dense and convolutional layers: train "
            "with network.kind dense, vgg or residual."
        )
    return translate(module, weights)


def _linear(module: Linear, weights: Weights) -> list[Operation]:
    bias = None if module.bias is None else weights.add(module.bias)
    return [{"do": "linear", "weight": weights.add(module.weight), "bias": bias}]


def _batch_norm(module: BatchNorm, weights: Weights) -> list[Operation]:
    """With fixed statistics, batch norm is one multiplication and one addition for each channel; ReLU may follow."""
    gain = module.gain.double() / (module.variance.double() + EPSILON).sqrt()
    offset = module.offset.double() - module.mean.double() * gain
    relu = [{"do": "relu"}] if module.relu else []
    return [{"do": "affine", "gain": weights.add(gain), "offset": weights.add(offset)}, *relu]


def _dense(module: DenseBody, weights: Weights) -> list[Operation]:
    linear = _linear(module.linear, weights)
    if module.norm is None:
        return [*linear, {"do": "relu"}, {"do": "layer_norm", "epsilon": EPSILON}]
    return [*linear, *_batch_norm(module.norm, weights)]


def _conv_norm(module: ConvNorm, weights: Weights) -> list[Operation]:
    pool = [{"do": "max_pool"}] if module.pool else []
    convolution = {"do": "convolution", "weight": weights.add(module.convolution.weight)}
    return [convolution, *pool, *_batch_norm(module.norm, weights)]


def _conv(module: ConvBody, weights: Weights) -> list[Operation]:
    found = _conv_norm(module.entrance, weights)
    if module.inner is None or module.outer is None:
        return found
    inner, outer = (_conv_norm(part, weights) for part in (module.inner, module.outer))
    return [*found, {"do": "keep"}, *inner, *outer[:-1], {"do": "add_kept"}, outer[-1]]


def _conv_head(module: ConvHead, weights: Weights) -> list[Operation]:
    found: list[Operation] = []
    if module.first is not None and module.second is not None:
        found.append({"do": "average_pool", "side": list(module.side)})
        for part in (module.first, module.second):
            found += _conv_norm(part, weights)
    found.append({"do": "pixel_mean"})
    return found if module.projection is None else [*found, *_linear(module.projection, weights)]


TRANSLATIONS: dict[type, Callable[[Any, Weights], list[Operation]]] = {
    Linear: _linear,
    DenseBody: _dense,
    ConvBody: _conv,
    ConvHead: _conv_head,
}


def as_bytes(pixels: Tensor) -> bytes:
    """Return pixels from 0 to 255 as bytes."""
    return pixels.cpu().double().round().clamp(0, 255).to(torch.uint8).contiguous().numpy().tobytes()
