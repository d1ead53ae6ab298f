"""Several layers computed as one, for the wavefront schedule.

A layer class opts in: it returns a `batch_key`, and its batched version is in the table `BATCHED`. All others run one by
one. The first layer of a network may have other inputs than the rest; its weight is then kept apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faustnet.nn.layers import DenseLayer, Layer, RmsLayer, scaled
from faustnet.nn.modules import EPSILON, CastModule, relu_norm, unit_rms

FIRST_WEIGHT = "linear.weight"  # the parameter whose shape depends on the number of inputs


@dataclass(frozen=True)
class StackedParameter:
    """One parameter of n layers. The layers' own parameters become views of `master`. Computation uses `working`, which
    shares its memory, or is a copy in a lower precision."""

    name: str  # in each layer
    layers: slice  # of the group
    master: Tensor  # (n, …)
    working: nn.Parameter  # (n, …)

    @property
    def copy(self) -> Tensor:
        """Where an update also writes the new values: the copy, or the master itself."""
        return self.working.detach() if self.working.dtype != self.master.dtype else self.master


class BatchedLayers(ABC):
    """Base class of n layers with one `batch_key`, computed together while training."""

    def __init__(self, layers: Sequence[Layer]):
        module = next((module for module in layers[0].modules() if isinstance(module, CastModule)), None)
        self.dtype = (module.compute_dtype if module else None) or next(layers[0].parameters()).dtype
        self.separate_first = len(layers) > 1 and layers[0].inputs != layers[1].inputs
        self.dropout = layers[0].dropout
        self.parameters: list[StackedParameter] = []
        for name, _ in layers[-1].named_parameters():
            whole = slice(0, len(layers))
            spans = [slice(0, 1), slice(1, len(layers))] if self.separate_first and name == FIRST_WEIGHT else [whole]
            self.parameters += [self._stack(layers[span], span, name) for span in spans]
        self.by_name = {parameter.name: parameter.working for parameter in self.parameters}  # of the last layers
        weights = [parameter.working for parameter in self.parameters if parameter.name == FIRST_WEIGHT]
        self.linear = BatchedLinear(weights, self.by_name["linear.bias"])

    def _stack(self, layers: Sequence[Layer], span: slice, name: str) -> StackedParameter:
        parts = [layer.get_parameter(name) for layer in layers]
        master = torch.stack([part.detach() for part in parts])
        for part, view in zip(parts, master, strict=True):
            part.data = view
        working = nn.Parameter(master.to(self.dtype), requires_grad=parts[0].requires_grad)
        return StackedParameter(name, span, master, working)

    def __call__(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Rows of all layers (n, R, inputs), or of the first (1, R, inputs₀) and of the others (n − 1, R, inputs)
        → activations (n, R, outputs), embeddings (n, R, e)"""
        return self.transform([functional.dropout(part, self.dropout) for part in rows] if self.dropout else rows)

    @abstractmethod
    def transform(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute what the layers' own `transform` computes while training."""


class BatchedLinear:
    """n linear maps: weights (n, outputs, inputs), or those of the first (1, outputs, inputs₀) and of the others; bias
    (n, outputs)."""

    def __init__(self, weights: Sequence[Tensor], bias: Tensor):
        self.weights, self.bias = weights, bias

    def __call__(self, rows: Sequence[Tensor]) -> Tensor:
        """(n, R, inputs), or the first layer's rows and the others' → (n, R, outputs)"""
        return self.product(rows) + self.bias.unsqueeze(-2)

    def product(self, rows: Sequence[Tensor]) -> Tensor:
        """Multiply by the weights, without adding the bias."""
        product = _BatchedProduct if len(rows) == 1 else _FirstAndOthersProduct
        return product.apply(*(part.to(self.bias.dtype) for part in rows), *self.weights)


class BatchedDense(BatchedLayers):
    """`DenseLayer`s."""

    def __init__(self, layers: Sequence[DenseLayer]):
        super().__init__(layers)
        self.unit, self.passes_embedding = layers[0].unit, layers[0].passes_embedding

    def transform(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if "norm.gain" in self.by_name:
            activation = functional.relu(self._batch_norm(self.linear(rows)), inplace=True)
        else:
            activation = relu_norm(self.linear, rows)
        projection = self.by_name.get("projection.weight")
        embedding = activation if projection is None else _BatchedProduct.apply(activation, projection)
        gain, prototypes = self.by_name.get("gain"), self.by_name.get("prototypes")
        embedding = scaled(embedding, self.unit, gain)
        compared = [embedding] if prototypes is None else [embedding, scaled(prototypes, self.unit, gain)]
        return embedding if self.passes_embedding else activation, torch.cat(compared, dim=-2) if compared[1:] else embedding

    def _batch_norm(self, hidden: Tensor) -> Tensor:
        """(n, R, width) → the same shape"""
        gain, offset = self.by_name["norm.gain"].unsqueeze(1), self.by_name["norm.offset"].unsqueeze(1)
        variance, mean = torch.var_mean(hidden, dim=1, correction=0, keepdim=True)
        return (hidden - mean) * ((variance + EPSILON).rsqrt() * gain) + offset


class BatchedRms(BatchedLayers):
    """`RmsLayer`s."""

    def transform(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        activity = functional.relu(self.linear([unit_rms(part) for part in rows]))
        return activity, activity


BATCHED: dict[type[Layer], type[BatchedLayers]] = {DenseLayer: BatchedDense, RmsLayer: BatchedRms}


class _BatchedProduct(torch.autograd.Function):
    """n matrix products: (n, R, inputs), (n, outputs, inputs) → (n, R, outputs). Autograd's own gradient of the weights
    would be transposed in memory, and copied before it is used."""

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


class _FirstAndOthersProduct(torch.autograd.Function):
    """The products of the first layer and of the others, in one tensor. The rows get no gradient."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, others: Tensor, first_weight: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(first, others)
        together = others.new_empty(1 + len(others), others.shape[1], weight.shape[1])
        torch.bmm(others, weight.mT, out=together[1:])
        torch.mm(first[0], first_weight[0].mT, out=together[0])
        return together

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor) -> tuple[None, None, Tensor, Tensor]:
        first, others = ctx.saved_tensors
        return None, None, torch.bmm(by_output[:1].mT, first), torch.bmm(by_output[1:].mT, others)
