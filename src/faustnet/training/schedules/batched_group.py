"""Several layers of one kind, computed as one in the wavefront."""

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from faustnet.losses.gradients import backward, unit_gradient
from faustnet.methods import LocalMethod
from faustnet.nn.batched import FIRST_WEIGHT, BatchedLayers, StackedParameter
from faustnet.nn.layers import Layer
from faustnet.training.optimisers import Optimiser
from faustnet.training.schedules.groups import LayerGroup


class BatchedGroup(LayerGroup):
    """Layers of one kind, computed as one.

    A parameter is updated as soon as its gradient is there. On a GPU that happens in side streams, while others are being
    computed: an update needs memory bandwidth, products need arithmetic. The stream of the group itself computes and updates
    the largest weights.
    """

    buffers: list[Tensor]  # the layers' inputs (n, R, inputs), or those of the first layer and of the others
    rows: list[Tensor]  # the inputs of the next step: the buffers, or tensors of this step
    moved: Tensor  # (n − 1, R, inputs): the inputs of all layers but the first, of the next step

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
            update = self._update_bias if parameter is batched.bias else self._update_matrix
            parameter.update = functools.partial(update, parameter, state)
        master = batched.parameters[0].master
        self.ones = unit_gradient(master.new_empty(len(layers)))

    def allocate(self, rows: Tensor) -> Tensor:
        batched, count = self.batched, len(self)
        spans = [slice(0, 1), slice(1, count)] if batched.separate_first else [slice(0, count)]
        self.buffers = [
            rows.new_zeros(span.stop - span.start, len(rows), batched.inputs[span.start], dtype=batched.dtype)
            for span in spans
        ]
        self.rows = list(self.buffers)
        self.moved = self._others(self.buffers)
        return rows.new_zeros(len(rows), batched.outputs, dtype=batched.dtype)

    def _others(self, rows: Sequence[Tensor]) -> Tensor:
        """Return the inputs of all layers but the first. (n − 1, R, inputs)"""
        return rows[1] if self.batched.separate_first else rows[0][1:]

    def converted(self, rows: Tensor) -> Tensor:
        return rows.flatten(1).to(self.batched.dtype)

    @property
    def streams(self) -> list[torch.cuda.Stream]:
        first = self.batched.first_side.stream if self.batched.separate_first else None
        return super().streams if first is None else [*super().streams, first]

    def wait_for(self, before: LayerGroup) -> None:
        if before.output_ready is None:
            super().wait_for(before)
            return
        for stream in self.streams:
            stream.wait_event(before.output_ready)

    def receive(self, rows: Tensor, in_place: bool) -> None:
        if in_place:
            self.buffers[0][0] = self.converted(rows)
            self.rows = list(self.buffers)
            return
        if self.batched.separate_first:
            with self.batched.first_side.go_on():
                self.rows = [self.converted(rows).unsqueeze(0), self.moved]
        else:
            first = self.converted(rows).unsqueeze(0)
            self.rows = [torch.cat([first, self.moved]) if len(self) > 1 else first]

    @torch.no_grad()
    def refresh(self) -> None:
        for parameter in self.batched.parameters:
            parameter.copy.copy_(parameter.master)

    def train(self, method: LocalMethod, labels: Tensor, factors: Tensor, totals: Tensor, in_place: bool) -> None:
        self.factors = factors
        activation, embedding = self.batched(self.rows)
        self.output_ready = self.stream.record_event() if self.stream else None
        if self.batched.separate_first:
            self.batched.first_side.follow()  # its next products overwrite those that were just used
        losses = method.checked_losses(method.batched_loss(embedding, labels, self.span), len(self))
        with self.batched.side.fork():
            totals += losses.detach().masked_fill(factors[:, 3] == 0, 0)
        if losses.requires_grad:
            backward(losses, self.ones)
        activation = activation.detach()
        self.batched.side.join()  # before inputs are overwritten, which gradients in the side stream are computed from
        self.moved, self.output = activation[:-1], activation[-1]
        if in_place and len(self) > 1:
            self.moved = self._others(self.buffers).copy_(self.moved)

    def finish(self) -> None:
        self.batched.first_side.join()

    def _update_matrix(self, parameter: StackedParameter, state: list[Tensor], by_output: Tensor, rows: Tensor) -> None:
        """Compute the gradient of n matrices, and update them."""
        if parameter.name != FIRST_WEIGHT:
            side = self.batched.side
        elif self.batched.separate_first and parameter.layers.start == 0:
            side = self.batched.first_side
        else:
            gradient = torch.bmm(by_output.mT, rows)
            self.batched.first_side.wait()  # one update after the other: the first layer goes on during the second
            self._update_by(parameter, state, gradient)
            return
        side.keep(by_output, rows, self.factors)
        with side.fork():
            self._update_by(parameter, state, torch.bmm(by_output.mT, rows))

    def _update_bias(self, parameter: StackedParameter, state: list[Tensor], by_output: Tensor) -> None:
        """Compute the gradient of n biases, which a kernel leaves to this, and update them."""
        from faustnet.nn import kernels

        self.batched.side.keep(by_output)
        with self.batched.side.fork():
            self._update_by(parameter, state, kernels.sum_rows(by_output))

    def _update(self, parameter: StackedParameter, state: list[Tensor], working: Tensor) -> None:
        """Update a parameter whose gradient autograd has computed."""
        if working.grad is not None:  # others were updated by the backward pass
            self.batched.side.keep(working.grad)
            with self.batched.side.fork():
                self._update_by(parameter, state, working.grad)

    def _update_by(self, parameter: StackedParameter, state: list[Tensor], gradient: Tensor) -> None:
        self.optimiser.update(parameter.master, gradient, state, self.factors[parameter.layers], parameter.copy)

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
