"""All layers at once, each on the batch that the layer before it has just finished."""

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby, pairwise

import torch
from torch import Tensor, nn

from faustnet.nn.layers import Layer, Product
from faustnet.methods import LocalMethod, Method, Source
from faustnet.training.optimisers import OptimiserSettings, StackedOptimiser
from faustnet.system.randomness import unchanged_generators
from faustnet.training.schedules.base import Schedule, local
from faustnet.nn.batched import stacked


class Wavefront(Schedule):
    """At tick τ layer i works on batch τ − i. Later layers send nothing back, and what a layer passes on was computed
    before its update, so every layer sees just what it would have seen one after the other: the same training, in
    another order of work.

    A table says for every tick which layers are active and how fast each learns. The rest compute on whatever lies in
    front of them and stay as they are; so all ticks are the same work, from the first, with one active layer, to the
    last ones, which drain the pipe.

    Where several ticks are done together, what the layers need at the next one is fetched while they work.
    """

    name = "wavefront"

    def __init__(self, method: Method, train: Source, optimiser: OptimiserSettings):
        super().__init__(method, train, optimiser)
        self.local = local(method, self.name)

    @property
    def layers(self) -> range:
        return range(len(self.method.network))

    def _make_ready(self) -> None:
        kinds = groupby(enumerate(self.method.network), key=lambda pair: pair[1].kind)
        self.groups = [_Group(list(numbered), self.settings) for _, numbered in kinds]
        if self.device.type == "cuda":
            largest = max(self.groups, key=len)
            for group in self.groups:  # what takes the longest gets out of the others' way
                group.stream = torch.cuda.Stream(self.device, priority=-1 if group is largest else -2)
                group.aside = torch.cuda.Stream(self.device, priority=-1)
        self.labels: Tensor | None = None  # (T, B), of an epoch's batches
        self.steps = 0  # that every layer has taken

    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        self.batches, self.rates, self.first, self.taken = batches, rates, first, first
        labels = self.train.labels[batches.to(self.device)]
        if self.labels is None:
            self.labels = labels
            self._make_room(batches[0].to(self.device))
        self.labels.copy_(labels)
        for group in self.groups:
            group.refresh()
        self._lay_out(len(batches), first)

    def _make_room(self, index: Tensor) -> None:
        """For what is on its way between layers."""
        with unchanged_generators(self.device):
            rows = self.local.rows(self.train.augmented(index), self.train.labels[index])
        for group in self.groups:
            group.make_room(rows)

    def _lay_out(self, end: int, tick: int) -> None:
        """For every tick: the images that come in; and for each layer the number of its batch and the optimiser's factors,
        where it is active if that batch is one from the first to before `end`."""
        ticks = torch.arange(len(self.batches) + len(self.layers) - 1)
        batch = ticks.unsqueeze(1) - torch.arange(len(self.layers))  # of each layer
        active = (batch >= self.first) & (batch < end)
        last = len(self.batches) - 1
        steps = (batch - self.first).clamp_min(0) + self.steps + 1
        batch = batch.clamp(0, last)
        factors = self.settings.factors(self.rates[batch], steps, active)
        self.plan.lay_out([self.batches[ticks.clamp(max=last)], batch, factors], tick)

    def _fetch(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a tick needs: the first layer's rows, (R, d), all layers' labels, (n, B), and factors, (n, 4)."""
        assert self.labels is not None
        index, batch, factors = self.plan.read()
        labels = self.labels.index_select(0, batch)
        return self.local.rows(self.feed.augmented(index), labels[0]), labels, factors

    def step(self) -> None:
        self.ticks.once_more()
        self.taken += 1

    def drain(self) -> None:
        self.ticks.catch_up()
        if self.taken < len(self.batches):  # stopped on the way
            self._lay_out(self.taken, self.taken)
        with unchanged_generators(self.device):
            for _ in self.layers[1:]:
                self.ticks.once_more()
            self.ticks.catch_up()
        self.steps += self.taken - self.first

    def _work(self, ticks: int) -> None:
        rows, labels, factors = self._fetch()
        for left in reversed(range(ticks)):
            self.groups[0].takes(rows)
            with self._beside_each_other():
                for group in self.groups:
                    with group.at_work():
                        self.totals[group.span] += group.work(self.local, labels[group.span], factors[group.span])
                if left:
                    rows, labels, factors = self._fetch()
            for before, group in pairwise(self.groups):
                group.takes(before.passed_on)
            for group in self.groups:
                group.forget()

    @contextmanager
    def _beside_each_other(self) -> Iterator[None]:
        """The groups' streams begin here with what was done before, and all that comes after waits for them."""
        streams = [stream for group in self.groups for stream in (group.stream, group.aside) if stream]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(self.device))
        yield
        for stream in streams:
            torch.cuda.current_stream(self.device).wait_stream(stream)

    def _changes(self) -> list[Tensor]:
        return [tensor for group in self.groups for tensor in group.changes()]

    def state(self) -> dict[str, Tensor]:
        slots = {key: slot.clone() for key, slot in self._slots().items()}
        if self.settings.name != "sgd":
            slots |= {f"{name}/step": torch.tensor(float(self.steps)) for name, _ in self.method.named_parameters()}
        return slots

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:  # it had taken no step
            return
        steps = {tensor.item() for key, tensor in tensors.items() if key.endswith("/step")}
        slots = self._slots()
        kept = {key: tensor for key, tensor in tensors.items() if not key.endswith("/step")}
        if kept.keys() != slots.keys() or len(steps) > 1:
            raise ValueError("the optimiser remembers other parameters")
        for key, slot in slots.items():
            if kept[key].shape != slot.shape:
                raise ValueError(f"the optimiser's {key} is of another network")
            slot.copy_(kept[key])
        self.steps = int(next(iter(steps), 0))

    def _slots(self) -> dict[str, Tensor]:
        """Where each layer's part of what the optimisers remember lies."""
        names = {parameter: name for name, parameter in self.method.named_parameters()}
        return {
            f"{names[layer.get_parameter(name)]}/{word}": whole[number]
            for group in self.groups
            for parameter, span, name in group.stack.parts
            for word, whole in zip(group.optimiser.words[parameter], group.optimiser.memory[parameter], strict=True)
            for number, layer in enumerate(group.layers[span])
        }


class _Group:
    """Consecutive layers of one kind, stacked. `working` does the work: the stack itself, or a copy of it in the type that
    matrices are multiplied in, if that is another.

    A parameter is updated as soon as its gradient is there; on a GPU that is done aside, while other gradients are still
    being computed: one needs memory, the other arithmetic.
    """

    rows: list[Tensor]  # (n, R, inputs), or apart the first's and the others': what each layer works on
    passed_on: Tensor  # (R, passed_on): what the last of them has made of it
    stream: torch.cuda.Stream | None = None  # where they work
    aside: torch.cuda.Stream | None = None  # where parameters are updated

    def __init__(self, numbered: list[tuple[int, Layer]], settings: OptimiserSettings):
        self.first = numbered[0][0]
        self.layers = [layer for _, layer in numbered]
        product_type = next(module.product_type for module in self.layers[0].modules() if isinstance(module, Product))
        self.stack = stacked(self.layers)
        self.working = self.stack.layer.train()
        if product_type is not None:
            self.working = copy.deepcopy(self.working).to(product_type)
        self.optimiser = StackedOptimiser(settings, [parameter for parameter, _, _ in self.stack.parts])
        self.copies: list[Tensor] = []  # of the parameters, where others than they are at work
        for (parameter, span, _), at_work in zip(self.stack.parts, self.working.parameters(), strict=True):
            same = at_work.data_ptr() == parameter.data_ptr()
            self.copies.append(parameter if same else at_work.detach().view(parameter.shape))
            update = functools.partial(self._update, parameter, span, self.copies[-1])
            at_work.register_post_accumulate_grad_hook(update)
        parameter = self.stack.parts[0][0]
        self.ones = torch.ones(len(self.layers), dtype=parameter.dtype, device=parameter.device)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def span(self) -> slice:
        return slice(self.first, self.first + len(self))

    def make_room(self, rows: Tensor) -> None:
        """For each layer's rows, which are as many as these."""
        dtype = next(self.working.parameters()).dtype
        sizes = [1, len(self) - 1] if self.stack.has_entry else [len(self)]
        layers = [self.layers[0], self.layers[-1]][-len(sizes) :]
        pairs = zip(sizes, layers, strict=True)
        self.rows = [rows.new_zeros(size, len(rows), layer.inputs, dtype=dtype) for size, layer in pairs]

    def takes(self, rows: Tensor) -> None:
        """What the first layer works on next, (R, inputs)."""
        self.rows[0][0] = rows

    @torch.no_grad()
    def refresh(self) -> None:
        """After the parameters may have been changed by others."""
        for (parameter, _, _), copied in zip(self.stack.parts, self.copies, strict=True):
            copied.copy_(parameter)

    def at_work(self) -> AbstractContextManager[object]:
        """On the group's own stream, if it has one."""
        return torch.cuda.stream(self.stream)

    def work(self, method: LocalMethod, labels: Tensor, factors: Tensor) -> Tensor:
        """Each layer looks at what lies in front of it, learns from its own loss, and passes on what it had made before.
        (n, B), (n, 4) → the losses of those that are active, (n,)"""
        self.factors = factors
        activation, embedding = self.working(tuple(self.rows) if self.stack.has_entry else self.rows[0])
        losses = method.local_loss(embedding, labels, self.span)
        losses.backward(self.ones)
        activation = activation.detach()
        if self.stack.has_entry:
            self.rows[1].copy_(activation[:-1])
        elif len(self) > 1:
            self.rows[0][1:] = activation[:-1]
        self.passed_on = activation[-1]
        return torch.where(factors[:, 3] > 0, losses.detach(), 0)

    def _update(self, parameter: nn.Parameter, span: slice, copied: Tensor, at_work: Tensor) -> None:
        assert at_work.grad is not None
        if self.aside:
            self.aside.wait_stream(torch.cuda.current_stream(at_work.device))
        with torch.cuda.stream(self.aside):
            self.optimiser.update(parameter, at_work.grad.view(parameter.shape), self.factors[span], copied)

    def forget(self) -> None:
        """The gradients, once all work is done: what is done aside may still need them until then."""
        self.working.zero_grad()

    def changes(self) -> list[Tensor]:
        memory = (tensor for kept in self.optimiser.memory.values() for tensor in kept)
        return [*self.rows, *memory, *(part[0] for part in self.stack.parts), *self.working.parameters()]
