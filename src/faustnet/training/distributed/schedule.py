"""Algorithm 1 on several ranks, which divide every batch's rows, the layers, or both."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from faustnet.training.distributed.arrangement import Arrangement, divided, gathered
from faustnet.errors import FaustnetError
from faustnet.nn.layers import Layer
from faustnet.methods import LocalMethod, Method, Source
from faustnet.training.optimisers import OptimiserSettings
from faustnet.system.randomness import generator_states, set_generator_states, unchanged_generators
from faustnet.training.schedules.base import OneOptimiser
from faustnet.training.schedules.feed import MemoryFeed
from faustnet.nn.row_shard import Gathering, Slice

AHEAD = 2  # batches that a stage may be sent before it has begun them


class Distributed(OneOptimiser):
    """What one process learns, up to rounding.

    Rows: every rank draws the whole batch, and everything that is random, from the same generators, and works on its
    slice of the rows. A layer's embeddings are gathered, every rank computes the whole loss from them, which is little
    next to a layer's work, and takes its own rows' gradient back through the layer. The gradients are summed while other
    layers work, and the layer is updated when it is its turn again. What anchors are compared with is sliced along with
    them, so no row is embedded twice.

    Layers: a stage has consecutive layers, and passes on to the next one what its last layer made, while it goes on.
    Nothing comes back. Where later stages drop values, the state of the generator goes along; the first stage draws what
    they draw after them, and so has the generator of one process. Between epochs the first rank gets to know all.
    """

    name = "sequential"  # whose numbers these are

    def __init__(self, method: Method, train: Source, optimiser: OptimiserSettings, arrangement: Arrangement):
        super().__init__(method, train, optimiser)
        if not isinstance(method, LocalMethod):
            raise FaustnetError(
                f"The layers of {method.name} are trained together, in one process: start it without torchrun."
            )
        self.local, self.arrangement = method, arrangement
        self.stages_layers = divided([layer.multiplications for layer in method.network], arrangement.stages)
        self.own = self.stages_layers[arrangement.stage]
        first = self.stages_layers[0]
        self.drops = any(layer.dropout for layer in list(method.network)[first.stop :])
        if arrangement.stage:
            self.feed = MemoryFeed(train)  # later stages look at no image
        self.room: _Room | None = None
        self.elsewhere: dict[str, Tensor] = {}  # what the other stages' optimisers remember

    @property
    def about(self) -> str:
        rows, stages = self.arrangement.row_ranks, self.arrangement.stages
        parts = [f"a batch's rows on {rows} ranks"] if rows > 1 else []
        if stages > 1:
            spans = [f"{s.start + 1}–{s.stop}" if len(s) > 1 else f"{s.stop}" for s in self.stages_layers]
            parts.append(f"layers {' | '.join(spans)} on {stages}{' groups of them' if rows > 1 else ' ranks'}")
        return ", ".join(parts) or self.name

    @property
    def layers(self) -> range:
        return range(len(self.method.network))

    @property
    def _own_layers(self) -> list[tuple[int, Layer]]:
        return [(number, self.method.network[number]) for number in self.own]

    @property
    def _recordable(self) -> bool:
        return False

    def _make_ready(self) -> None:
        self.optimiser = self.settings.make(p for _, layer in self._own_layers for p in layer.parameters())
        self.summing: dict[int, _Summing] = {}  # by layer: gradients that are on their way

    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        super().begin(batches, rates, first)
        self.left = len(batches) - first  # to be taken
        if self.room is None:
            self.room = self._measured(batches[0].to(self.device))
            for _, layer in self._own_layers:
                layer.take_part(self.room.part)
        self.link = _Link(self.arrangement, self.room, self.own, with_generator=self.drops)
        self.link.expect(min(AHEAD, self.left))

    @torch.no_grad()
    def _measured(self, index: Tensor) -> "_Room":
        """What the batches' rows will be like."""
        with unchanged_generators(self.device):
            rows = self.local.rows(self.train.augmented(index), self.train.labels[index])
            some, received = rows[:2], []  # what each layer receives, of two rows
            for layer in self.method.network:
                received.append(some)
                some = layer(some)[0]
        place = self.arrangement
        part = Slice(place.row_group, place.row_rank, place.row_ranks, len(rows)) if place.row_ranks > 1 else None
        return _Room(len(rows), part, received)

    def step(self) -> None:
        super().step()
        self.left -= 1

    def _tick(self) -> None:
        assert self.room is not None
        index, rate = self.plan.read()
        y = self.train.labels[index]
        rows = self._rows(index, y)
        if self.room.part is None:
            self._learn_from(rows, y, rate)
        else:
            self._learn_together(rows, y, rate, self.room.part)

    def _learn_from(self, rows: Tensor, y: Tensor, rate: Tensor) -> None:
        """From all rows of a batch, as one process does: the losses of a few layers at once."""
        first = self.own.start
        for losses in self.local.losses_from(self._walk(rows), y, first):
            losses.sum().backward()
            self._take_step(rate)
            self.totals[first : first + len(losses)] += losses.detach()
            first += len(losses)

    def _walk(self, rows: Tensor) -> Iterator[Tensor]:
        """The own layers' embeddings; what the last of them made is passed on before anything else."""
        for number, layer in self._own_layers:
            activation, embedding = layer(rows)
            rows = activation.detach()
            del activation
            if number == self.own.stop - 1:
                self._pass_on(rows)
            yield embedding

    def _learn_together(self, rows: Tensor, y: Tensor, rate: Tensor, part: Slice) -> None:
        """From the own rows and what others make of theirs."""
        before: _Learning | None = None
        for number, layer in self._own_layers:
            self._update(number)
            activation, embedding = layer(rows)
            rows = activation.detach()
            if number == self.own.stop - 1:
                self._pass_on(rows)
            here = _Learning(number, embedding, part.gather(embedding[: len(rows)].detach()))
            if before is not None:  # whose embeddings came while this layer worked
                self._learn(before, y, rate, part)
            before = here
        assert before is not None
        self._learn(before, y, rate, part)

    def _rows(self, index: Tensor, y: Tensor) -> Tensor:
        """What the first of the own layers works on, the own slice of it."""
        assert self.room is not None
        if self.arrangement.stage:
            rows = self.link.receive()
            self.link.expect(int(self.left > AHEAD))
            return rows
        rows = self.local.rows(self.feed.augmented(index), y)
        return rows if self.room.part is None else rows[self.room.part.own]

    def _pass_on(self, rows: Tensor) -> None:
        assert self.room is not None
        self.link.send(rows)
        if self.arrangement.stage == 0 and self.drops:
            for number in range(self.own.stop, len(self.method.network)):
                self.room.draw(number, self.method.network[number].dropout)

    def _learn(self, here: "_Learning", y: Tensor, rate: Tensor, part: Slice) -> None:
        """A layer's loss and the own rows' gradient, to which the others' are added on their way."""
        layers = slice(here.number, here.number + 1)
        rows = part.counts[part.rank]
        prototypes = here.embedding[rows:]  # the same on all ranks: the first one takes care of them
        whole = torch.cat([here.gathering.wait(), prototypes.detach()]).requires_grad_()
        loss = self.local.local_loss(whole.unsqueeze(0), y.unsqueeze(0), layers)
        (by_whole,) = torch.autograd.grad(loss.sum(), whole)
        by_prototypes = by_whole[part.total :] if part.rank == 0 else torch.zeros_like(prototypes)
        here.embedding.backward(torch.cat([by_whole[part.own], by_prototypes]))
        parameters = [p for p in self.method.network[here.number].parameters() if p.grad is not None]
        self.summing[here.number] = _Summing(parameters, rate, part.group)
        self.totals[layers] += loss.detach()

    def _update(self, number: int) -> None:
        """Take the step of a layer whose gradients are there, or on their way."""
        if summing := self.summing.pop(number, None):
            summing.wait()
            self._take_step(summing.rate)

    def drain(self) -> None:
        super().drain()
        for number in self.own:
            self._update(number)
        self.link.close(min(AHEAD, self.left))
        if self.arrangement.stages > 1 and self.arrangement.row_rank == 0:
            self._gather_all()

    def _gather_all(self) -> None:
        """All that the stages have learned, on the first rank."""
        parameters = {
            f"{number}.{name}": parameter.detach()
            for number, layer in self._own_layers
            for name, parameter in layer.named_parameters()
        }
        span = slice(self.own.start, self.own.stop)
        others = gathered([parameters, super().state(), {"totals": self.totals[span]}], self.arrangement)
        for (learned, remembered, sums), layers in zip(others, self.stages_layers[1:], strict=False):
            with torch.no_grad():
                for name, tensor in learned.items():
                    self.method.network.layers.get_parameter(name).copy_(tensor)
            self.totals[layers.start : layers.stop] = sums["totals"].to(self.device)
            self.elsewhere |= remembered

    def state(self) -> dict[str, Tensor]:
        return super().state() | self.elsewhere

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        own = set(self._parameter_names())
        mine = {key: tensor for key, tensor in tensors.items() if key.split("/")[0] in own}
        self.elsewhere = {key: tensor for key, tensor in tensors.items() if key not in mine}
        super().restore(mine)


@dataclass(frozen=True)
class _Learning:
    """A layer that has worked forward, and whose embeddings of all ranks are on their way."""

    number: int
    embedding: Tensor
    gathering: Gathering


class _Summing:
    """Gradients of all ranks that are being summed, as one message."""

    def __init__(self, parameters: list[torch.nn.Parameter], rate: Tensor, group: dist.ProcessGroup):
        self.parameters, self.rate = parameters, rate
        self.flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        for parameter in parameters:
            parameter.grad = None
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def wait(self) -> None:
        """Until they are there; then they are the parameters'."""
        assert self.work is not None
        self.work.wait()
        sums = self.flat.split([parameter.numel() for parameter in self.parameters])
        for parameter, gradient in zip(self.parameters, sums, strict=True):
            parameter.grad = gradient.view_as(parameter)


@dataclass(frozen=True)
class _Room:
    """What the batches' rows are like: how many, which of them are here, and two of those that each layer receives."""

    total: int
    part: Slice | None
    received: list[Tensor]

    def empty(self, number: int) -> Tensor:
        """For the own rows that a layer receives."""
        like = self.received[number]
        return like.new_zeros(self.total if self.part is None else self.part.counts[self.part.rank], like.shape[1])

    def draw(self, number: int, dropout: float) -> None:
        """What the dropout of a layer draws."""
        if dropout:
            like = self.received[number]
            torch.nn.functional.dropout(like.new_ones(self.total, like.shape[1]), dropout)


class _Link:
    """What a stage gets from the one before it and sends to the one after it, batch by batch: the rows, and the state of the
    generator where it is needed. Both are on their way while the stage works; it never has more than AHEAD of either."""

    def __init__(self, arrangement: Arrangement, room: _Room, own: range, *, with_generator: bool):
        self.before, self.after = arrangement.rank - arrangement.row_ranks, arrangement.rank + arrangement.row_ranks
        self.is_first, self.is_last = arrangement.stage == 0, arrangement.stage == arrangement.stages - 1
        self.group, self.room, self.own = arrangement.device_group, room, own
        self.device = room.received[0].device
        self.with_generator = with_generator
        self.expected: deque[_Message] = deque()
        self.sent: deque[_Message] = deque()

    def expect(self, count: int) -> None:
        """So many batches more."""
        for _ in range(0 if self.is_first else count):
            state = torch.empty_like(self._generator()) if self.with_generator else None
            self.expected.append(_Message(dist.irecv, self.room.empty(self.own.start), state, self.before, self.group))

    def receive(self) -> Tensor:
        """The rows of the next batch."""
        message = self.expected.popleft()
        message.wait()
        if message.state is not None:
            set_generator_states(generator_states(self.device) | {self.device.type: message.state}, self.device)
        return message.rows

    def send(self, rows: Tensor) -> None:
        if self.is_last:
            return
        state = self._generator() if self.with_generator else None
        self.sent.append(_Message(dist.isend, rows.contiguous(), state, self.after, self.group))
        if len(self.sent) > AHEAD:
            self.sent.popleft().wait()

    def close(self, expected: int) -> None:
        """Wait for all that is under way. If the epoch has stopped early the next stage still expects so many batches, and
        gets them, of nothing."""
        for _ in range(0 if self.is_last else expected):
            self.send(self.room.empty(self.own.stop))
        for message in (*self.expected, *self.sent):
            message.wait()

    def _generator(self) -> Tensor:
        return generator_states(self.device)[self.device.type]


class _Message:
    """On its way from one rank to another, over the group of the rows' device; the generator's state lies on the host."""

    def __init__(
        self,
        move: Callable[..., dist.Work | None],
        rows: Tensor,
        state: Tensor | None,
        rank: int,
        group: dist.ProcessGroup,
    ):
        self.rows, self.state = rows, state
        self.works = [move(rows, rank, group)] if rows.numel() else []
        if state is not None:
            self.works.append(move(state, rank))

    def wait(self) -> None:
        for work in self.works:
            assert work is not None
            work.wait()
