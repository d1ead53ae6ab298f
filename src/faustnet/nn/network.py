"""Networks: sequences of layers, and how one is built from settings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from torch import Tensor, nn

from faustnet.errors import FaustnetError, require, unknown
from faustnet.nn.conv import ConvLayer, GoodnessConvLayer, Shape, shape_after
from faustnet.nn.layers import DenseLayer, Layer, RmsLayer
from faustnet.nn.modules import BatchNorm

KINDS = ("dense", "vgg", "residual")
PASSES_ON = ("activation", "embedding")
LENGTHS = ("free", "unit", "learned")
NORMS = ("layer", "batch")
LOSSES_AT_ONCE = 4  # dense layers whose losses are computed together


@dataclass(frozen=True)
class NetworkSettings:
    """The shape of a network.

    Its layers are `kind` "dense", or convolutional: "vgg" has one convolution in each, "residual" three, two of which are
    added to what the first has made. `widths` are their units or channels, `embedding` is the size of their embeddings, 0
    for no projection. `pools` names the convolutional layers, numbered from 1, that halve their pictures, and `head` is how
    many channels their heads' convolutions have, 0 for heads without any.

    The paper contradicts itself on what a layer passes on: its text says the normalised activation, line 10 of its
    Algorithm 1 says the embedding. `passes_on` offers both.

    `dropout` is of what layers pass on, `input_dropout` of what the first one receives. `length` is that of an embedding:
    "free", "unit", or "learned", one for each layer. `norm` is dense layers': "layer" norm after their ReLU or "batch" norm
    before it, which convolutional ones have in any case.
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
        if self.kind not in KINDS:
            raise unknown("kind of network", self.kind, KINDS)
        if not self.widths or min(self.widths) < 1:
            raise FaustnetError(
                f"Every layer needs at least one unit, but the widths are {list(self.widths)}: give e.g. 500,500,500."
            )
        if self.embedding < 0:
            raise FaustnetError(f"An embedding has a size, not {self.embedding}: give a number, or 0 for no projection.")
        for share in (self.dropout, self.input_dropout):
            if not 0 <= share < 1:
                raise FaustnetError(f"Dropout is a probability from 0 to below 1, not {share}.")
        if self.length not in LENGTHS:
            raise FaustnetError(f"The length of embeddings is {' or '.join(LENGTHS)}, not {self.length!r}.")
        if self.norm not in NORMS:
            raise FaustnetError(f"Layers have {' or '.join(NORMS)} norm, not {self.norm!r}.")
        if self.passes_on not in PASSES_ON:
            raise FaustnetError(f"A layer passes on its {' or its '.join(PASSES_ON)}, not {self.passes_on!r}.")
        require(self.head >= 0, f"A head has a number of channels, or 0 for no convolution, not {self.head}.")
        if self.kind == "dense":
            require(not self.pools, "Dense layers have no pictures to halve: leave out network.pools, or use vgg.")
            return
        require(self.passes_on == "activation", "Convolutional layers pass on their activation: leave out passes_on.")
        numbers = range(1, len(self.widths) + 1)
        if len(set(self.pools)) < len(self.pools) or not set(self.pools) <= set(numbers):
            raise FaustnetError(f"network.pools names layers from 1 to {len(numbers)}, each once, not {list(self.pools)}.")

    def weights(self, shape: Shape) -> int:
        """About how many there will be, for images of this shape."""
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
        dropout: Probability of setting a value that a layer passes on to zero while training. Each layer but the first
            applies it to its input; a method that reads the last layer's output applies it itself.
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
        """Yield each layer's embedding in turn. (R, …) → (R, e_i)

        The activation passed to the next layer is detached, so the graph of an embedding spans one layer. It is computed
        before the embedding is yielded, so an update of the layer in between does not change it (Algorithm 1).
        """
        rows = rows.flatten(1)
        for layer in self:
            activation, embedding = layer(rows)
            rows = activation.detach()
            del activation
            yield embedding

    def forward(self, rows: Tensor) -> Tensor:
        """Return the last layer's activation, differentiable through every layer. (R, …) → (R, outputs)"""
        return self._through(rows)[0]

    def embed(self, rows: Tensor) -> Tensor:
        """Return the last layer's embedding, differentiable through every layer. (R, …) → (R, e)"""
        return self._through(rows)[1]

    def _through(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = embedding = rows.flatten(1)
        for layer in self:
            rows, embedding = layer(rows)
        return rows, embedding


def embedding_network(shape: Shape, settings: NetworkSettings, *, project: bool = True) -> Network:
    """Layers with embeddings, for images of this shape; without `project`, plain ones that have none of their own, but for
    the head of the last one, if they are convolutional."""
    if settings.kind == "dense":
        return _dense_network(shape[0] * shape[1] * shape[2], settings, project)
    return _conv_network(shape, settings, project)


def _dense_network(inputs: int, settings: NetworkSettings, project: bool) -> Network:
    """The paper's layers."""
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
    """Convolutional layers without heads, for losses that look at how active they are; every second one's channels are in
    so many groups."""
    require(
        settings.kind == "vgg", f"This method's layers are plain convolutions, not {settings.kind}: set network.kind=vgg."
    )
    layers = [
        GoodnessConvLayer(**common, groups=1 if number % 2 else groups, norm_first=norm_first)
        for number, common in enumerate(_convolutions(shape, settings), start=1)
    ]
    return Network(layers, settings.dropout)


def _convolutions(shape: Shape, settings: NetworkSettings) -> Iterator[dict[str, Any]]:
    """What convolutional layers of all kinds are made of, one after the other."""
    before = shape
    for number, channels in enumerate(settings.widths, start=1):
        first, pool = number == 1, number in settings.pools
        small = f"Images of {shape[1]}×{shape[2]} cannot be halved so often: name fewer layers in network.pools."
        require(not pool or min(before[1:]) > 1, small)
        dropout = settings.input_dropout if first else settings.dropout
        yield {"shape": before, "channels": channels, "pool": pool, "first": first, "dropout": dropout}
        before = shape_after(before, channels, pool)


def rms_network(shape: Shape, settings: NetworkSettings) -> Network:
    """Forward-Forward's layers."""
    require(settings.kind == "dense", f"This method's layers are dense, not {settings.kind}: leave out network.kind.")
    inputs = shape[0] * shape[1] * shape[2]
    layers = [
        RmsLayer(before, width, dropout=settings.dropout if i else settings.input_dropout)
        for i, (before, width) in enumerate(pairwise([inputs, *settings.widths]))
    ]
    return Network(layers, settings.dropout)
