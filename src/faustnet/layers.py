"""One trainable layer: rows in → (activation, embedding).

The activation is what the next layer receives; the embedding is what the layer's own loss looks at. A layer owns no
loss, and a forward pass trains nothing.

Several layers of one kind can be `stacked` into one that does the work of all of them at once: its parameters and its
rows have one dimension more, in front, for the layers. So a layer looks at the last two dimensions only.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.devices import has_triton


class Layer(nn.Module, ABC):
    """Rows of `inputs` values become activations of `passed_on` values and embeddings of `embedding_size`.

    Dropout is of what the layer receives; a layer embeds what it has made of that, all of it.
    """

    def __init__(self, inputs: int, passed_on: int, embedding_size: int, dropout: float):
        super().__init__()
        self.inputs, self.passed_on, self.embedding_size = inputs, passed_on, embedding_size
        self.dropout = dropout

    @property
    def kind(self) -> tuple[object, ...]:
        """Layers of one kind can be stacked: they differ in the values of their parameters alone."""
        settings = sorted((name, value) for name, value in vars(self).items() if isinstance(value, int | float))
        return type(self), *settings, *((name, parameter.shape) for name, parameter in self.named_parameters())

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(…, R, inputs) → (…, R, passed_on), (…, R, embedding_size). Embeddings are not in less than float32."""
        activation, embedding = self.transform(functional.dropout(rows, self.dropout, self.training))
        return activation, embedding.to(torch.promote_types(embedding.dtype, torch.float32))

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
        self.linear = Linear(inputs, width)
        self.projection = Linear(width, embedding, bias=False) if embedding else None
        self.passes_embedding = passes_embedding

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        activation = relu_norm(self.linear, rows)
        embedding = activation if self.projection is None else self.projection(activation)
        return (embedding if self.passes_embedding else activation), embedding


class RmsLayer(Layer):
    """Forward-Forward's layer: divide the input by its root mean square, linear, ReLU.

    Only the length of what comes in is taken away, so the goodness of the layer before cannot simply be read off it.
    What comes out is both the activation and the embedding, at its full length: that length is the goodness.
    """

    def __init__(self, inputs: int, width: int, *, dropout: float):
        super().__init__(inputs, width, width, dropout)
        self.linear = Linear(inputs, width)

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        activity = functional.relu(self.linear(unit_rms(rows)))
        return activity, activity


class Linear(nn.Linear):
    """A linear map, or a stack of them: weight (…, outputs, inputs), bias (…, outputs).

    `product_type` is what matrices are multiplied in while training, where it is not the weight's own type. What comes
    out is of the type that was multiplied in.
    """

    product_type: torch.dtype | None = None

    def forward(self, rows: Tensor) -> Tensor:
        """(…, R, inputs) → (…, R, outputs)"""
        if self.bias is None or self.weight.dim() == 3:
            result = self.product(rows)
            return result if self.bias is None else result + self.bias.unsqueeze(-2).to(result.dtype)
        weight = self._cast(self.weight)
        return functional.linear(rows.to(weight.dtype), weight, self._cast(self.bias))

    def product(self, rows: Tensor) -> Tensor:
        """The same without the bias."""
        weight = self._cast(self.weight)
        together = functional.linear if weight.dim() == 2 else _StackedProduct.apply
        return together(rows.to(weight.dtype), weight)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor if self.product_type is None or not self.training else tensor.to(self.product_type)


class _StackedProduct(torch.autograd.Function):
    """n products at once: (n, R, inputs), (n, outputs, inputs) → (n, R, outputs). Left to itself, the weights' gradient
    would come transposed, and be copied before it is used."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.mT)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, weight = ctx.saved_tensors
        by_rows = torch.bmm(by_output, weight) if ctx.needs_input_grad[0] else None
        return by_rows, torch.bmm(by_output.mT, rows)


def stacked(layers: Sequence[Layer]) -> Layer:
    """Layers of one kind as one. From now on they share their parameters' memory with it."""
    together = copy.deepcopy(layers[0])
    for name, _ in layers[0].named_parameters():
        parts = [layer.get_parameter(name) for layer in layers]
        whole = nn.Parameter(torch.stack([part.detach() for part in parts]))
        room, _, last = name.rpartition(".")
        setattr(together.get_submodule(room), last, whole)
        for part, slot in zip(parts, whole.detach(), strict=True):
            part.data = slot
    return together


def relu_norm(linear: Linear, rows: Tensor) -> Tensor:
    """A linear map, ReLU, then layer norm without gain and offset. (…, R, inputs) → (…, R, outputs)"""
    if rows.dtype != torch.float64 and has_triton(rows.device):
        from faustnet.kernels import WIDEST, relu_norm

        if linear.out_features <= WIDEST:
            return relu_norm(linear.product(rows), linear.bias)
    hidden = functional.relu(linear(rows), inplace=True)
    return functional.layer_norm(hidden, hidden.shape[-1:])


def unit_rms(rows: Tensor) -> Tensor:
    """Each row divided by its root mean square; a row of zeros stays one. (…, d) → (…, d)"""
    return functional.rms_norm(rows, rows.shape[-1:], eps=torch.finfo(rows.dtype).tiny)
