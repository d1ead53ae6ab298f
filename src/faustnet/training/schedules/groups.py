"""Groups of layers in the wavefront: any layer by itself. Layers that are computed as one are in `batched_group`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import cycle

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.losses.gradients import backward, unit_gradient
from faustnet.methods import LocalMethod
from faustnet.nn.layers import Layer
from faustnet.nn.side_stream import SideStream
from faustnet.nn.structure import Structure, copy_into, detached, map_tensors, tensors
from faustnet.training.optimisers import Optimiser, Updates
from faustnet.training.schedules.layer_attributes import attributes, changed_attribute
from faustnet.training.schedules.step_graph import buffers_in_place

STREAMS = 4  # in which the parameters of a layer are updated at the same time


class LayerGroup(ABC):
    """Consecutive layers, starting with number `first`, that a step of the wavefront trains together."""

    output: Structure  # (R, …): what the last layer passes on
    stream: torch.cuda.Stream | None = None  # for the layers' work
    output_ready: torch.cuda.Event | None = None  # when the output of the latest step is there

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

    @property
    def streams(self) -> list[torch.cuda.Stream]:
        """The streams that use the group's inputs."""
        return [self.stream] if self.stream else []

    def wait_for(self, before: "LayerGroup") -> None:
        """Let the work of the next step wait for the output of the group before. A body may change its input in place, so
        it also waits until that group has used it."""
        for stream in self.streams:
            assert before.stream is not None
            stream.wait_stream(before.stream)

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

    def finish(self) -> None:  # noqa: B027
        """Let the group's stream wait for all work of the steps so far."""

    @abstractmethod
    def clear_gradients(self) -> None:
        """Free what the updates of a step used."""

    @abstractmethod
    def trainable(self) -> list[Tensor]:
        """Return the tensors that get gradients."""

    @abstractmethod
    def changes(self) -> list[Tensor]:
        """Return all tensors that `train` changes, with `in_place`."""

    @abstractmethod
    def slots(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        """Yield each layer's parameters, torch's names of their optimiser state, and that state."""


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
            passed, loss = method.layer_loss(self.first, self.rows, labels[0])
            if loss.requires_grad:
                backward(loss, unit_gradient(loss))
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
        self.sides = [SideStream(parameter.device) for parameter in self.trained[:STREAMS]]

    def update(self, factors: Tensor) -> None:
        for parameter, state, side in zip(self.trained, self.state, cycle(self.sides), strict=False):
            if parameter.grad is not None:
                weight = parameter.detach().unsqueeze(0)
                with side.fork():
                    self.optimiser.update(weight, parameter.grad.unsqueeze(0), state, factors, weight)
        for side in self.sides:
            side.join()

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
