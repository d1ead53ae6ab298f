"""Training on a stream of batches, of known or unknown length."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from faustnet.data.sources import ArraySource, StreamSource
from faustnet.errors import FaustnetError
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import KnownOptimiser
from faustnet.training.schedules import SCHEDULES, Schedule

SEGMENT = 32  # batches that are in memory at once


class StreamLoop(TrainingLoop):
    """Trains a method on the batches of a stream.

    Batches are copied to a window in memory, and a schedule trains on the batches of the window as on an epoch. What a
    method needs beside the batches comes from the stream's sample.
    """

    train: StreamSource

    def _schedule(self) -> Schedule:
        if self.settings.schedule == "greedy" or not self.communicator.alone:
            raise FaustnetError(
                "train must be arrays or a map-style data set for schedule greedy and for several ranks, got a stream."
            )
        size = self.settings.batch_size
        like = self.train.x
        x = like.new_zeros(SEGMENT * size, *like.shape[1:])
        labels = torch.zeros(SEGMENT * size, dtype=torch.long, device=like.device)
        self.window = ArraySource(x, labels, self.train.class_names)
        self.table = torch.arange(SEGMENT * size).view(SEGMENT, size)
        self.waiting: Iterator[tuple[Tensor, Tensor]] | None = None  # batches of an epoch that was stopped
        self.unused: list[float] = []  # their learning rates, as far as they are known
        return SCHEDULES[self._schedule_name](self.method, self.window, self.optimiser.create())

    def _train_epoch(self, on_batch: Callable[[], None]) -> bool:
        self.method.train()
        self.method.mark_ready(False)
        begin = time.perf_counter()
        if self.batch == 0 or self.waiting is None:
            self.method.enter_epoch(len(self.history) / max(1, self.settings.epochs - 1))
            self.waiting = self.train.batches()
        stopped = False
        while not stopped and (segment := list(islice(self.waiting, SEGMENT))):
            rates = self._rates(len(segment))
            self._fill(segment)
            self.schedule.begin(self.table, torch.tensor(rates, dtype=torch.float64), 0)
            for number in range(len(segment)):
                if self.communicator.stops(self.stopping):
                    self.waiting = _chain(segment[number:], self.waiting)
                    self.unused = rates[number : len(segment)]
                    stopped = True
                    break
                self.schedule.step()
                self.batch += 1
                self.rate = self.optimiser.used_rate(rates[number])
                on_batch()
            self.schedule.drain()
        if not stopped:
            if self.batch == 0:
                raise FaustnetError(
                    f"train must have at least one batch of {self.settings.batch_size} samples each time it is iterated, "
                    f"got none in epoch {len(self.history) + 1}: use smaller batches, or let it begin anew."
                )
            self.batches, self.waiting = self.batch, None
            self._check_finite()
        self.seconds += time.perf_counter() - begin
        return not stopped

    def _fill(self, segment: list[tuple[Tensor, Tensor]]) -> None:
        """Copy batches to the window."""
        size = self.settings.batch_size
        for number, (x, y) in enumerate(segment):
            rows = slice(number * size, (number + 1) * size)
            self.window.x[rows].copy_(x)
            self.window.labels[rows].copy_(y)

    def _rates(self, count: int) -> list[float]:
        """Return the learning rates of the next batches, and fill up to a whole window. Without a known length, the learning
        rate of a recipe's schedule changes once per epoch."""
        epoch, epochs = len(self.history), self.settings.epochs
        if isinstance(self.optimiser, KnownOptimiser):
            rates = self.unused[:count] + self.optimiser.next_rates(max(0, count - len(self.unused)))
            self.unused = self.unused[count:]
        elif (length := _length(self.train.loader)) is not None:
            last = length - 1  # as the loader says, which may be wrong
            known = self.optimiser.rates(epoch, epochs, length)
            rates = [known[min(batch, last)] for batch in range(self.batch, self.batch + count)]
        else:
            rates = self.optimiser.rates(epoch, epochs, 1) * count
        return rates + rates[-1:] * (SEGMENT - len(rates))


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _chain(first: list[tuple[Tensor, Tensor]], rest: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    yield from first
    yield from rest
