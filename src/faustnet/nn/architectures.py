"""Architectures: the networks that a recipe can describe."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

from faustnet.errors import FaustnetError, require
from faustnet.nn.bodies import ConvBody, DenseBody, GoodnessConvBody, RmsBody
from faustnet.nn.heads import HEAD_SIDE, ConvHead, PixelHead, TokenHead, TokenMapHead
from faustnet.nn.layers import Layer
from faustnet.nn.modules import Linear
from faustnet.nn.network import Network
from faustnet.nn.transformer import PatchBody, TextBody, TransformerBody

NETWORK_KINDS = ("dense", "vgg", "residual", "transformer")


class TextShape(NamedTuple):
    """Number of tokens of a text, shorter ones being padded, and number of different tokens."""

    length: int
    vocabulary: int


Shape = tuple[int, int, int] | TextShape  # of one sample
CHOICES = {
    "kind": NETWORK_KINDS,
    "passes_on": ("activation", "embedding"),
    "length": ("free", "unit", "learned"),
    "norm": ("layer", "batch"),
}


@dataclass(frozen=True)
class NetworkSettings:
    """Architecture of a network.

    Args:
        widths: Number of units or channels of each layer.
        embedding: Size of the embeddings; 0 for no projection.
        dropout: Dropout probability of the output of each layer.
        input_dropout: Dropout probability of the images.
        passes_on: Output that a layer passes on: "activation", as in the text of the paper, or "embedding", as in line 10 of
            its Algorithm 1.
        length: Norm of the embeddings: "free" (not normalised), "unit" (1) or "learned" (one learned value per layer).
        norm: Normalisation in dense layers: "layer" norm after ReLU, or "batch" norm before ReLU. Convolutional layers
            always use batch norm.
        kind: "dense", "vgg" (one convolution per layer), "residual" (three convolutions per layer, with a residual
            connection around the last two) or "transformer" (one block of self-attention per layer).
        pools: Numbers of the convolutional layers, from 1, that halve the height and width by max-pooling.
        head: Number of channels in the two convolutions of the head of each layer of a convolutional network or of a
            transformer on images, or of hidden units in the head of each layer of a transformer on texts; 0 for none.
        head_side: Height and width, at most, of the feature maps that a head convolves; larger ones are averaged first.
        patch: Height and width of the patches that a transformer splits images into.
        heads: Number of attention heads of a transformer, a divisor of its width.
        expansion: Number of hidden units of a transformer's feed-forward networks, as a multiple of the width.
    """

    widths: tuple[int, ...] = (500, 500, 500)
    embedding: int = 256
    dropout: float = 0.0
    input_dropout: float = 0.0
    passes_on: str = "activation"
    length: str = "free"
    norm: str = "layer"
    kind: str = "dense"
    pools: tuple[int, ...] = ()
    head: int = 256
    head_side: int = HEAD_SIDE
    patch: int = 4
    heads: int = 4
    expansion: int = 2

    def __post_init__(self) -> None:
        for key, choices in CHOICES.items():
            value = getattr(self, key)
            require(value in choices, f"network.{key} must be {' or '.join(choices)}, got {value!r}.")
        require(
            bool(self.widths) and min(self.widths) >= 1,
            f"network.widths must be one or more numbers of at least 1, got {list(self.widths)}: try 500,500,500.",
        )
        require(self.embedding >= 0, f"network.embedding must be 0 (no projection) or more, got {self.embedding}.")
        for key in ("dropout", "input_dropout"):
            value = getattr(self, key)
            require(0 <= value < 1, f"network.{key} must be at least 0 and below 1, got {value}.")
        require(self.head >= 0, f"network.head must be 0 (no convolutions) or more, got {self.head}.")
        self._check_kind()

    def _check_kind(self) -> None:
        """Refuse settings that do not go together."""
        if self.kind not in ("vgg", "residual"):
            require(
                not self.pools,
                f"network.pools must be empty for network.kind={self.kind}, got {list(self.pools)}: leave it out.",
            )
        if self.kind != "dense":
            require(
                self.passes_on == "activation",
                f"network.passes_on must be activation for network.kind={self.kind}, got {self.passes_on!r}: leave it out.",
            )
        count = len(self.widths)
        require(
            len(set(self.pools)) == len(self.pools) and set(self.pools) <= set(range(1, count + 1)),
            f"network.pools must contain different layer numbers from 1 to {count}, got {list(self.pools)}.",
        )
        for key in ("head_side", "patch", "heads", "expansion"):
            require(getattr(self, key) >= 1, f"network.{key} must be at least 1, got {getattr(self, key)}.")
        if self.kind == "dense":
            self.require_defaults("head_side")
        require(
            self.head > 0 or self.head_side == HEAD_SIDE,
            f"network.head_side has no effect with network.head=0, got {self.head_side}: leave it out.",
        )
        if self.kind != "transformer":
            self.require_defaults("patch", "heads", "expansion")
        else:
            self.require_defaults("norm")
            require(
                len(set(self.widths)) == 1,
                f"network.widths must be equal for network.kind=transformer, got {list(self.widths)}: try 192,192,192,192.",
            )
            require(
                self.widths[0] % self.heads == 0,
                f"network.heads must be a divisor of the width, {self.widths[0]}, got {self.heads}.",
            )

    def require_defaults(self, *names: str) -> None:
        """Refuse settings that have no effect on this kind of network."""
        for name in names:
            value, default = getattr(self, name), getattr(NetworkSettings, name)
            require(
                value == default,
                f"network.{name} must be {default} for network.kind={self.kind}, on which it has no effect, got {value}: "
                "leave it out.",
            )

    def check_used(self, *names: str, method: str) -> None:
        """Refuse settings that a method would ignore: all but the named ones must have their default values."""
        for field in fields(self):
            value = getattr(self, field.name)
            require(
                field.name in names or value == field.default,
                f"network.{field.name} has no effect on {method}, got {value!r}: leave it out.",
            )

    def weights(self, shape: Shape) -> int:
        """Return the approximate number of weights for samples of this shape."""
        if self.kind == "transformer":
            inputs = shape.vocabulary if isinstance(shape, TextShape) else shape[0] * self.patch**2
            block = sum(width * ((4 + 2 * self.expansion) * width + self.embedding) for width in self.widths)
            return block + inputs * self.widths[0]
        before = math.prod(shape) if self.kind == "dense" else shape[0]
        total = 0
        for width in self.widths:
            if self.kind == "dense":
                total += width * (before + self.embedding)
            else:
                inside = 2 * width if self.kind == "residual" else 0
                total += 9 * (width * (before + inside + self.head) + self.head**2) + (self.head or width) * self.embedding
            before = width
        return total


def embedding_network(shape: Shape, settings: NetworkSettings, *, project: bool = True) -> Network:
    """Return a network for samples of this shape whose layers have embeddings.

    Without `project`, layers have no projections, and in convolutional networks and transformers only the last layer has a
    head.
    """
    if settings.kind == "transformer":
        return _transformer(shape, settings, project)
    if settings.kind == "dense":
        return _dense_network(image_shape(shape, settings), settings, project)
    return _conv_network(image_shape(shape, settings), settings, project)


def image_shape(shape: Shape, settings: NetworkSettings) -> tuple[int, int, int]:
    """Refuse texts, which are for transformers."""
    if isinstance(shape, TextShape):
        raise FaustnetError(f"network.kind must be transformer for texts, got {settings.kind!r}.")
    return shape


def _dense_network(shape: tuple[int, int, int], settings: NetworkSettings, project: bool) -> Network:
    embedding = settings.embedding if project else 0
    passes_embedding = project and settings.passes_on == "embedding"
    layers: list[Layer] = []
    inputs = math.prod(shape)
    for width in settings.widths:
        body = DenseBody(inputs, width, batch_norm=settings.norm == "batch")
        layers.append(
            Layer(
                body,
                Linear(width, embedding, bias=False) if embedding else None,
                dropout=settings.dropout if layers else settings.input_dropout,
                length=settings.length if project else "free",
                passes_embedding=passes_embedding,
            )
        )
        inputs = embedding if passes_embedding and embedding else width
    return Network(layers, example=torch.zeros(1, *shape), dropout=settings.dropout)


def _conv_network(shape: tuple[int, int, int], settings: NetworkSettings, project: bool) -> Network:
    layers: list[Layer] = []
    for inputs, channels, side, pool in convolutions(shape, settings):
        last = len(layers) + 1 == len(settings.widths)
        head = ConvHead(channels, side, settings.head, most=settings.head_side) if project or last else None
        body = ConvBody(inputs, channels, pool=pool, residual=settings.kind == "residual")
        if head is not None and project and settings.embedding:  # after the body: random weights are drawn in this order
            head.add_projection(settings.embedding)
        dropout = settings.dropout if layers else settings.input_dropout
        layers.append(Layer(body, head, dropout=dropout, length=settings.length if project else "free"))
    return Network(layers, example=torch.zeros(1, *shape), dropout=settings.dropout)


def _transformer(shape: Shape, settings: NetworkSettings, project: bool) -> Network:
    width, embedding = settings.widths[0], settings.embedding if project else 0
    blocks = [TransformerBody(width, settings.heads, settings.expansion) for _ in settings.widths]
    first: nn.Module
    if isinstance(shape, TextShape):
        settings.require_defaults("head_side")
        first, example = TextBody(shape.vocabulary, shape.length, width, blocks[0]), torch.ones(1, shape.length).long()
    else:
        require(
            shape[1] % settings.patch == 0 and shape[2] % settings.patch == 0,
            f"network.patch must divide the height and width of the images, {shape[1]}×{shape[2]}, got {settings.patch}.",
        )
        first, example = PatchBody(shape, settings.patch, width, blocks[0]), torch.zeros(1, *shape)
    layers: list[Layer] = []
    for body in (first, *blocks[1:]):
        head: nn.Module | None = None
        if (project or len(layers) + 1 == len(blocks)) and isinstance(first, PatchBody):
            head = TokenMapHead(width, first.grid, settings.head, embedding, settings.head_side)
        elif project or len(layers) + 1 == len(blocks):
            head = TokenHead(width, settings.head, embedding)
        dropout = settings.dropout if layers else settings.input_dropout
        layers.append(Layer(body, head, dropout=dropout, length=settings.length if project else "free"))
    return Network(layers, example=example, dropout=settings.dropout)


def goodness_conv_network(shape: Shape, settings: NetworkSettings, *, norm_first: bool, groups: int = 1) -> Network:
    """Return convolutional layers without heads, for losses of the goodness. Every second layer is a grouped convolution
    with this many groups."""
    require(settings.kind == "vgg", f"network.kind must be vgg for this method, got {settings.kind!r}.")
    shape = image_shape(shape, settings)
    layers: list[Layer] = []
    for inputs, channels, _, pool in convolutions(shape, settings):
        body = GoodnessConvBody(inputs, channels, pool=pool, groups=groups if len(layers) % 2 else 1, norm_first=norm_first)
        layers.append(Layer(body, PixelHead(), dropout=settings.dropout if layers else settings.input_dropout))
    return Network(layers, example=torch.zeros(1, *shape), dropout=settings.dropout)


def convolutions(shape: tuple[int, int, int], settings: NetworkSettings) -> Iterator[tuple[int, int, tuple[int, int], bool]]:
    """Yield of each convolutional layer the channels of its input and of its output, the height and width of its output,
    and whether it pools."""
    inputs, height, width = shape
    for number, channels in enumerate(settings.widths, start=1):
        pool = number in settings.pools
        require(
            not pool or min(height, width) > 1,
            f"network.pools must have at most {min(shape[1:]).bit_length() - 1} layers for images of {shape[1]}×{shape[2]}, "
            f"got {len(settings.pools)}.",
        )
        if pool:
            height, width = height // 2, width // 2
        yield inputs, channels, (height, width), pool
        inputs = channels


def rms_network(shape: Shape, settings: NetworkSettings) -> Network:
    """Return Forward-Forward's layers for images of this shape."""
    require(settings.kind == "dense", f"network.kind must be dense for this method, got {settings.kind!r}.")
    shape = image_shape(shape, settings)
    layers = [
        Layer(RmsBody(before, width), dropout=settings.dropout if i else settings.input_dropout)
        for i, (before, width) in enumerate(pairwise([math.prod(shape), *settings.widths]))
    ]
    return Network(layers, example=torch.zeros(1, *shape), dropout=settings.dropout)
