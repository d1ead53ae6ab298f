"""Networks: sequences of layers, and how one is built from settings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, cast

from torch import Tensor, nn

from faustnet.errors import require
from faustnet.nn.conv import ConvLayer, GoodnessConvLayer, Shape, shape_after
from faustnet.nn.layers import DenseLayer, Layer, RmsLayer
from faustnet.nn.modules import BatchNorm

NETWORK_KINDS = ("dense", "vgg", "residual")
LOSSES_AT_ONCE = 4  # dense layers whose losses are computed together
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
        kind: "dense", "vgg" (one convolution per layer) or "residual" (three convolutions per layer, with a residual
            connection around the last two).
        pools: Numbers of the convolutional layers, from 1, that halve the height and width by max-pooling.
        head: Number of channels in the two convolutions of the head of each convolutional layer; 0 for none.
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
        if self.kind == "dense":
            require(
                not self.pools, f"network.pools must be empty for network.kind=dense, got {list(self.pools)}: leave it out."
            )
            return
        require(
            self.passes_on == "activation",
            f"network.passes_on must be activation for network.kind={self.kind}, got {self.passes_on!r}: leave it out.",
        )
        count = len(self.widths)
        require(
            len(set(self.pools)) == len(self.pools) and set(self.pools) <= set(range(1, count + 1)),
            f"network.pools must contain different layer numbers from 1 to {count}, got {list(self.pools)}.",
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
        """Return the approximate number of weights for images of this shape."""
        before = shape[0] * shape[1] * shape[2] if self.kind == "dense" else shape[0]
        total = 0
        for width in self.widths:
            if self.kind == "dense":
                total += width * (before + self.embedding)
            else:
                inside = 2 * width if self.kind == "residual" else 0
                total += 9 * (width * (before + inside + self.head) + self.head**2) + (self.head or width) * self.embedding
            before = width
        return total


class Network(nn.Module):
    """A sequence of layers.

    Args:
        layers: The layers in order. Inputs of any shape are flattened to rows before the first one.
        dropout: Dropout probability of the output of each layer. Each layer but the first applies it to its input; a method
            that uses the output of the last layer applies it itself.
    """

    def __init__(self, layers: Iterable[Layer], dropout: float = 0.0):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropout = dropout

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return (cast(Layer, layer) for layer in self.layers)

    def __getitem__(self, number: int) -> Layer:
        return cast(Layer, self.layers[number])

    @property
    def embedding_sizes(self) -> list[int]:
        return [layer.embedding_size for layer in self]

    @property
    def losses_at_once(self) -> int:
        """Number of layers whose losses are computed together. A loss consists of small operations, which take as long for
        four layers as for one. But the activations of all layers of a group are in memory at once, so convolutional
        layers are computed one by one."""
        return LOSSES_AT_ONCE if all(layer.batch_key is not None for layer in self) else 1

    @property
    def has_batch_norm(self) -> bool:
        """Whether `update_statistics` has anything to do."""
        return any(isinstance(module, BatchNorm) for module in self.modules())

    def update_statistics(self, rows: Tensor) -> None:
        """Set the statistics of all `BatchNorm` modules from these rows. (R, …)"""
        rows = rows.flatten(1)
        for layer in self:
            rows = layer.update_statistics(rows)

    def embeddings(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield the embedding of each layer in turn. (R, …) → (R, e_i)

        The activation passed to the next layer is detached, so the autograd graph of an embedding contains one layer. The
        caller may update the layer before it requests the next embedding: the activation was computed before (Algorithm 1).
        """
        rows = rows.flatten(1)
        for layer in self:
            activation, embedding = layer(rows)
            rows = activation.detach()
            del activation
            yield embedding

    def forward(self, rows: Tensor) -> Tensor:
        """Return the activation of the last layer, with a graph through all layers. (R, …) → (R, outputs)"""
        return self._through(rows)[0]

    def embed(self, rows: Tensor) -> Tensor:
        """Return the embedding of the last layer, with a graph through all layers. (R, …) → (R, e)"""
        return self._through(rows)[1]

    def _through(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = embedding = rows.flatten(1)
        for layer in self:
            rows, embedding = layer(rows)
        return rows, embedding


def embedding_network(shape: Shape, settings: NetworkSettings, *, project: bool = True) -> Network:
    """Return a network for images of this shape whose layers have embeddings.

    Without `project`, layers have no projections, and only the last convolutional layer has a head.
    """
    if settings.kind == "dense":
        return _dense_network(shape[0] * shape[1] * shape[2], settings, project)
    return _conv_network(shape, settings, project)


def _dense_network(inputs: int, settings: NetworkSettings, project: bool) -> Network:
    embedding = settings.embedding if project else 0
    passes_embedding = project and settings.passes_on == "embedding"
    layers: list[DenseLayer] = []
    for width in settings.widths:
        before, dropout = (layers[-1].outputs, settings.dropout) if layers else (inputs, settings.input_dropout)
        layers.append(
            DenseLayer(
                before,
                width,
                embedding,
                dropout=dropout,
                passes_embedding=passes_embedding,
                length=settings.length if project else "free",
                batch_norm=settings.norm == "batch",
            )
        )
    return Network(layers, settings.dropout)


def _conv_network(shape: Shape, settings: NetworkSettings, project: bool) -> Network:
    last = len(settings.widths)
    layers = [
        ConvLayer(
            **common,
            embedding=settings.embedding if project else 0,
            residual=settings.kind == "residual",
            head=settings.head if project or number == last else None,
            length=settings.length if project else "free",
        )
        for number, common in enumerate(_convolutions(shape, settings), start=1)
    ]
    return Network(layers, settings.dropout)


def goodness_conv_network(shape: Shape, settings: NetworkSettings, *, norm_first: bool, groups: int = 1) -> Network:
    """Return convolutional layers without heads, for losses of the goodness. Every second layer is a grouped convolution
    with this many groups."""
    require(settings.kind == "vgg", f"network.kind must be vgg for this method, got {settings.kind!r}.")
    layers = [
        GoodnessConvLayer(**common, groups=1 if number % 2 else groups, norm_first=norm_first)
        for number, common in enumerate(_convolutions(shape, settings), start=1)
    ]
    return Network(layers, settings.dropout)


def _convolutions(shape: Shape, settings: NetworkSettings) -> Iterator[dict[str, Any]]:
    """Yield the arguments that both classes of convolutional layers have in common, layer by layer."""
    before = shape
    for number, channels in enumerate(settings.widths, start=1):
        first, pool = number == 1, number in settings.pools
        require(
            not pool or min(before[1:]) > 1,
            f"network.pools must have at most {min(shape[1:]).bit_length() - 1} layers for images of {shape[1]}×{shape[2]}, "
            f"got {len(settings.pools)}.",
        )
        dropout = settings.input_dropout if first else settings.dropout
        yield {"shape": before, "channels": channels, "pool": pool, "first": first, "dropout": dropout}
        before = shape_after(before, channels, pool)


def rms_network(shape: Shape, settings: NetworkSettings) -> Network:
    """Return Forward-Forward's layers for images of this shape."""
    require(settings.kind == "dense", f"network.kind must be dense for this method, got {settings.kind!r}.")
    inputs = shape[0] * shape[1] * shape[2]
    layers = [
        RmsLayer(before, width, dropout=settings.dropout if i else settings.input_dropout)
        for i, (before, width) in enumerate(pairwise([inputs, *settings.widths]))
    ]
    return Network(layers, settings.dropout)
