"""What batches of images come from while training: the source itself, or files that are read ahead of the work."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from faustnet.data import ImageSource, StoredPixels
from faustnet.methods import Source

AHEAD, AHEAD_ON_GPU = 8, 16  # batches that lie ready at most; a GPU takes several at once
STAGES = 2  # batches on their way to a GPU


class Feed(Protocol):
    """An epoch takes place inside of `reading`, which is told of its batches, (T, B), and of the first that is wanted; so
    many steps inside of `supplied`, which sees that their batches are there."""

    streams: bool  # whether images are in files

    def augmented(self, index: Tensor) -> Tensor:
        """Of the images of a batch, scaled and distorted. (B,) → (B, …)"""
        ...

    def reading(self, batches: Tensor, first: int) -> AbstractContextManager[None]: ...
    def supplied(self, steps: int) -> AbstractContextManager[None]: ...


def feed_from(source: Source) -> Feed:
    if isinstance(source, ImageSource) and isinstance(source.images.pixels, StoredPixels):
        return ReadAhead(source, source.images.pixels)
    return Direct(source)


class Direct:
    """All that there is lies ready."""

    streams = False

    def __init__(self, source: Source):
        self.augmented = source.augmented

    def reading(self, batches: Tensor, first: int) -> AbstractContextManager[None]:
        return nullcontext()

    def supplied(self, steps: int) -> AbstractContextManager[None]:
        return nullcontext()


class ReadAhead:
    """A thread reads the coming batches into a window on the device while there is work on those before. Steps find images
    where `place` says, so the window and `place` stay where they are: a recorded step looks there.

    On a GPU images go over on a stream of their own. Nobody there waits for the disk: only the thread that reads, and
    whoever asks for steps whose batches are not there yet.
    """

    streams = True
    window: Tensor  # (batches · B, c, h, w)
    place: Tensor  # (n,): where in the window an image was put last
    error: BaseException | None  # that ended the thread

    def __init__(self, source: ImageSource, pixels: StoredPixels):
        self.source, self.pixels = source, pixels
        self.device = source.labels.device
        self.on_gpu = self.device.type == "cuda"
        self.ahead = AHEAD_ON_GPU if self.on_gpu else AHEAD
        self.size = 0  # of a batch
        self.changed = threading.Condition()

    def augmented(self, index: Tensor) -> Tensor:
        if self.device.type == self.window.device.type:
            return self.source.augmented_of(self.window, self.place[index])
        picked = self.window[self.place[index.to(self.window.device)]].to(self.device)
        return self.source.augmented_of(picked, torch.arange(len(index), device=self.device))

    @contextmanager
    def reading(self, batches: Tensor, first: int) -> Iterator[None]:
        if batches.shape[1] != self.size:
            self._make_room(batches.shape[1])
        self.batches = batches.numpy()
        self.read = self.used = first  # batches so far
        self.ending, self.error = False, None
        thread = threading.Thread(target=self._read_all, name="reading ahead", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self.changed:
                self.ending = True
                self.changed.notify_all()
            thread.join()

    def _make_room(self, size: int) -> None:
        self.size = size
        shape, dtype = self.pixels.shape[1:], self.pixels.dtype
        where = self.device if self.on_gpu else torch.device("cpu")
        self.window = torch.zeros(self.ahead * size, *shape, dtype=dtype, device=where)
        self.place = torch.zeros(len(self.pixels), dtype=torch.long, device=where)
        if self.on_gpu:
            self.stream = torch.cuda.Stream(self.device)
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            self.staged = [torch.empty(size, *shape, dtype=dtype, pin_memory=True) for _ in range(STAGES)]
            self.staged_index = [torch.empty(size, dtype=torch.long, pin_memory=True) for _ in range(STAGES)]
            self.index = torch.empty(size, dtype=torch.long, device=self.device)
            self.rows = torch.arange(self.ahead * size, device=self.device)
            self.copied = [torch.cuda.Event() for _ in range(STAGES)]
            self.arrived = [torch.cuda.Event() for _ in range(self.ahead)]
            self.left = [torch.cuda.Event() for _ in range(self.ahead)]

    @contextmanager
    def supplied(self, steps: int) -> Iterator[None]:
        last = min(self.used + steps, len(self.batches))
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or self.read >= last)
            if self.error is not None:
                raise self.error
        for number in range(self.used, last):
            if self.on_gpu:
                torch.cuda.current_stream(self.device).wait_event(self.arrived[number % self.ahead])
            else:
                self.place.numpy()[self.batches[number]] = np.arange(self.size) + number % self.ahead * self.size
        yield
        if self.on_gpu:
            for number in range(self.used, last):
                self.left[number % self.ahead].record(torch.cuda.current_stream(self.device))
        with self.changed:
            self.used = last
            self.changed.notify_all()

    def _read_all(self) -> None:
        try:
            while self.read < len(self.batches):
                with self.changed:
                    self.changed.wait_for(lambda: self.ending or self.read < self.used + self.ahead)
                    if self.ending:
                        return
                self._put(self.read)
                with self.changed:
                    self.read += 1
                    self.changed.notify_all()
        except BaseException as error:  # for whoever waits for the batch
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def _put(self, number: int) -> None:
        """Read a batch into its slot of the window."""
        slot = number % self.ahead
        rows = slice(slot * self.size, (slot + 1) * self.size)
        if self.on_gpu:
            self._put_on_gpu(self.batches[number], number % STAGES, slot, rows)
        else:
            self.pixels.read(self.batches[number], self.window[rows].numpy())

    def _put_on_gpu(self, index: np.ndarray, stage: int, slot: int, rows: slice) -> None:
        self.copied[stage].synchronize()
        self.pixels.read(index, self.staged[stage].numpy())
        self.staged_index[stage].numpy()[:] = index
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.left[slot])
            self.window[rows].copy_(self.staged[stage], non_blocking=True)
            self.index.copy_(self.staged_index[stage], non_blocking=True)
            self.place.index_copy_(0, self.index, self.rows[rows])
            self.copied[stage].record(self.stream)
            self.arrived[slot].record(self.stream)
