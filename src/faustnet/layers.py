"""One trainable layer: rows in → (activation, embedding).

The activation is what the next layer receives; the embedding is what the layer's own loss looks at. A layer owns no
loss, and a forward pass trains nothing.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module, ABC):
    """Rows of `inputs` values become activations of `passed_on` values and embeddings of `embedding_size`.

    Dropout is of what the layer receives; a layer embeds what it has made of that, all of it.
    """

    def __init__(self, inputs: int, passed_on: int, embedding_size: int, dropout: float):
        super().__init__()
        self.inputs, self.passed_on, self.embedding_size = inputs, passed_on, embedding_size
        self.dropout = dropout

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(R, inputs) → (R, passed_on), (R, embedding_size)"""
        return self.transform(functional.dropout(rows, self.dropout, self.training))

    @abstractmethod
    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` does after dropout."""


class DenseLayer(Layer):
    """The paper's layer: linear, ReLU, layer norm → activation; a linear projection of that → embedding.

    The layer norm has no gain and offset of its own: the projection and the next layer are linear and can do without.
    The projection has no bias: it would cancel in every distance. With `embedding` 0 there is no projection, and the
    activation serves as the embedding.
    """

    def __init__(self, inputs: int, width: int, embedding: int, *, dropout: float, passes_embedding: bool):
        size = embedding or width
        super().__init__(inputs, size if passes_embedding else width, size, dropout)
        self.linear = nn.Linear(inputs, width)
        self.projection = nn.Linear(width, embedding, bias=False) if embedding else None
        self.passes_embedding = passes_embedding

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.relu(self.linear(rows))
        activation = functional.layer_norm(hidden, hidden.shape[1:])
        embedding = activation if self.projection is None else self.projection(activation)
        return (embedding if self.passes_embedding else activation), embedding


class RmsLayer(Layer):
    """Forward-Forward's layer: divide the input by its root mean square, linear, ReLU.

    Only the length of what comes in is taken away, so the goodness of the layer before cannot simply be read off it.
    What comes out is both the activation and the embedding, at its full length: that length is the goodness.
    """

    def __init__(self, inputs: int, width: int, *, dropout: float):
        super().__init__(inputs, width, width, dropout)
        self.linear = nn.Linear(inputs, width)

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        activity = functional.relu(self.linear(unit_rms(rows)))
        return activity, activity


def unit_rms(rows: Tensor) -> Tensor:
    """Each row divided by its root mean square; a row of zeros stays one. (R, d) → (R, d)"""
    return functional.rms_norm(rows, rows.shape[1:], eps=torch.finfo(rows.dtype).tiny)
