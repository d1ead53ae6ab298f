"""Mono-Forward: every layer learns a matrix that maps its activation to a score for each class."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from faustnet.errors import require
from faustnet.losses import competitive_loss
from faustnet.losses.formulas import exact
from faustnet.methods.local import LocalMethod
from faustnet.nn.architectures import NetworkSettings, Shape, convolutions, image_shape
from faustnet.nn.bodies import ConvBody, DenseBody, ReluBody
from faustnet.nn.heads import PixelHead
from faustnet.nn.layers import Layer
from faustnet.nn.modules import Linear
from faustnet.nn.network import Network
from faustnet.system.devices import check_memory


class MonoForward(LocalMethod):
    """Gong, Li and Abdulla (2025): a layer has a learned matrix M with one row per class. The goodness of the classes is
    G = a Mᵀ, where a is the activation. The loss of a layer is the softmax cross entropy of G. There are no wrong labels,
    and one forward pass gives the score of every class.

    A dense layer is linear and ReLU, without the layer norm of the other methods; with `network.norm = "batch"` it has batch
    norm before ReLU. A convolutional layer has the body of the other methods, and M multiplies all values of its feature
    maps. The settings `embedding`, `head`, `length` and `passes_on` of the network have no effect.

    The authors predict from the sum of the goodness of all layers, or from the last layer (`prediction.layers = "last"`).
    """

    name: ClassVar[str] = "mono-forward"
    title: ClassVar[str] = "Mono-Forward"
    summary: ClassVar[str] = "softmax cross entropy of a learned linear map of each layer's activation"

    def __init__(self, network: Network, classes: int):
        super().__init__(network, classes)
        sizes = network.embedding_sizes
        require(
            set(sizes) == {classes},
            f"network must have embeddings of {classes} values in every layer, one for each class, got {sizes}: use "
            f"Network(blocks, embedding={classes}, …).",
        )

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        require(
            settings.kind != "transformer",
            f"network.kind must be dense, vgg or residual for {cls.name}, got {settings.kind!r}.",
        )
        image = image_shape(shape, settings)
        parts = _dense if settings.kind == "dense" else _convolutional
        layers: list[Layer] = []
        for body, head in parts(image, classes, settings):
            layers.append(Layer(body, head, dropout=settings.dropout if layers else settings.input_dropout))
        return Network(layers, example=torch.zeros(1, *image), dropout=settings.dropout)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return x

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return competitive_loss(exact(embedding), y)

    def scores(self, x: Tensor) -> Tensor:
        return torch.stack(list(self.network.embeddings(x)))


def _dense(shape: tuple[int, int, int], classes: int, settings: NetworkSettings) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the body and the head of each layer."""
    for inputs, width in pairwise([math.prod(shape), *settings.widths]):
        body = DenseBody(inputs, width, batch_norm=True) if settings.norm == "batch" else ReluBody(inputs, width)
        yield body, Linear(width, classes, bias=False)


def _convolutional(
    shape: tuple[int, int, int], classes: int, settings: NetworkSettings
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the body and the head of each layer."""
    for inputs, channels, (height, width), pool in convolutions(shape, settings):
        values = height * width * channels
        check_memory(values * classes)
        body = ConvBody(inputs, channels, pool=pool, residual=settings.kind == "residual")
        yield body, nn.Sequential(PixelHead(), Linear(values, classes, bias=False))
