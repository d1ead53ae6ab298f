"""One trainable layer: rows in → (activation, embedding).

The activation is what the next layer receives; the embedding is what the layer's own loss looks at. A layer owns no
loss, and a forward pass trains nothing.

Several layers of one kind can be `stacked` into one that does the work of all of them at once: its parameters and its
rows have one dimension more, in front, for the layers. So a dense layer looks at the last two dimensions only. The first
layer of a network, which is like the others but for its inputs, may be one of them: then rows come as two tensors.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faustnet.devices import has_triton
from faustnet.slices import Slice

Rows = Tensor | tuple[Tensor, Tensor]
ENTRY = "linear.weight"  # the parameter that depends on how many inputs a layer has
EPSILON = 1e-5  # that is added to a variance
PROTOTYPE_SIZE = 3**-0.5  # of each value: so is that of an embedding, before anything is learned


class Layer(nn.Module, ABC):
    """Rows of `inputs` values become activations of `passed_on` values and embeddings of `embedding_size`.

    Dropout is of what the layer receives; a layer embeds what it has made of that, all of it.
    """

    stackable: ClassVar[bool] = True  # whether several layers of its kind can be one
    part: Slice | None = None  # which rows of a batch it is trained on, if others are on other ranks

    def __init__(self, inputs: int, passed_on: int, embedding_size: int, dropout: float):
        super().__init__()
        self.inputs, self.passed_on, self.embedding_size = inputs, passed_on, embedding_size
        self.dropout = dropout

    @property
    def multiplications(self) -> int:
        """That one row takes."""
        return sum(module.weight.numel() for module in self.modules() if isinstance(module, Linear))

    @property
    def trunk(self) -> Iterator[nn.Parameter]:
        """The parameters that make what is passed on."""
        return self.parameters()

    @property
    def most_values(self) -> int:
        """That one row becomes, on the way through."""
        return self.passed_on

    @property
    def kind(self) -> tuple[object, ...]:
        """Layers of one kind can be stacked: they differ in the values of their parameters alone, and perhaps in how many
        inputs they have."""
        if not self.stackable:
            return (id(self),)
        settings = sorted((name, value) for name, value in vars(self).items() if isinstance(value, int | float))
        shapes = ((name, p.shape[:1] if name == ENTRY else p.shape) for name, p in self.named_parameters())
        return type(self), *(pair for pair in settings if pair[0] != "inputs"), *shapes

    def forward(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """(…, R, inputs) → (…, R, passed_on), (…, R, embedding_size)"""
        return self.transform(self.drop(rows))

    def drop(self, rows: Rows) -> Rows:
        """Some values of what is received set to nought, while training."""
        if not self.dropout or not self.training:
            return rows
        if self.part is not None and isinstance(rows, Tensor):
            return self.part.dropout(rows, self.dropout)
        return _each(functools.partial(functional.dropout, p=self.dropout), rows)

    def take_part(self, part: Slice | None) -> None:
        """From now on train on these rows of each batch."""
        for module in self.modules():
            if isinstance(module, Layer | BatchNorm):
                module.part = part

    @abstractmethod
    def transform(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """What `forward` does after dropout."""

    @torch.no_grad()
    def settle(self, rows: Tensor) -> Tensor:
        """Let batch norms, if there are any, take on the statistics of these rows, for prediction; what becomes of the rows
        is for the next layer. (R, inputs) → (R, passed_on)"""
        norms = [module for module in self.modules() if isinstance(module, BatchNorm)]
        for norm in norms:
            norm.settling = True
        try:
            return self(rows)[0]
        finally:
            for norm in norms:
                norm.settling = False


class EmbeddingLayer(Layer):
    """A layer with embeddings of its own.

    An embedding's `length` is "free", "unit", or "learned": the same for all of them, and a parameter of the layer. Since
    a squared distance grows with the square of the length, that is to learn the scale of the distances.

    A layer may have `prototypes`, learned rows that stand for classes. While it is trained they come after the embeddings
    of what went in, as if they had been embedded with it, so that its loss reaches them.
    """

    passes_embedding = False
    projection: "Linear | None"  # what makes embeddings, where they are not simply what the layer made
    prototypes: nn.Parameter | None  # (C · K, embedding_size)

    def __init__(self, inputs: int, passed_on: int, embedding_size: int, *, dropout: float, length: str):
        super().__init__(inputs, passed_on, embedding_size, dropout)
        self.unit = length != "free"
        self.gain = nn.Parameter(torch.ones(1)) if length == "learned" else None
        self.register_parameter("prototypes", None)

    @property
    def trunk(self) -> Iterator[nn.Parameter]:
        for name, part in self.named_children():
            if self.passes_embedding or name not in ("head", "projection"):
                yield from part.parameters()

    def to_length(self, embedding: Tensor) -> Tensor:
        if self.unit:
            embedding = functional.normalize(embedding, dim=-1)
        return embedding if self.gain is None else embedding * self.gain.unsqueeze(-1)

    def with_prototypes(self, embedding: Tensor) -> Tensor:
        """(…, R, e) → (…, R + C · K, e) in training, if there are any"""
        if self.prototypes is None or not self.training:
            return embedding
        return torch.cat([embedding, self.to_length(self.prototypes.to(embedding.dtype))], dim=-2)

    def add_prototypes(self, count: int) -> None:
        """About as long as embeddings are at first, in random directions."""
        self.prototypes = nn.Parameter(torch.randn(count, self.embedding_size) * PROTOTYPE_SIZE)

    @property
    def references(self) -> Tensor:
        """The prototypes as distances are measured to them."""
        assert self.prototypes is not None
        return self.to_length(self.prototypes.detach())


class DenseLayer(EmbeddingLayer):
    """The paper's layer: linear, ReLU, layer norm → activation; a linear projection of that → embedding. If `batch_norm`,
    the activation is linear, batch norm, ReLU.

    The layer norm has no gain and offset of its own: the projection and the next layer are linear and can do without.
    The projection has no bias: it would cancel in every distance. With `embedding` 0 there is no projection, and the
    activation serves as the embedding.
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
        self.linear: Linear | EntryLinear = Linear(inputs, width)
        self.norm = BatchNorm(width) if batch_norm else None
        self.projection = Linear(width, embedding, bias=False) if embedding else None
        self.passes_embedding = passes_embedding

    def transform(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.norm is None:
            activation = relu_norm(self.linear, rows)
        else:
            activation = functional.relu(self.norm(self.linear(rows)), inplace=True)
        embedding = self.to_length(activation if self.projection is None else self.projection(activation))
        return embedding if self.passes_embedding else activation, self.with_prototypes(embedding)


class RmsLayer(Layer):
    """Forward-Forward's layer: divide the input by its root mean square, linear, ReLU.

    Only the length of what comes in is taken away, so the goodness of the layer before cannot simply be read off it.
    What comes out is both the activation and the embedding, at its full length: that length is the goodness.
    """

    def __init__(self, inputs: int, width: int, *, dropout: float):
        super().__init__(inputs, width, width, dropout)
        self.linear = Linear(inputs, width)

    def transform(self, rows: Rows) -> tuple[Tensor, Tensor]:
        activity = functional.relu(self.linear(_each(unit_rms, rows)))
        return activity, activity


class BatchNorm(nn.Module):
    """Each channel with mean 0 and variance 1, then a gain and an offset: over the batch while training, and by what was
    `settled` afterwards, so that nothing that happens in between can spoil it. (R, channels, …) → the same

    In a stack, gain and offset (n, channels), it is for the rows of dense layers, (n, R, channels)."""

    mean: Tensor
    variance: Tensor
    part: Slice | None = None  # as a layer's

    def __init__(self, channels: int):
        super().__init__()
        self.gain, self.offset = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.settling = False

    def forward(self, rows: Tensor) -> Tensor:
        if self.gain.dim() == 2:
            variance, mean = torch.var_mean(rows, dim=1, correction=0, keepdim=True)
            return (rows - mean) * ((variance + EPSILON).rsqrt() * self.gain.unsqueeze(1)) + self.offset.unsqueeze(1)
        if self.training and self.part is not None:
            return self.part.batch_norm(rows, self.gain, self.offset, EPSILON)
        if self.training:
            return functional.batch_norm(rows, None, None, self.gain, self.offset, training=True, eps=EPSILON)
        if self.settling:
            variance, mean = torch.var_mean(rows, dim=[0, *range(2, rows.dim())], correction=0)
            self.variance.copy_(variance)
            self.mean.copy_(mean)
        return functional.batch_norm(rows, self.mean, self.variance, self.gain, self.offset, eps=EPSILON)


class Product:
    """A module that multiplies by its weight. `product_type` is what is multiplied in while training, where that is not the
    weight's own type. What comes out is of the type that was multiplied in."""

    product_type: torch.dtype | None = None
    training: bool

    def cast(self, tensor: Tensor) -> Tensor:
        return tensor if self.product_type is None or not self.training else tensor.to(self.product_type)


class Linear(Product, nn.Linear):
    """A linear map, or a stack of them: weight (…, outputs, inputs), bias (…, outputs)."""

    def forward(self, rows: Tensor) -> Tensor:
        """(…, R, inputs) → (…, R, outputs)"""
        if self.bias is None or self.weight.dim() == 3:
            result = self.product(rows)
            return result if self.bias is None else result + self.bias.unsqueeze(-2).to(result.dtype)
        weight = self.cast(self.weight)
        return functional.linear(rows.to(weight.dtype), weight, self.cast(self.bias))

    def product(self, rows: Tensor) -> Tensor:
        """The same without the bias."""
        weight = self.cast(self.weight)
        together = functional.linear if weight.dim() == 2 else _StackedProduct.apply
        return together(rows.to(weight.dtype), weight)


class _StackedProduct(torch.autograd.Function):
    """n products at once: (n, R, inputs), (n, outputs, inputs) → (n, R, outputs). Left to itself, the weights' gradient
    would come transposed, and be copied before it is used."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, weight = ctx.saved_tensors
        by_rows = torch.bmm(by_output, weight) if ctx.needs_input_grad[0] else None
        return by_rows, torch.bmm(by_output.mT, rows)


class EntryLinear(nn.Module):
    """A stack of linear maps of which the first has other inputs than the rest: entry (1, outputs, inputs₀), weight
    (n − 1, outputs, inputs), bias (n, outputs)."""

    def __init__(self, entry: nn.Parameter, weight: nn.Parameter, bias: nn.Parameter):
        super().__init__()
        self.entry, self.weight, self.bias = entry, weight, bias
        self.out_features = weight.shape[1]

    def forward(self, rows: tuple[Tensor, Tensor]) -> Tensor:
        """(1, R, inputs₀) and (n − 1, R, inputs) → (n, R, outputs)"""
        return self.product(rows) + self.bias.unsqueeze(-2)

    def product(self, rows: tuple[Tensor, Tensor]) -> Tensor:
        """The same without the bias."""
        first, others = (part.to(self.weight.dtype) for part in rows)
        return _EntryProduct.apply(first, others, self.entry, self.weight)


class _EntryProduct(torch.autograd.Function):
    """Both of an `EntryLinear`'s products, into one tensor. Nothing goes back to the rows."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, others: Tensor, entry: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(first, others)
        together = others.new_empty(1 + len(others), others.shape[1], weight.shape[1])
        torch.bmm(others, weight.mT, out=together[1:])
        torch.mm(first[0], entry[0].mT, out=together[0])
        return together

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor) -> tuple[None, None, Tensor, Tensor]:
        first, others = ctx.saved_tensors
        return None, None, torch.bmm(by_output[:1].mT, first), torch.bmm(by_output[1:].mT, others)


def _each(function: Callable[[Tensor], Tensor], rows: Rows) -> Rows:
    return function(rows) if isinstance(rows, Tensor) else (function(rows[0]), function(rows[1]))


def relu_norm(linear: "Linear | EntryLinear", rows: Any) -> Tensor:
    """A linear map, ReLU, then layer norm without gain and offset. (…, R, inputs) → (…, R, outputs)"""
    if linear.weight.dtype != torch.float64 and has_triton(linear.weight.device):
        from faustnet.kernels import WIDEST, relu_norm

        if linear.out_features <= WIDEST:
            return relu_norm(linear.product(rows), linear.bias)
    hidden = functional.relu(linear(rows), inplace=True)
    return functional.layer_norm(hidden, hidden.shape[-1:])


def unit_rms(rows: Tensor) -> Tensor:
    """Each row divided by its root mean square; a row of zeros stays one. (…, d) → (…, d)"""
    return functional.rms_norm(rows, rows.shape[-1:], eps=torch.finfo(rows.dtype).tiny)
