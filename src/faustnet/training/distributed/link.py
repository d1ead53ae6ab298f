"""Messages between the stages of a layer pipeline."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from faustnet.nn.row_shard import RowShard
from faustnet.nn.structure import Structure, activation, empty_rows, in_memory_order, map_tensors, tensors
from faustnet.system.randomness import generator_states, set_generator_states
from faustnet.training.distributed.communicator import RankGrid

IN_FLIGHT = 2  # batches that a stage may have sent before the first of them has arrived


@dataclass(frozen=True)
class RowShapes:
    """The number of rows of a batch, the shard of this rank, and two example rows of each layer's input."""

    total: int
    shard: RowShard | None
    received: list[Structure]

    def empty(self, number: int) -> Structure:
        """Return zeros for the own rows of a layer's input."""
        rows = self.total if self.shard is None else self.shard.counts[self.shard.rank]
        return map_tensors(lambda like: empty_rows(like, rows).zero_(), self.received[number])

    def draw_dropout(self, number: int, dropout: float) -> None:
        """Draw the random numbers of a layer's dropout."""
        if dropout:
            torch.nn.functional.dropout(empty_rows(activation(self.received[number]), self.total).fill_(1), dropout)


class Link:
    """Receives rows from the stage before and sends rows to the stage after, batch by batch, with the state of the
    generator where it is needed. Messages are in flight while the stage works."""

    def __init__(self, grid: RankGrid, shapes: RowShapes, layers: range, *, with_generator: bool):
        self.before, self.after = grid.rank - grid.row_ranks, grid.rank + grid.row_ranks
        self.is_first, self.is_last = grid.stage == 0, grid.stage == grid.stages - 1
        self.group, self.shapes, self.layers = grid.device_group, shapes, layers
        self.device = activation(shapes.received[0]).device
        self.with_generator = with_generator
        self.expected: deque[_Message] = deque()
        self.sent: deque[_Message] = deque()

    def expect(self, count: int) -> None:
        """Start to receive this many further batches."""
        for _ in range(0 if self.is_first else count):
            state = torch.empty_like(self._generator()) if self.with_generator else None
            rows = self.shapes.empty(self.layers.start)
            self.expected.append(_Message(dist.irecv, rows, state, self.before, self.group))

    def receive(self) -> Structure:
        """Return the rows of the next batch."""
        message = self.expected.popleft()
        message.wait()
        if message.state is not None:
            set_generator_states(generator_states(self.device) | {self.device.type: message.state}, self.device)
        return message.rows

    def send(self, rows: Structure) -> None:
        if self.is_last:
            return
        state = self._generator() if self.with_generator else None
        self.sent.append(_Message(dist.isend, rows, state, self.after, self.group))
        if len(self.sent) > IN_FLIGHT:
            self.sent.popleft().wait()

    def close(self, expected: int) -> None:
        """Wait for all messages. If the epoch stopped early, the next stage still expects some batches, and gets zeros."""
        for _ in range(0 if self.is_last else expected):
            self.send(self.shapes.empty(self.layers.stop))
        for message in (*self.expected, *self.sent):
            message.wait()

    def _generator(self) -> Tensor:
        return generator_states(self.device)[self.device.type]


class _Message:
    """Rows on their way from one rank to another, and the state of the generator, which is on the host."""

    def __init__(
        self,
        move: Callable[..., dist.Work | None],
        rows: Structure,
        state: Tensor | None,
        rank: int,
        group: dist.ProcessGroup,
    ):
        self.rows, self.state = rows, state
        self.moved = [in_memory_order(tensor) for tensor in tensors(rows)]  # keeps copies alive
        self.works = [move(_as_sent(tensor), rank, group) for tensor in self.moved if tensor.numel()]
        if state is not None:
            self.works.append(move(state, rank))

    def wait(self) -> None:
        for work in self.works:
            assert work is not None
            work.wait()


def _as_sent(tensor: Tensor) -> Tensor:
    """Return a tensor as a type that all backends can send."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
