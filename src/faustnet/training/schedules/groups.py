"""Groups of layers in the wavefront: several layers of one kind computed as one, or any layer by itself."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.methods import LocalMethod
from faustnet.nn.batched import BatchedLayers, StackedParameter
from faustnet.nn.layers import Layer
from faustnet.nn.structure import Structure, copy_into, detached, map_tensors, tensors
from faustnet.training.optimisers import Optimiser, Updates
from faustnet.training.schedules.layer_attributes import attributes, changed_attribute
from faustnet.training.schedules.step_graph import buffers_in_place


class LayerGroup(ABC):
    """Consecutive layers, starting with number `first`, that a step of the wavefront trains together."""

    output: Structure  # (R, …): what the last layer passes on
    stream: torch.cuda.Stream | None = None  # for the layers' work

    def __init__(self, first: int, layers: Sequence[Layer]):
        self.first, self.layers = first, layers

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def span(self) -> slice:
        return slice(self.first, self.first + len(self))

    @abstractmethod
    def allocate(self, rows: Structure) -> Structure:
        """Allocate the layers' inputs, for rows like these, and return rows like those of the next group."""

    def converted(self, rows: Structure) -> Structure:
        """Return rows as the first layer takes them, ahead of `receive`. (R, …)"""
        return rows

    @abstractmethod
    def receive(self, rows: Structure, in_place: bool) -> None:
        """Set the input of the first layer for the next step. With `in_place`, it is copied to where `allocate` put it,
        which the next recorded step reads. (R, …)"""

    @abstractmethod
    def refresh(self) -> None:
        """Take over parameters that were changed from outside."""

    @abstractmethod
    def train(self, method: LocalMethod, labels: Tensor, factors: Tensor, totals: Tensor, in_place: bool) -> None:
        """Train each layer on its input, move activations on to the next layer, and add the losses of the active layers to
        the totals. (n, B), (n, 4), (n,)"""

    @abstractmethod
    def clear_gradients(self) -> None:
        """Free what updates used, when all streams are done with it."""

    @abstractmethod
    def trainable(self) -> list[Tensor]:
        """Return the tensors that get gradients."""

    @abstractmethod
    def changes(self) -> list[Tensor]:
        """Return all tensors that `train` changes, with `in_place`."""

    @abstractmethod
    def slots(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        """Yield each layer's parameters, torch's names of their optimiser state, and that state."""


class BatchedGroup(LayerGroup):
    """Layers of one kind, computed as one.

    A parameter is updated as soon as its gradient is there. On a GPU that happens in a side stream, while other gradients
    are being computed: the update needs memory bandwidth, the gradients arithmetic.
    """

    buffers: list[Tensor]  # the layers' inputs (n, R, inputs), or those of the first layer and of the others
    rows: list[Tensor]  # the inputs of the next step: the buffers, or activations that need not be copied

    def __init__(self, first: int, layers: Sequence[Layer], optimiser: Optimiser, batched: BatchedLayers):
        super().__init__(first, layers)
        self.batched, self.optimiser = batched, optimiser
        self.trained = [parameter for parameter in batched.parameters if parameter.working.requires_grad]
        self.state = []
        for parameter in self.trained:
            slots = optimiser.slots(parameter.master.dim() - 1)
            state = [torch.zeros_like(parameter.master) for _ in slots]
            self.state.append((slots, state))
            parameter.working.register_post_accumulate_grad_hook(functools.partial(self._update, parameter, state))
            parameter.update = functools.partial(self._update_matrix, parameter, state)
        self.largest = max(self.trained, key=lambda parameter: parameter.master.numel(), default=None)
        master = batched.parameters[0].master
        self.ones = torch.ones(len(layers), dtype=master.dtype, device=master.device)

    def allocate(self, rows: Tensor) -> Tensor:
        batched, count = self.batched, len(self)
        spans = [slice(0, 1), slice(1, count)] if batched.separate_first else [slice(0, count)]
        self.buffers = [
            rows.new_zeros(span.stop - span.start, len(rows), batched.inputs[span.start], dtype=batched.dtype)
            for span in spans
        ]
        self.rows = list(self.buffers)
        return rows.new_zeros(len(rows), batched.outputs, dtype=batched.dtype)

    def converted(self, rows: Tensor) -> Tensor:
        return rows.flatten(1).to(self.batched.dtype)

    def receive(self, rows: Tensor, in_place: bool) -> None:
        if in_place or len(self.buffers[0]) > 1:
            self.buffers[0][0] = self.converted(rows)
            self.rows[0] = self.buffers[0]
        else:
            self.rows[0] = self.converted(rows).unsqueeze(0)

    @torch.no_grad()
    def refresh(self) -> None:
        for parameter in self.batched.parameters:
            parameter.copy.copy_(parameter.master)

    def train(self, method: LocalMethod, labels: Tensor, factors: Tensor, totals: Tensor, in_place: bool) -> None:
        self.factors = factors
        activation, embedding = self.batched(self.rows)
        losses = method.batched_loss(embedding, labels, self.span)
        with self.batched.side.fork():
            totals += losses.detach().masked_fill(factors[:, 3] == 0, 0)
        if losses.requires_grad:
            losses.backward(self.ones)
        activation = activation.detach()
        self.batched.side.join()  # before inputs are overwritten, which gradients in the side stream are computed from
        self._move_on(activation[:-1], in_place)
        self.output = activation[-1]

    def _move_on(self, activations: Tensor, in_place: bool) -> None:
        """Set the inputs of all layers but the first. (n − 1, R, inputs)"""
        if self.batched.separate_first and not in_place:
            self.rows[1] = activations
        elif self.batched.separate_first:
            self.buffers[1].copy_(activations)
            self.rows[1] = self.buffers[1]
        elif len(self) > 1:
            self.buffers[0][1:] = activations

    def _update_matrix(self, parameter: StackedParameter, state: list[Tensor], by_output: Tensor, rows: Tensor) -> None:
        """Compute the gradient of n matrices, and update them. The group's stream computes only the largest one, and goes
        on with the backward pass."""
        side = self.batched.side
        side.keep(by_output, rows)
        with nullcontext() if parameter is self.largest else side.fork():
            gradient = torch.bmm(by_output.mT, rows)
        self._update_by(parameter, state, gradient)

    def _update(self, parameter: StackedParameter, state: list[Tensor], working: Tensor) -> None:
        if working.grad is not None:  # that of a matrix has been used already
            self._update_by(parameter, state, working.grad)

    def _update_by(self, parameter: StackedParameter, state: list[Tensor], gradient: Tensor) -> None:
        self.batched.side.keep(gradient)
        with self.batched.side.fork():
            factors = self.factors[parameter.layers]
            self.optimiser.update(parameter.master, gradient, state, factors, parameter.copy)

    def clear_gradients(self) -> None:
        for parameter in self.trained:
            parameter.working.grad = None

    def trainable(self) -> list[Tensor]:
        return [parameter.working for parameter in self.trained]

    def changes(self) -> list[Tensor]:
        state = [slot for _, slots in self.state for slot in slots]
        parameters = [tensor for p in self.trained for tensor in (p.master, p.working)]
        return [*self.buffers, *state, *parameters]

    def slots(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        for parameter, (words, state) in zip(self.trained, self.state, strict=True):
            for word, whole in zip(words, state, strict=True):
                for layer, view in zip(self.layers[parameter.layers], whole, strict=True):
                    yield layer.get_parameter(parameter.name), word, view


class AnyLayer(LayerGroup):
    """Base class of any layer by itself, just as the sequential schedule runs it.

    A forward pass may change buffers, such as running means. In a step in which the layer is not active, they are set
    back.
    """

    buffer: Structure  # (R, …): the layer's input, where the next recorded step reads it
    rows: Structure  # the input of the next step: the buffer, or an activation that need not be copied

    def __init__(self, first: int, layer: Layer):
        super().__init__(first, [layer])
        self.layer = layer
        self.trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        self.changed_buffers: list[Tensor] = []

    def allocate(self, rows: Structure) -> Structure:
        """The input is real data from the start: zeros could give values that are not finite."""
        self.buffer = self.rows = map_tensors(Tensor.clone, rows)
        buffers = [(buffer, buffer.clone()) for buffer in self.layer.buffers()]
        known = attributes(self.layer)
        with buffers_in_place(self.layer.modules()):
            passed, _ = self.layer(rows)
        if name := changed_attribute(known, attributes(self.layer)):
            raise FaustnetError(
                f"Layer {self.first + 1} changes its attribute {name} in its forward pass, which the wavefront schedule "
                "cannot follow: register it as a buffer, or train with schedule sequential."
            )
        self.changed_buffers = [buffer for buffer, before in buffers if not _same(buffer, before)]
        for buffer, before in buffers:
            buffer.copy_(before)
        return passed

    def receive(self, rows: Structure, in_place: bool) -> None:
        if in_place:
            copy_into(self.buffer, rows)
        self.rows = self.buffer if in_place else rows

    def refresh(self) -> None:
        pass

    def train(self, method: LocalMethod, labels: Tensor, factors: Tensor, totals: Tensor, in_place: bool) -> None:
        active = factors[0, 3] > 0
        before = [buffer.clone() for buffer in self.changed_buffers]
        with buffers_in_place(self.layer.modules()):
            passed, embedding = self.layer(self.rows)
            loss = method.local_loss(embedding, labels[0], self.first)
            if loss.requires_grad:
                loss.backward()
        for buffer, old in zip(self.changed_buffers, before, strict=True):
            buffer.copy_(torch.where(active, buffer, old))
        self.update(factors)
        self.output = detached(passed)
        totals += torch.where(active, loss.detach(), 0)

    @abstractmethod
    def update(self, factors: Tensor) -> None:
        """Update the parameters from their gradients, if the layer is active. (1, 4)"""

    def clear_gradients(self) -> None:
        for parameter in self.trained:
            parameter.grad = None

    def trainable(self) -> list[Tensor]:
        return list(self.trained)

    def changes(self) -> list[Tensor]:
        return [*tensors(self.buffer), *self.trained, *self.layer.buffers()]


class SingleLayer(AnyLayer):
    """Any layer, with an optimiser of this package."""

    def __init__(self, first: int, layer: Layer, optimiser: Optimiser):
        super().__init__(first, layer)
        self.optimiser = optimiser
        self.words = [optimiser.slots(parameter.dim()) for parameter in self.trained]
        self.state = [
            [torch.zeros_like(parameter.detach()).unsqueeze(0) for _ in words]
            for parameter, words in zip(self.trained, self.words, strict=True)
        ]

    def update(self, factors: Tensor) -> None:
        for parameter, state in zip(self.trained, self.state, strict=True):
            if parameter.grad is not None:
                weight = parameter.detach().unsqueeze(0)
                self.optimiser.update(weight, parameter.grad.unsqueeze(0), state, factors, weight)

    def changes(self) -> list[Tensor]:
        return [*super().changes(), *(slot for slots in self.state for slot in slots)]

    def slots(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        for parameter, words, state in zip(self.trained, self.words, self.state, strict=True):
            for word, whole in zip(words, state, strict=True):
                yield parameter, word, whole[0]


class OwnOptimiserLayer(AnyLayer):
    """Any layer, with an optimiser of the user's. It is trained only in the steps in which it is active."""

    def __init__(self, first: int, layer: Layer, updates: Updates):
        super().__init__(first, layer)
        self.updates = updates

    def update(self, factors: Tensor) -> None:
        self.updates.step(factors[0, 3])

    def slots(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        yield from ()


def _same(one: Tensor, other: Tensor) -> bool:
    return (
        bool(((one == other) | (one.isnan() & other.isnan())).all()) if one.is_floating_point() else torch.equal(one, other)
    )
