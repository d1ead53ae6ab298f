"""Algorithm 1: every batch passes through all layers, one after the other."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from faustnet.losses.gradients import backward, unit_gradient
from faustnet.methods import LocalMethod, Method, Source
from faustnet.nn.structure import Structure, detached
from faustnet.training.distributed.part import NetworkPart, WholeNetwork
from faustnet.training.distributed.row_parallel import RowParallel
from faustnet.training.optimisers import AnyOptimiser
from faustnet.training.schedules.base import Schedule
from faustnet.training.schedules.step_graph import buffers_in_place


class Sequential(Schedule):
    """Each layer passes on the activation that it computed before its update. Layers whose losses are computed together are
    updated together, so that only their gradients are in memory; with some optimisers, all layers are.

    `part` says which layers and which rows of a batch this process trains; by default all of them.
    """

    name = "sequential"

    def __init__(self, method: Method, train: Source, optimiser: AnyOptimiser, part: NetworkPart | None = None):
        super().__init__(method, train, optimiser)
        self.part = part or WholeNetwork(method)
        self.groups: list[range] = []  # consecutive layers of this part whose losses are computed together

    @property
    def about(self) -> str:
        return self.part.about or self.name

    @property
    def layers(self) -> range:
        return range(len(self.method.learners))

    @property
    def _recordable(self) -> bool:
        return super()._recordable and self.part.alone

    def _set_up(self) -> None:
        units = [list(self.method.network[number].parameters()) for number in self.part.layers]
        if not isinstance(self.method, LocalMethod):
            units = [list(self.method.parameters())]
        self.updates = self.optimiser.updates(self.method, units)
        self.row_parallel: RowParallel | None = None

    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        self.table.fill([batches, rates], first)
        if not isinstance(method := self.method, LocalMethod):
            return
        groups = (_common(group, self.part.layers) for group in method.loss_groups(batches.shape[1]))
        self.groups = [group for group in groups if group]
        if not self.part.alone:
            index = batches[0].to(self.device)
            self.part.begin(lambda: method.rows(self.feed.augmented(index), self.train.labels[index]), len(batches) - first)
            if self.part.shard is not None:
                self.row_parallel = RowParallel(method, self.part, self.updates, self.totals)

    def step(self) -> None:
        if self.graph.recorded:
            self.graph.enqueue()
        else:
            with self.feed.supplied(1):
                self._train_batch()

    def drain(self) -> None:
        self.graph.flush()
        if self.row_parallel:
            self.row_parallel.finish()
        self.part.finish(self.updates, self.totals)

    def _train_batches(self, count: int) -> None:
        for _ in range(count):
            with buffers_in_place(self.method.modules()):
                self._train_batch()

    def _train_batch(self) -> None:
        """Train on the next batch: forward, loss, backward and update of one layer, or of a few, after the other."""
        index, rate = self.table.read()
        y = self.train.labels[index]
        if not isinstance(method := self.method, LocalMethod):
            losses = method.losses(self.feed.augmented(index), y)
        else:
            rows = self.part.receive(lambda: method.rows(self.feed.augmented(index), y))
            if self.row_parallel:
                self.row_parallel.train(rows, y, rate)
                return
            losses = self._layer_losses(rows, y)
        found, together = [], self.optimiser.updates_together
        for loss in losses:
            if loss.requires_grad:
                backward(loss, unit_gradient(loss))
                if not together:
                    self.updates.step(rate)
            found.append(loss.detach().reshape(-1))
        if together:
            self.updates.step(rate)
        self.totals[self.part.learners] += torch.cat(found)

    def _layer_losses(self, rows: Structure, y: Tensor) -> Iterator[Tensor]:
        """Yield the losses of the layers, a group at a time, (n,) or (). A layer's input is detached from the layer
        before."""
        assert isinstance(self.method, LocalMethod)
        for group in self.groups:
            if len(group) == 1:
                passed, loss = self.method.layer_loss(group.start, rows, y)
                rows = self._passed_on(passed, group.start)
                del passed
                yield loss
                continue
            embeddings: list[Tensor] = []
            for number in group:
                passed, embedding = self.method.network[number](rows)
                rows = self._passed_on(passed, number)
                del passed
                if embeddings and embedding.shape != embeddings[0].shape:
                    yield self._loss(embeddings, y, number)
                    embeddings = []
                embeddings.append(embedding)
                del embedding
            yield self._loss(embeddings, y, group.stop)
            del embeddings  # before the next group is computed

    def _passed_on(self, passed: Structure, number: int) -> Structure:
        """Return the input of the layer after a layer, which may be in another process."""
        rows = detached(passed)
        if number == self.part.layers[-1]:
            self.part.send(rows)
        return rows

    def _loss(self, embeddings: list[Tensor], y: Tensor, end: int) -> Tensor:
        """Return the losses of consecutive layers, up to number `end`. n × (R, e), (B,) → (n,)"""
        assert isinstance(self.method, LocalMethod)
        layers = slice(end - len(embeddings), end)
        together = torch.stack(embeddings) if len(embeddings) > 1 else embeddings[0].unsqueeze(0)
        losses = self.method.batched_loss(together, y.expand(len(embeddings), -1), layers)
        return self.method.checked_losses(losses, len(embeddings))

    def _changes(self) -> list[Tensor]:
        return [*self.method.parameters(), *self.method.buffers(), *self.updates.changes()]

    def state(self) -> dict[str, Tensor]:
        return self.updates.state() | self.part.state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        own = {key: tensor for key, tensor in tensors.items() if self.part.alone or key.split("/")[0] in self.updates.names}
        self.part.state = {key: tensor for key, tensor in tensors.items() if key not in own}
        self.updates.restore(own)


def _common(one: range, other: range) -> range:
    """Return the numbers that are in both ranges."""
    return range(max(one.start, other.start), min(one.stop, other.stop))
