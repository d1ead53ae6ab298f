"""All layers at once, each on the batch that the layer before it has just processed."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby, pairwise

import torch
from torch import Tensor

from faustnet.methods import Method, Source
from faustnet.nn.batched import BATCHED, batch_key
from faustnet.nn.layers import Layer
from faustnet.nn.structure import Structure
from faustnet.system.randomness import unchanged_generators
from faustnet.training.optimisers import AnyOptimiser, OwnOptimiser
from faustnet.training.schedules.base import Schedule, local
from faustnet.training.schedules.batched_group import BatchedGroup
from faustnet.training.schedules.groups import LayerGroup, OwnOptimiserLayer, SingleLayer


class Wavefront(Schedule):
    """In step t, layer i works on batch t − i. Later layers send nothing back, and the activation that a layer passes on was
    computed before its update. So every layer sees the same numbers as in the sequential schedule: it is the same
    training in another order of work.

    A table says for every step which layers are active, and their learning rates. Inactive layers compute on old inputs
    and change nothing. So all steps do the same work, from the first, with one active layer, to the last.

    On a GPU every group of layers works in its own stream. Where several steps are recorded together, a group waits only for
    its inputs, so that one group can compute while another one updates its weights.
    """

    name = "wavefront"
    long_steps_together = 2  # every other step, outputs become inputs without a copy

    def __init__(self, method: Method, train: Source, optimiser: AnyOptimiser):
        super().__init__(method, train, optimiser)
        self.local = local(method, self.name)

    @property
    def layers(self) -> range:
        return range(len(self.method.network))

    def _set_up(self) -> None:
        numbered = list(enumerate(self.method.network))
        groups = [list(members) for _, members in groupby(numbered, key=lambda pair: self._group_key(*pair))]
        if isinstance(self.optimiser, OwnOptimiser):
            units = [list(layer.parameters()) for layer in self.method.network]
            self.updates = self.optimiser.updates(self.method, units)
        self.groups = [self._group(members) for members in groups]
        if self.device.type == "cuda":
            largest = max(self.groups, key=len)
            for group in self.groups:  # the group that takes longest has the lowest priority
                group.stream = torch.cuda.Stream(self.device, priority=-1 if group is largest else -2)
        self.labels: Tensor | None = None  # (T, B), of an epoch's batches
        self.steps = 0  # that every layer has taken

    def _group_key(self, number: int, layer: Layer) -> object:
        """Neighbours with equal keys are computed together, if the method's loss allows it."""
        batches = self.local.has_batched_loss and not isinstance(self.optimiser, OwnOptimiser)
        key = batch_key(layer) if batches else None
        return number if key is None else key

    def _group(self, members: list[tuple[int, Layer]]) -> LayerGroup:
        first, layers = members[0][0], [layer for _, layer in members]
        if isinstance(self.optimiser, OwnOptimiser):
            return OwnOptimiserLayer(first, layers[0], self.updates)
        if self._group_key(*members[0]) == first:
            return SingleLayer(first, layers[0], self.optimiser)
        return BatchedGroup(first, layers, self.optimiser, BATCHED[type(layers[0].body)](layers))

    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        where = self.table.position.device
        self.batches, self.rates, self.first, self.taken = batches.to(where), rates.to(where), first, first
        labels = self.train.labels[self.batches.to(self.device)]
        if self.labels is None:
            self.labels = labels
            self._allocate(self.batches[0].to(self.device))
        self.labels.copy_(labels)
        for group in self.groups:
            group.refresh()
        self._fill_table(len(batches), first)

    @torch.no_grad()
    def _allocate(self, index: Tensor) -> None:
        """Allocate the inputs of all layers, and fill them with those of one batch."""
        with unchanged_generators(self.device):
            rows = self.local.rows(self.train.augmented(index), self.train.labels[index])
            for group in self.groups:
                rows = group.allocate(rows)

    def _fill_table(self, end: int, step: int) -> None:
        """Fill in for every step the images that come in, and for each layer the number of its batch and the optimiser's
        factors. A layer is active on batches from the first to before `end`."""
        self.end, self.position = end, step
        where = self.batches.device
        steps = torch.arange(len(self.batches) + len(self.layers) - 1, device=where)
        batch = steps.unsqueeze(1) - torch.arange(len(self.layers), device=where)  # of each layer
        active = (batch >= self.first) & (batch < end)
        last = len(self.batches) - 1
        counts = (batch - self.first).clamp_min(0) + self.steps + 1
        batch = batch.clamp(0, last)
        factors = self.optimiser.factors(self.rates[batch], counts, active)
        self.table.fill([self.batches[steps.clamp(max=last)], batch, factors], step)

    def _fetch(self) -> tuple[Structure, Tensor, Tensor]:
        """Return what a step needs: the first layer's rows (R, …), and all layers' labels (n, B) and factors (n, 4)."""
        assert self.labels is not None
        index, batch, factors = self.table.read()
        labels = self.labels.index_select(0, batch)
        rows = self.local.rows(self.feed.augmented(index), labels[0])
        return self.groups[0].converted(rows), labels, factors

    def step(self) -> None:
        self.graph.enqueue()
        self.taken += 1

    def drain(self) -> None:
        self.graph.flush()
        if self.taken < len(self.batches):  # stopped within the epoch
            self._fill_table(self.taken, self.taken)
        with unchanged_generators(self.device):
            for _ in self.layers[1:]:
                self.graph.enqueue()
            self.graph.flush()
        self.steps += self.taken - self.first

    def _train_batches(self, count: int) -> None:
        kept: list[object] = []  # tensors that several streams use, until all streams have finished
        with self._side_by_side():
            for left in reversed(range(count)):
                rows, labels, factors = self._fetch()
                working = self._train_batch(rows, labels, factors, last=not left)
                kept += [rows, labels, factors, *(group.output for group in working)]
                if left:
                    self._pass_on(working, in_place=False)
        self._pass_on(working, in_place=self.graph.recorded)

    def _train_batch(self, rows: Structure, labels: Tensor, factors: Tensor, *, last: bool) -> list[LayerGroup]:
        """Train all groups that work in this step, each in its stream, and return them. (R, …), (n, B), (n, 4)"""
        working = [group for group in self.groups if self._works(group)]
        self.position += 1
        for group in working:
            for stream in group.streams:
                stream.wait_stream(torch.cuda.current_stream(self.device))  # for what was fetched
            with torch.cuda.stream(group.stream):
                if group.first == 0:
                    group.receive(rows, in_place=False)
                span = group.span
                group.train(self.local, labels[span], factors[span], self.totals[span], last and self.graph.recorded)
                group.clear_gradients()
        return working

    def _pass_on(self, working: Collection[LayerGroup], *, in_place: bool) -> None:
        """Pass the outputs of a step on to the groups' inputs. `in_place`, that comes after the work of all streams."""
        for before, group in reversed([*pairwise(self.groups)]):  # a layer may pass on a part of its input
            if before not in working:
                continue
            if in_place:
                group.receive(before.output, in_place=True)
            else:
                group.wait_for(before)
                with torch.cuda.stream(group.stream):
                    group.receive(before.output, in_place=False)

    def _works(self, group: LayerGroup) -> bool:
        """Whether a group computes something in this step. Those with an optimiser of the user's do if they are active; all
        others always do."""
        return not isinstance(group, OwnOptimiserLayer) or self.first <= self.position - group.first < self.end

    @contextmanager
    def _side_by_side(self) -> Iterator[None]:
        """Let the groups' streams start after all earlier work, and all later work wait for them."""
        for group in self.groups:
            for stream in group.streams:
                stream.wait_stream(torch.cuda.current_stream(self.device))
        yield
        for group in self.groups:
            if group.stream:
                with torch.cuda.stream(group.stream):
                    group.finish()
                torch.cuda.current_stream(self.device).wait_stream(group.stream)

    def _changes(self) -> list[Tensor]:
        return [tensor for group in self.groups for tensor in group.changes()]

    def state(self) -> dict[str, Tensor]:
        if isinstance(self.optimiser, OwnOptimiser):
            return self.updates.state()
        slots = self._slots()
        state = {key: slot.clone() for key, slot in slots.items()}
        if self.optimiser.counts_steps:
            trainable = (name for name, parameter in self.method.named_parameters() if parameter.requires_grad)
            state |= {f"{name}/step": torch.tensor(float(self.steps)) for name in trainable}
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if isinstance(self.optimiser, OwnOptimiser):
            self.updates.restore(tensors)
            return
        if not tensors:  # of a training that had taken no step
            return
        steps = {tensor.item() for key, tensor in tensors.items() if key.endswith("/step")}
        slots = self._slots()
        kept = {key: tensor for key, tensor in tensors.items() if not key.endswith("/step")}
        if kept.keys() != slots.keys() or len(steps) > 1:
            raise ValueError("the optimiser state has other parameters than the network")
        for key, slot in slots.items():
            if kept[key].shape != slot.shape:
                raise ValueError(f"the shape of {key} in the optimiser state does not match the network")
            slot.copy_(kept[key])
        self.steps = int(next(iter(steps), 0))

    def _slots(self) -> dict[str, Tensor]:
        """Return the optimisers' state of each parameter, as views."""
        names = {parameter: name for name, parameter in self.method.named_parameters()}
        return {f"{names[parameter]}/{word}": view for group in self.groups for parameter, word, view in group.slots()}
