"""predsim: a local classifier and similarity matching in every layer."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.errors import require
from faustnet.losses import centred_similarity_loss, competitive_loss
from faustnet.losses.formulas import exact
from faustnet.methods.local import LocalMethod
from faustnet.nn.architectures import NetworkSettings, Shape, convolutions, image_shape
from faustnet.nn.layers import Layer
from faustnet.nn.modules import BatchNorm, ConvNorm, Convolution, Linear, average_pool
from faustnet.nn.network import Network
from faustnet.nn.structure import Structure, activation, as_vectors

SLOPE = 0.01  # of the leaky ReLU for negative inputs
MOST_VALUES = 2048  # of feature maps that a local classifier receives


class LeakyDenseBody(nn.Module):
    """Linear, batch norm, leaky ReLU. Rows of any shape are flattened. The linear map has no bias, because it would cancel
    in the batch norm."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.linear, self.norm = Linear(inputs, width, bias=False), BatchNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        """(R, …) → (R, width)"""
        return functional.leaky_relu(self.norm(self.linear(rows.flatten(1))), SLOPE)


class LeakyConvBody(nn.Module):
    """Convolution, max-pooling if `pool`, batch norm, leaky ReLU."""

    def __init__(self, inputs: int, channels: int, *, pool: bool):
        super().__init__()
        self.entrance = ConvNorm(inputs, channels, pool=pool)

    def forward(self, maps: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, channels, h, w), or half of h and w"""
        return functional.leaky_relu(self.entrance(maps.contiguous(memory_format=torch.channels_last)), SLOPE)


class PredSimHead(nn.Module):
    """Return the outputs of a linear classifier, then the features of the similarity matching loss.

    Of vectors, the features are a linear map. Of feature maps, they are the standard deviation over the pixels of each
    channel after a convolution; the classifier receives feature maps that are average-pooled to at most 2,048 values.

    Args:
        shape: Shape of the activation of one row: (width,) or (channels, height, width).
        classes: Number of classes.
    """

    def __init__(self, shape: Sequence[int], classes: int):
        super().__init__()
        require(len(shape) in (1, 3), f"shape must be (width,) or (channels, height, width), got {tuple(shape)}.")
        require(shape[0] >= 2, f"shape must begin with a width of at least 2, because features are centred, got {shape[0]}.")
        self.classes, self.side = classes, None
        if len(shape) == 1:
            self.features: nn.Module = Linear(shape[0], shape[0])
            self.classifier = Linear(shape[0], classes)
        else:
            self.side = pooled_side(*shape)
            self.features = Convolution(shape[0], shape[0])
            self.classifier = Linear(shape[0] * math.prod(self.side), classes)

    def classify(self, rows: Tensor) -> Tensor:
        """Return the outputs of the classifier. (R, …) → (R, C)"""
        return self.classifier(as_vectors(rows if self.side is None else average_pool(rows, self.side)))

    def forward(self, rows: Tensor) -> Tensor:
        """(R, width) → (R, C + width), (R, channels, h, w) → (R, C + channels)"""
        features = self.features(rows)
        if features.dim() == 4:
            features = exact(features).std(dim=(2, 3)) if features[0, 0].numel() > 1 else features.flatten(1)
        return torch.cat([self.classify(rows), features], dim=1)


class PredSim(LocalMethod):
    """Nøkland and Eidnes (2019): every layer has two losses. The prediction loss is the cross entropy of a linear classifier
    of the activation. The similarity matching loss is the mean squared difference between the cosine similarities of the
    features in a batch and those of their one-hot labels, both centred. The features are computed from the activation by a
    linear map, or by a convolution and the standard deviation over the pixels of each channel.

    A dense layer is linear, batch norm and leaky ReLU. A convolutional layer is a convolution, max-pooling (if the layer is
    in `network.pools`), batch norm and leaky ReLU. The settings `embedding`, `head`, `length`, `norm` and `passes_on` of the
    network have no effect.

    The authors apply max-pooling after leaky ReLU and compute the losses before it. Their convolutional networks end with a
    dense layer. They predict from a classifier of the last layer (`prediction.layers = "last"`). Here the prediction sums
    the outputs of the classifiers of all layers, unless `prediction.weights` or `prediction.layers` is set.

    Options:
        matching: Weight of the similarity matching loss; that of the prediction loss is 1 − matching. β in the publication.
    """

    name: ClassVar[str] = "predsim"
    title: ClassVar[str] = "predsim"
    summary: ClassVar[str] = "cross entropy of a linear classifier and similarity matching within the batch in every layer"

    def __init__(self, network: Network, classes: int, *, matching: float = 0.99):
        super().__init__(network, classes)
        require(0 <= matching < 1, f"matching must be at least 0 and below 1, got {matching}.")
        for number, layer in enumerate(network, start=1):
            require(
                isinstance(layer.head, PredSimHead) and layer.head.classes == classes,
                f"network must have a PredSimHead for {classes} classes in every layer, got {type(layer.head).__name__} in "
                f"layer {number}: use Layer(block, PredSimHead(shape, {classes})) for each block.",
            )
        self.matching = matching

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        kind = settings.kind
        require(kind in ("dense", "vgg"), f"network.kind must be dense or vgg for {cls.name}, got {kind!r}.")
        require(
            min(settings.widths) >= 2,
            f"network.widths must be at least 2 for {cls.name}, because features are centred, got {list(settings.widths)}.",
        )
        image = image_shape(shape, settings)
        layers: list[Layer] = []
        for body, head in (_dense if kind == "dense" else _convolutional)(image, classes, settings):
            layers.append(Layer(body, head, dropout=settings.dropout if layers else settings.input_dropout))
        return Network(layers, example=torch.zeros(1, *image), dropout=settings.dropout)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return x

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        outputs, features = embedding[..., : self.classes], embedding[..., self.classes :]
        prediction = competitive_loss(exact(outputs), y)
        similarity = centred_similarity_loss(features, y, self.classes)
        return (1 - self.matching) * prediction + self.matching * similarity

    def scores(self, x: Tensor) -> Tensor:
        """Return the outputs of the classifiers, without computing the features. (B, …) → (layers, B, C)"""
        rows: Structure = x
        outputs = []
        for layer in self.network:
            rows = layer.body(rows)
            outputs.append(cast(PredSimHead, layer.head).classify(activation(rows)))
        return torch.stack(outputs)


def pooled_side(channels: int, height: int, width: int) -> tuple[int, int]:
    """Halve the height and the width in turn until feature maps have at most 2,048 values, or one pixel."""
    while channels * height * width > MOST_VALUES and height * width > 1:
        if height >= width:
            height = -(-height // 2)
        else:
            width = -(-width // 2)
    return height, width


def _dense(shape: tuple[int, int, int], classes: int, settings: NetworkSettings) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the body and the head of each layer."""
    for inputs, width in pairwise([math.prod(shape), *settings.widths]):
        yield LeakyDenseBody(inputs, width), PredSimHead((width,), classes)


def _convolutional(
    shape: tuple[int, int, int], classes: int, settings: NetworkSettings
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the body and the head of each layer."""
    for inputs, channels, side, pool in convolutions(shape, settings):
        yield LeakyConvBody(inputs, channels, pool=pool), PredSimHead((channels, *side), classes)
