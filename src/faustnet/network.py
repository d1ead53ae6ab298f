"""A stack of layers, and the two ways to walk it: layer by layer with nothing flowing back, or as one function."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.layers import DenseLayer, Layer, RmsLayer

PASSES_ON = ("activation", "embedding")
LENGTHS = ("free", "unit", "learned")


@dataclass(frozen=True)
class NetworkSettings:
    """The shape of a network of dense layers.

    The paper contradicts itself on what a layer passes on: its text says the normalised activation, line 10 of its
    Algorithm 1 says the embedding. `passes_on` offers both.

    `dropout` is of what layers pass on, `input_dropout` of what the first one receives. `length` is that of an embedding:
    "free", "unit", or "learned", one for each layer.
    """

    widths: tuple[int, ...] = (500, 500, 500)
    embedding: int = 256
    dropout: float = 0.0
    input_dropout: float = 0.0
    passes_on: str = "activation"
    length: str = "free"

    def __post_init__(self) -> None:
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
        if self.passes_on not in PASSES_ON:
            raise FaustnetError(f"A layer passes on its {' or its '.join(PASSES_ON)}, not {self.passes_on!r}.")


class Network(nn.Module):
    """Layers that follow one another. Rows of any shape are flattened on entry.

    `dropout` is of what layers pass on: every layer but the first drops that much of what it receives, and so should
    whatever reads the last one.
    """

    def __init__(self, layers: Iterable[Layer], dropout: float):
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

    def walk(self, rows: Tensor) -> Iterator[Tensor]:
        """Each layer's embedding in turn, (R, e_i). What goes on to the next layer is detached, so the graph behind an
        embedding spans one layer; and it was computed before the caller did anything with that embedding (Algorithm 1)."""
        rows = rows.flatten(1)
        for layer in self:
            activation, embedding = layer(rows)
            rows = activation.detach()
            del activation
            yield embedding

    def forward(self, rows: Tensor) -> Tensor:
        """The last layer's activation, differentiable through every layer. (R, …) → (R, passed_on)"""
        rows = rows.flatten(1)
        for layer in self:
            rows, _ = layer(rows)
        return rows


def dense_network(inputs: int, settings: NetworkSettings, *, project: bool = True) -> Network:
    """The paper's layers; without `project`, plain ones that have no embedding of their own."""
    embedding = settings.embedding if project else 0
    passes_embedding = project and settings.passes_on == "embedding"
    layers: list[DenseLayer] = []
    for width in settings.widths:
        before, dropout = (layers[-1].passed_on, settings.dropout) if layers else (inputs, settings.input_dropout)
        how: dict[str, Any] = {"passes_embedding": passes_embedding, "length": settings.length if project else "free"}
        layers.append(DenseLayer(before, width, embedding, dropout=dropout, **how))
    return Network(layers, settings.dropout)


def rms_network(inputs: int, settings: NetworkSettings) -> Network:
    """Forward-Forward's layers."""
    layers = [
        RmsLayer(before, width, dropout=settings.dropout if i else settings.input_dropout)
        for i, (before, width) in enumerate(pairwise([inputs, *settings.widths]))
    ]
    return Network(layers, settings.dropout)
