"""Training of layers by several ranks, each with a shard of a batch's rows."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist

from faustnet.losses.gradients import backward
from faustnet.methods import LocalMethod
from faustnet.nn.row_shard import Gathering
from faustnet.nn.structure import Structure, detached
from faustnet.training.distributed.part import NetworkPart
from faustnet.training.optimisers import Updates


class RowParallel:
    """Trains layers on this rank's rows and the other ranks' embeddings.

    A layer's embeddings are gathered, and every rank computes the whole loss from them, which is little work next to the
    layer's. It takes its own rows' gradient back through the layer. Gradients are summed over the ranks while other layers
    work, and a layer is updated before its next forward pass.
    """

    def __init__(self, method: LocalMethod, part: NetworkPart, updates: Updates, totals: Tensor):
        assert part.shard is not None
        self.method, self.part, self.shard = method, part, part.shard
        self.updates, self.totals = updates, totals
        self.sums: dict[int, GradientSum] = {}  # by layer

    def train(self, rows: Structure, y: Tensor, rate: Tensor) -> None:
        """Train all own layers on one batch. (own rows, …), (B,)"""
        waiting: _Forward | None = None
        for number in self.part.layers:
            self._update(number)
            passed, embedding = self.method.network[number](rows)
            rows = detached(passed)
            del passed
            if number == self.part.layers[-1]:
                self.part.send(rows)
            here = _Forward(number, embedding, self.shard.gather(embedding[: self.shard.counts[self.shard.rank]].detach()))
            if waiting is not None:  # its embeddings were gathered while this layer worked
                self._learn(waiting, y, rate)
            waiting = here
        assert waiting is not None
        self._learn(waiting, y, rate)

    def finish(self) -> None:
        """Take the updates that are due."""
        for number in self.part.layers:
            self._update(number)

    def _learn(self, here: "_Forward", y: Tensor, rate: Tensor) -> None:
        """Compute a layer's loss and the gradient of its own rows, and start to sum the gradients of all ranks."""
        shard, layer = self.shard, self.method.network[here.number]
        rows = shard.counts[shard.rank]
        prototypes = here.embedding[rows:]  # the same on all ranks
        whole = torch.cat([here.gathering.wait(), prototypes.detach()]).requires_grad_()
        loss = self.method.embedding_loss(whole, y, here.number).reshape(())
        trainable = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        if trainable:
            loss.backward()
            assert whole.grad is not None
            by_prototypes = whole.grad[shard.total :]
            if shard.rank:  # gradients that all ranks have in full are counted on the first
                by_prototypes = torch.zeros_like(by_prototypes)
                for parameter in trainable:
                    parameter.grad = None
            if here.embedding.requires_grad:
                backward(here.embedding, torch.cat([whole.grad[shard.own], by_prototypes]))
            self.sums[here.number] = GradientSum(trainable, rate, shard.group)
        self.totals[here.number] += loss.detach()

    def _update(self, number: int) -> None:
        if total := self.sums.pop(number, None):
            total.wait()
            self.updates.step(total.rate)


@dataclass(frozen=True)
class _Forward:
    """A layer after its forward pass, with the embeddings of all ranks on their way."""

    number: int
    embedding: Tensor
    gathering: Gathering


class GradientSum:
    """Gradients that are being summed over all ranks, in one message."""

    def __init__(self, parameters: list[nn.Parameter], rate: Tensor, group: dist.ProcessGroup):
        self.parameters, self.rate = parameters, rate
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self.flat = torch.cat([gradient.flatten() for gradient in gradients])
        for parameter in parameters:
            parameter.grad = None
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def wait(self) -> None:
        """Set the parameters' gradients to the sums, when they are there."""
        assert self.work is not None
        self.work.wait()
        sums = self.flat.split([parameter.numel() for parameter in self.parameters])
        for parameter, gradient in zip(self.parameters, sums, strict=True):
            summed = gradient.view_as(parameter)  # the weights of convolutions may have another order of memory
            parameter.grad = summed if parameter.is_contiguous() else torch.empty_like(parameter).copy_(summed)
