"""Feeds: where a schedule takes its batches of images from. Images in memory are used directly; images in files are read
ahead by a thread, into a window of batches that the training steps look into."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from faustnet.data import ImageSource, StoredPixels
from faustnet.data.sources import DatasetItems, DatasetSource
from faustnet.methods import Source

HOST_SLOTS, CUDA_SLOTS = 8, 16  # batches in a window; a recorded step on a GPU uses several at once
STAGING_BUFFERS = 2  # batches on their way to a GPU


class Feed(Protocol):
    """An epoch runs inside `reading`, its training steps inside `supplied`."""

    streams: bool  # whether the images are in files

    def augmented(self, index: Tensor) -> Tensor:
        """Return the images of a batch, scaled and augmented. (B,) → (B, …)"""
        ...

    def reading(self, batches: Tensor, first: int) -> AbstractContextManager[None]:
        """Provide the batches of an epoch, (T, B), starting with number `first`."""
        ...

    def supplied(self, steps: int) -> AbstractContextManager[None]:
        """Wait until the batches of the next `steps` steps are available, and keep them available inside the block."""
        ...


def feed_from(source: Source) -> Feed:
    """Return the feed that suits where the images of a source are stored."""
    if isinstance(source, ImageSource) and isinstance(source.images.pixels, StoredPixels):
        return FileFeed(source, source.images.pixels)
    if isinstance(source, DatasetSource):
        return FileFeed(source, source.items)
    return MemoryFeed(source)


class MemoryFeed:
    """Feed of a source whose images are in memory."""

    streams = False

    def __init__(self, source: Source):
        self.augmented = source.augmented

    def reading(self, batches: Tensor, first: int) -> AbstractContextManager[None]:
        return nullcontext()

    def supplied(self, steps: int) -> AbstractContextManager[None]:
        return nullcontext()


class FileFeed:
    """Feed of a source whose images are in files."""

    streams = True
    window: "Window"
    reader: "BatchReader"

    def __init__(self, source: ImageSource | DatasetSource, pixels: StoredPixels | DatasetItems):
        self.source, self.pixels = source, pixels
        self.batch_size = 0

    def augmented(self, index: Tensor) -> Tensor:
        return self.source.augmented_of(*self.window.find(index))

    @contextmanager
    def reading(self, batches: Tensor, first: int) -> Iterator[None]:
        if batches.shape[1] != self.batch_size:  # otherwise the window stays, because recorded steps read from it
            self.batch_size = batches.shape[1]
            device = self.source.labels.device
            make = CudaWindow if device.type == "cuda" else HostWindow
            self.window = make(self.pixels, self.batch_size, device)
        self.reader = BatchReader(self.window, batches.numpy(), first)
        try:
            yield
        finally:
            self.reader.stop()

    def supplied(self, steps: int) -> AbstractContextManager[None]:
        return self.reader.supplied(steps)


class Window(Protocol):
    """The latest batches of an epoch; batch t is in slot t mod `slots`. `write` is called by the reading thread, everything
    else by the training thread. The tensors keep their addresses, so that CUDA graphs can read from them."""

    slots: int

    def write(self, number: int, index: np.ndarray) -> None:
        """Read the images of batch `number` from their files into its slot. (B,)"""
        ...

    def acquire(self, number: int, index: np.ndarray) -> None:
        """Make `find` return the images of a batch that has been written. (B,)"""
        ...

    def release(self, number: int) -> None:
        """Allow the slot of a batch to be overwritten, once the steps that are under way have used it."""
        ...

    def find(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return a tensor that contains these images of acquired batches, and their rows in it. (B,) → (m, c, h, w), (B,)"""
        ...


class HostWindow:
    """Window in main memory."""

    slots = HOST_SLOTS

    def __init__(self, pixels: StoredPixels | DatasetItems, batch_size: int, device: torch.device):
        self.pixels, self.batch_size, self.device = pixels, batch_size, device
        self.images = torch.zeros(self.slots * batch_size, *pixels.shape[1:], dtype=pixels.dtype)
        self.row_of = torch.zeros(len(pixels), dtype=torch.long)  # of each image, its latest row in `images`

    def write(self, number: int, index: np.ndarray) -> None:
        first = number % self.slots * self.batch_size
        self.pixels.read(index, self.images[first : first + self.batch_size].numpy())

    def acquire(self, number: int, index: np.ndarray) -> None:
        self.row_of.numpy()[index] = np.arange(self.batch_size) + number % self.slots * self.batch_size

    def release(self, number: int) -> None:
        pass

    def find(self, index: Tensor) -> tuple[Tensor, Tensor]:
        if self.device.type == "cpu":
            return self.images, self.row_of[index]
        found = self.images[self.row_of[index.cpu()]].to(self.device)
        return found, torch.arange(len(index), device=self.device)


class CudaWindow:
    """Window in the memory of a GPU. Batches are copied on a separate stream, which waits for the steps that still
    use a slot; the GPU never waits for the disk."""

    slots = CUDA_SLOTS

    def __init__(self, pixels: StoredPixels | DatasetItems, batch_size: int, device: torch.device):
        self.pixels, self.batch_size, self.device = pixels, batch_size, device
        shape, dtype = pixels.shape[1:], pixels.dtype
        self.images = torch.zeros(self.slots * batch_size, *shape, dtype=dtype, device=device)
        self.row_of = torch.zeros(len(pixels), dtype=torch.long, device=device)  # of each image, its latest row in `images`
        self.rows = torch.arange(self.slots * batch_size, device=device)
        self.index = torch.empty(batch_size, dtype=torch.long, device=device)
        self.staged = [torch.empty(batch_size, *shape, dtype=dtype, pin_memory=True) for _ in range(STAGING_BUFFERS)]
        self.staged_index = [torch.empty(batch_size, dtype=torch.long, pin_memory=True) for _ in range(STAGING_BUFFERS)]
        self.copied = [torch.cuda.Event() for _ in range(STAGING_BUFFERS)]
        self.written = [torch.cuda.Event() for _ in range(self.slots)]
        self.released = [torch.cuda.Event() for _ in range(self.slots)]
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))

    def write(self, number: int, index: np.ndarray) -> None:
        stage, slot = number % STAGING_BUFFERS, number % self.slots
        rows = slice(slot * self.batch_size, (slot + 1) * self.batch_size)
        self.copied[stage].synchronize()
        self.pixels.read(index, self.staged[stage].numpy())
        self.staged_index[stage].numpy()[:] = index
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.released[slot])
            self.images[rows].copy_(self.staged[stage], non_blocking=True)
            self.index.copy_(self.staged_index[stage], non_blocking=True)
            self.row_of.index_copy_(0, self.index, self.rows[rows])
            self.copied[stage].record(self.stream)
            self.written[slot].record(self.stream)

    def acquire(self, number: int, index: np.ndarray) -> None:
        torch.cuda.current_stream(self.device).wait_event(self.written[number % self.slots])

    def release(self, number: int) -> None:
        self.released[number % self.slots].record(torch.cuda.current_stream(self.device))

    def find(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.images, self.row_of[index]


class BatchReader:
    """Thread that writes the batches of an epoch into a window, as far ahead of the training steps as the window allows."""

    def __init__(self, window: Window, batches: np.ndarray, first: int):
        self.window, self.batches = window, batches  # (T, B)
        self.written = self.released = first  # batches so far
        self.stopping = False
        self.error: BaseException | None = None  # that ended the thread
        self.changed = threading.Condition()  # guards the four above
        self.thread = threading.Thread(target=self._run, name="reading ahead", daemon=True)
        self.thread.start()

    @contextmanager
    def supplied(self, steps: int) -> Iterator[None]:
        """Hold the batches of the next steps in the window inside the block. Errors of the thread are raised here."""
        numbers = range(self.released, min(self.released + steps, len(self.batches)))
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or self.written >= numbers.stop)
            if self.error is not None:
                raise self.error
        for number in numbers:
            self.window.acquire(number, self.batches[number])
        yield
        for number in numbers:
            self.window.release(number)
        with self.changed:
            self.released = numbers.stop
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        self.thread.join()

    def _run(self) -> None:
        try:
            while self.written < len(self.batches) and self._wait_for_slot():
                self.window.write(self.written, self.batches[self.written])
                with self.changed:
                    self.written += 1
                    self.changed.notify_all()
        except BaseException as error:  # raised again by `supplied`
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def _wait_for_slot(self) -> bool:
        """Wait until a slot may be overwritten; return False if the thread is to stop."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopping or self.written < self.released + self.window.slots)
            return not self.stopping
