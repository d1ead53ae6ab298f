"""Several layers computed as one, for the wavefront schedule.

A class of bodies opts in: its batched version is in the table `BATCHED`, and its attribute `batch_settings` contains
everything that two bodies with equal parameters may differ in. Layers with other bodies, or with other heads than a linear
map, run one by one. The first layer of a network may have other inputs than the rest; its weight is then kept apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faustnet.nn.bodies import DenseBody, ReluBody, RmsBody
from faustnet.nn.layers import Layer, scaled
from faustnet.nn.modules import EPSILON, BatchNorm, CastModule, Linear, relu_norm, unit_rms
from faustnet.nn.side_stream import SideStream
from faustnet.system.customised import has_gradient_hooks, is_customised, overrides_methods

FIRST_WEIGHT = "body.linear.weight"  # the parameter whose shape depends on the number of inputs
BIAS = "body.linear.bias"
FIRST_PRIORITY = -3  # of the stream for the first layer's weight, if it is kept apart: the other layers wait for it


@dataclass
class StackedParameter:
    """One parameter of n layers. The layers' own parameters become views of `master`. Computation uses `working`, which
    shares its memory, or is a copy in a lower precision.

    A matrix may have an `update`: the backward pass calls it with the gradient by the product's output (n, R, outputs) and
    the rows (n, R, inputs), and computes no gradient itself. So may the bias of a linear map, without the rows."""

    name: str  # in each layer
    layers: slice  # of the group
    master: Tensor  # (n, …)
    working: nn.Parameter  # (n, …)
    update: Callable[..., None] | None = None

    def gradient(self, by_output: Tensor, rows: Tensor) -> Tensor | None:
        """Return the gradient of n matrices by a product with rows, unless it is left to `update`."""
        if self.update is None:
            return torch.bmm(by_output.mT, rows)
        self.update(by_output, rows)
        return None

    @property
    def copy(self) -> Tensor:
        """Where an update also writes the new values: the copy, or the master itself."""
        return self.working.detach() if self.working.dtype != self.master.dtype else self.master


class BatchedLayers(ABC):
    """Base class of n layers with one `batch_key`, computed together while training."""

    def __init__(self, layers: Sequence[Layer]):
        module = next((module for module in layers[0].modules() if isinstance(module, CastModule)), None)
        self.dtype = (module.compute_dtype if module else None) or next(layers[0].parameters()).dtype
        self.inputs = [layer.get_parameter(FIRST_WEIGHT).shape[1] for layer in layers]
        self.separate_first = len(layers) > 1 and self.inputs[0] != self.inputs[1]
        self.dropout, self.passes_embedding = layers[0].dropout, layers[0].passes_embedding
        self.unit = layers[0].unit
        self.parameters: list[StackedParameter] = []
        for name, _ in layers[-1].named_parameters():
            whole = slice(0, len(layers))
            spans = [slice(0, 1), slice(1, len(layers))] if self.separate_first and name == FIRST_WEIGHT else [whole]
            self.parameters += [self._stack(layers[span], span, name) for span in spans]
        self.by_name = {parameter.name: parameter.working for parameter in self.parameters}  # of the last layers
        self.projection = next((parameter for parameter in self.parameters if parameter.name == "head.weight"), None)
        weights = [parameter for parameter in self.parameters if parameter.name == FIRST_WEIGHT]
        self.bias = next(parameter for parameter in self.parameters if parameter.name == BIAS)
        device = weights[0].master.device
        self.side, self.first_side = SideStream(device), SideStream(device, priority=FIRST_PRIORITY)
        self.linear = BatchedLinear(weights, self.bias, self.first_side)
        self.outputs = layers[-1].embedding_size if self.passes_embedding else weights[-1].working.shape[1]

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
        if self.dropout:
            rows = self.linear.mapped(lambda part: functional.dropout(part, self.dropout), rows)
        return self.transform(rows)

    def transform(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute what the layers' own `transform` computes while training."""
        activation = self.body(rows)
        embedding = activation
        if self.projection is not None:
            embedding = _BatchedProduct.apply(activation, self.projection.working, self.projection)
        gain, prototypes = self.by_name.get("gain"), self.by_name.get("prototypes")
        embedding = scaled(embedding, self.unit, gain)
        compared = [embedding] if prototypes is None else [embedding, scaled(prototypes, self.unit, gain)]
        return embedding if self.passes_embedding else activation, torch.cat(compared, dim=-2) if compared[1:] else embedding

    @abstractmethod
    def body(self, rows: Sequence[Tensor]) -> Tensor:
        """Compute what the layers' bodies compute while training. → (n, R, outputs)"""


class BatchedLinear:
    """n linear maps: weights (n, outputs, inputs), or those of the first (1, outputs, inputs₀) and of the others; bias
    (n, outputs).

    If the weight of the first layer is kept apart, its products are computed in a stream of their own, which does not wait
    for the others: there is work for it while the others' weights are being updated."""

    def __init__(self, weights: Sequence[StackedParameter], bias: StackedParameter, first_side: SideStream):
        self.weights, self.bias, self.bias_parameter, self.first_side = weights, bias.working, bias, first_side
        self.products: Tensor | None = None  # (n, R, outputs): written by two streams, so its memory is not shared

    @property
    def update_bias(self) -> Callable[[Tensor], None] | None:
        return self.bias_parameter.update

    def mapped(self, function: Callable[[Tensor], Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
        """Apply a function to the rows of all layers, or to those of the first in its stream and to those of the others."""
        if len(rows) == 1:
            return [function(rows[0])]
        with self.first_side.go_on():
            first = function(rows[0])
        return [first, function(rows[1])]

    def products_like(self, rows: Tensor, n: int, outputs: int) -> Tensor:
        """Return memory for the products of all layers, the same in every step. (n − 1, R, inputs) → (n, R, outputs)"""
        shape = n, rows.shape[1], outputs
        if self.products is None or self.products.shape != shape:
            self.products = rows.new_empty(shape)
        return self.products.detach()

    def __call__(self, rows: Sequence[Tensor]) -> Tensor:
        """(n, R, inputs), or the first layer's rows and the others' → (n, R, outputs)"""
        return self.product(rows) + self.bias.unsqueeze(-2)

    def product(self, rows: Sequence[Tensor]) -> Tensor:
        """Multiply by the weights, without adding the bias."""
        rows = self.mapped(lambda part: part.to(self.bias.dtype), rows)
        tensors = [weight.working for weight in self.weights]
        if len(rows) == 1:
            return _BatchedProduct.apply(*rows, *tensors, *self.weights)
        return _FirstAndOthersProduct.apply(*rows, *tensors, self)


class BatchedDense(BatchedLayers):
    """Layers with a `DenseBody`."""

    def body(self, rows: Sequence[Tensor]) -> Tensor:
        if "body.norm.gain" in self.by_name:
            return functional.relu(self._batch_norm(self.linear(rows)), inplace=True)
        return relu_norm(self.linear, rows)

    def _batch_norm(self, hidden: Tensor) -> Tensor:
        """(n, R, width) → the same shape"""
        gain, offset = self.by_name["body.norm.gain"].unsqueeze(1), self.by_name["body.norm.offset"].unsqueeze(1)
        variance, mean = torch.var_mean(hidden, dim=1, correction=0, keepdim=True)
        return (hidden - mean) * ((variance + EPSILON).rsqrt() * gain) + offset


class BatchedRelu(BatchedLayers):
    """Layers with a `ReluBody`."""

    def body(self, rows: Sequence[Tensor]) -> Tensor:
        return functional.relu(self.linear(rows), inplace=True)


class BatchedRms(BatchedLayers):
    """Layers with an `RmsBody`."""

    def body(self, rows: Sequence[Tensor]) -> Tensor:
        return functional.relu(self.linear(self.linear.mapped(unit_rms, rows)))


BATCHED: dict[type[nn.Module], type[BatchedLayers]] = {
    DenseBody: BatchedDense,
    ReluBody: BatchedRelu,
    RmsBody: BatchedRms,
}


def batch_key(layer: Layer) -> Hashable | None:
    """Return a key that is equal for layers that can be computed together: they differ only in the values of their
    parameters, and possibly in the number of inputs. None: the layer is computed by itself.

    Layers with modules, buffers, parametrisations, methods or hooks that the classes do not have run by themselves.
    """
    if type(layer.body) not in BATCHED or type(layer.head) not in (Linear, type(None)) or overrides_methods(layer, Layer):
        return None
    for module in layer.modules():
        known = module in (layer, layer.body) or type(module) in (Linear, BatchNorm)
        buffers = {"mean", "variance"} if isinstance(module, BatchNorm) else set()
        if not known or is_customised(module) or has_gradient_hooks(module) or set(module._buffers) != buffers:
            return None
    if set(layer.body._modules) - {"linear", "norm"} or layer.body._parameters or layer.autocast_dtype is not None:
        return None
    if set(layer._modules) - {"body", "head"} or set(layer._parameters) - {"gain", "prototypes"}:
        return None
    parameters = [
        (name, parameter.shape[:1] if name == FIRST_WEIGHT else parameter.shape, parameter.requires_grad)
        for name, parameter in layer.named_parameters()
    ]
    settings = layer.body.batch_settings, layer.dropout, layer.unit, layer.passes_embedding
    return type(layer.body), settings, tuple(parameters)


class _BatchedProduct(torch.autograd.Function):
    """n matrix products: (n, R, inputs), (n, outputs, inputs) → (n, R, outputs). Autograd's own gradient of the weights
    would be transposed in memory, and copied before it is used."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, parameter: StackedParameter) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.parameter = parameter
        return torch.bmm(rows, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        by_rows = torch.bmm(by_output, weight) if ctx.needs_input_grad[0] else None  # before the weight is updated
        return by_rows, ctx.parameter.gradient(by_output, rows), None


class _FirstAndOthersProduct(torch.autograd.Function):
    """The products of the first layer and of the others, side by side, in one tensor. The rows get no gradient."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, others: Tensor, first_weight: Tensor, weight: Tensor, linear: BatchedLinear
    ) -> Tensor:
        ctx.save_for_backward(first, others)
        ctx.linear = linear
        together = linear.products_like(others, 1 + len(others), weight.shape[1])
        with linear.first_side.go_on():
            torch.mm(first[0], first_weight[0].mT, out=together[0])
        torch.bmm(others, weight.mT, out=together[1:])
        linear.first_side.join()
        return together

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        first, others = ctx.linear.weights
        first_rows, other_rows = ctx.saved_tensors
        found = first.gradient(by_output[:1], first_rows), others.gradient(by_output[1:], other_rows)
        return None, None, *found, None
