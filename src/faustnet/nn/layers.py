"""Layers: rows in, (activation, embedding) out.

The activation is passed on to the next layer; the embedding is the input of the layer's own loss. A layer contains no
loss, and a forward pass trains nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from faustnet.nn.modules import BatchNorm, Linear, relu_norm, unit_rms
from faustnet.nn.row_shard import RowShard

PROTOTYPE_SIZE = 3**-0.5  # standard deviation of each value: about that of an untrained embedding


class Layer(nn.Module, ABC):
    """Base class of layers. A subclass implements `transform` with any PyTorch modules.

    Args:
        inputs: Number of values in one input row.
        outputs: Number of values in one row of the activation.
        embedding_size: Number of values in one row of the embedding.
        dropout: Dropout probability of the input.
    """

    shard: RowShard | None = None  # the rows of a batch that this rank has, if other ranks have the rest

    def __init__(self, inputs: int, outputs: int, embedding_size: int, dropout: float = 0.0):
        super().__init__()
        self.inputs, self.outputs, self.embedding_size = inputs, outputs, embedding_size
        self.dropout = dropout

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Apply dropout, then `transform`. (R, inputs) → activation (R, outputs), embedding (R, embedding_size)"""
        return self.transform(self.drop(rows))

    @abstractmethod
    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activation and the embedding. (R, inputs) → (R, outputs), (R, embedding_size)"""

    def drop(self, rows: Tensor) -> Tensor:
        """Apply dropout while training. (R, inputs) → (R, inputs)"""
        if not self.dropout or not self.training:
            return rows
        if self.shard is not None:
            return self.shard.dropout(rows, self.dropout)
        return functional.dropout(rows, self.dropout)

    @property
    def body_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that the activation depends on."""
        return self.parameters()

    @property
    def peak_values(self) -> int:
        """Largest number of values that one row takes up inside the layer; prediction chooses its batch size by it."""
        return self.outputs

    @property
    def multiplications(self) -> int:
        """Number of multiplications in matrix products and convolutions for one row, in evaluation mode."""
        parameter = next(self.parameters(), torch.empty(0))
        training = self.training
        self.eval()
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                self(parameter.new_zeros(1, self.inputs))
        finally:
            self.train(training)
        return counter.get_total_flops() // 2

    @property
    def batch_key(self) -> Hashable | None:
        """Layers with equal keys can be computed together by `faustnet.nn.batched`: they differ only in the values of their
        parameters, and possibly in `inputs`. None: the layer is computed by itself."""
        return None

    def set_shard(self, shard: RowShard | None) -> None:
        """Train on these rows of each batch; other ranks have the rest."""
        for module in self.modules():
            if isinstance(module, Layer | BatchNorm):
                module.shard = shard

    @torch.no_grad()
    def update_statistics(self, rows: Tensor) -> Tensor:
        """Set the statistics of all `BatchNorm` modules from these rows, and return the activation.
        (R, inputs) → (R, outputs)"""
        norms = [module for module in self.modules() if isinstance(module, BatchNorm)]
        hooks = [norm.register_forward_pre_hook(_set_statistics) for norm in norms]
        try:
            return self(rows)[0]
        finally:
            for hook in hooks:
                hook.remove()


def _set_statistics(norm: BatchNorm, arguments: tuple[Tensor]) -> None:
    norm.set_statistics(*arguments)


class EmbeddingLayer(Layer):
    """Base class of FAUST's layers, whose embeddings have a length and may be compared with learned prototypes.

    The `length` of embeddings is "free", "unit", or "learned": one length for all, a parameter of the layer. A squared
    distance grows with the square of the length, so a learned length learns the scale of the distances.

    Prototypes are learned references of the classes. While training they are appended to the embeddings, so that the
    layer's loss reaches them.
    """

    passes_embedding = False
    projection: Linear | None  # maps to the embedding
    prototypes: nn.Parameter | None  # (C · K, embedding_size)

    def __init__(self, inputs: int, outputs: int, embedding_size: int, *, dropout: float, length: str):
        super().__init__(inputs, outputs, embedding_size, dropout)
        self.unit = length != "free"
        self.gain = nn.Parameter(torch.ones(1)) if length == "learned" else None
        self.register_parameter("prototypes", None)

    @property
    def body_parameters(self) -> Iterator[nn.Parameter]:
        for name, part in self.named_children():
            if self.passes_embedding or name not in ("head", "projection"):
                yield from part.parameters()

    def scale_length(self, embedding: Tensor) -> Tensor:
        return scaled(embedding, self.unit, self.gain)

    def append_prototypes(self, embedding: Tensor) -> Tensor:
        """Append the prototypes while training, if there are any. (R, e) → (R, e) or (R + C · K, e)"""
        if self.prototypes is None or not self.training:
            return embedding
        return torch.cat([embedding, self.scale_length(self.prototypes.to(embedding.dtype))], dim=-2)

    def add_prototypes(self, count: int) -> None:
        """Create prototypes with random directions and about the length of untrained embeddings."""
        self.prototypes = nn.Parameter(torch.randn(count, self.embedding_size) * PROTOTYPE_SIZE)

    @property
    def references(self) -> Tensor:
        """Prototypes at the length at which distances are measured. (C · K, embedding_size)"""
        assert self.prototypes is not None
        return self.scale_length(self.prototypes.detach())


def scaled(embedding: Tensor, unit: bool, gain: Tensor | None) -> Tensor:
    """Normalise embeddings to length 1 if `unit`, then multiply by the layer's gain. (…, R, e), (…, 1) → (…, R, e)"""
    if unit:
        embedding = functional.normalize(embedding, dim=-1)
    return embedding if gain is None else embedding * gain.unsqueeze(-1)


class DenseLayer(EmbeddingLayer):
    """The paper's layer. Activation: linear, ReLU, layer norm, or with `batch_norm` linear, batch norm, ReLU. Embedding: a
    linear projection of the activation.

    The layer norm has no gain and offset, because the linear maps after it can learn them. The projection has no bias,
    because it would cancel in every distance. With `embedding` 0 the activation is the embedding.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        embedding: int,
        *,
        dropout: float,
        passes_embedding: bool,
        length: str = "free",
        batch_norm: bool = False,
    ):
        size = embedding or width
        super().__init__(inputs, size if passes_embedding else width, size, dropout=dropout, length=length)
        self.linear = Linear(inputs, width)
        self.norm = BatchNorm(width) if batch_norm else None
        self.projection = Linear(width, embedding, bias=False) if embedding else None
        self.passes_embedding = passes_embedding

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.norm is None:
            activation = relu_norm(self.linear, rows)
        else:
            activation = functional.relu(self.norm(self.linear(rows)), inplace=True)
        embedding = self.scale_length(activation if self.projection is None else self.projection(activation))
        return embedding if self.passes_embedding else activation, self.append_prototypes(embedding)

    @property
    def batch_key(self) -> Hashable | None:
        return batch_key(self, DenseLayer, self.dropout, self.unit, self.passes_embedding)


class RmsLayer(Layer):
    """Forward-Forward's layer: divide each input row by its root mean square, then linear and ReLU.

    The division removes the length of the input, and with it the goodness of the previous layer. The output is both the
    activation and the embedding, at its full length, because that length is the goodness.
    """

    def __init__(self, inputs: int, width: int, *, dropout: float):
        super().__init__(inputs, width, width, dropout)
        self.linear = Linear(inputs, width)

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        activity = functional.relu(self.linear(unit_rms(rows)))
        return activity, activity

    @property
    def batch_key(self) -> Hashable | None:
        return batch_key(self, RmsLayer, self.dropout)


def batch_key(layer: Layer, kind: type[Layer], *settings: object) -> Hashable | None:
    """Return a layer's `batch_key`: its class, its settings, and the name, shape and `requires_grad` of each parameter.

    Subclasses, and layers with modules, buffers, parametrisations or hooks that the class does not have, run by themselves.
    """
    for module in layer.modules():
        known = module is layer or type(module) in (Linear, BatchNorm)
        buffers = {"mean", "variance"} if isinstance(module, BatchNorm) else set()
        if not known or module._forward_hooks or module._forward_pre_hooks or set(module._buffers) != buffers:
            return None
    if type(layer) is not kind or set(layer._modules) - {"linear", "norm", "projection"}:
        return None
    if set(layer._parameters) - {"gain", "prototypes"}:
        return None
    parameters = [
        (name, parameter.shape[:1] if name == "linear.weight" else parameter.shape, parameter.requires_grad)
        for name, parameter in layer.named_parameters()
    ]
    return kind, settings, tuple(parameters)
