"""Pixels that stay in files until they are used, for data sets larger than memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from faustnet.data.npy_file import NpyFile, channels_first, read_rows
from faustnet.errors import FaustnetError
from faustnet.system.devices import free_memory

STREAM = ("auto", "always", "never")
CHUNK = 1024  # images read at once when a whole set is read
CHECKED_SIZE = 2**28  # bytes, above which the free memory is checked
CPU = torch.device("cpu")
SCALED_BYTES = 8  # needed for each value while it is scaled


@dataclass(frozen=True, eq=False)
class StoredPixels:
    """Pixels in files, (n, channels, height, width), bytes or float32. Indexing reads images to the device."""

    files: tuple[NpyFile, ...]  # whose rows all have one shape and type
    positions: np.ndarray  # (n,): rows of the images of this set, numbered through all files
    stream: str = "auto"  # keep the pixels in files: "always", "never", or if they need more than half of the memory
    device: torch.device = CPU

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        channels, height, width = channels_first(np.empty((0, *self.files[0].shape[1:]))).shape[1:]
        return len(self), channels, height, width

    @cached_property
    def _channels_last(self) -> bool:
        """Whether the files store the channels last."""
        return not channels_first(np.empty((1, *self.files[0].shape[1:]))).flags.c_contiguous

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self.files[0].dtype == np.uint8 else torch.float32

    @property
    def size(self) -> int:
        """Size of all images in bytes."""
        return len(self) * self.files[0].row_bytes

    def at(self, index: Tensor) -> "StoredPixels":
        """Return the images at these positions, which stay in files. (b,)"""
        return replace(self, positions=self.positions[index.cpu().numpy()])

    def __getitem__(self, index: Tensor) -> Tensor:
        """Read the images at these positions and move them to the device. (b,) → (b, c, h, w)"""
        self._check_memory(len(index))
        out = torch.empty(len(index), *self.shape[1:], dtype=self.dtype)
        self.read(index.cpu().numpy(), out.numpy())
        return out.to(self.device)

    def read(self, index: np.ndarray, out: np.ndarray) -> None:
        """Read the images at these positions into an array. (b,), (b, c, h, w)"""
        positions = self.positions[index]
        rows = np.empty((len(index), *self.files[0].shape[1:]), out.dtype) if self._channels_last else out
        read_rows(self.files, positions, rows)
        if self._channels_last:
            np.copyto(out, channels_first(rows))
        if out.dtype != np.uint8 and not np.isfinite(out).all():
            bad = index[np.flatnonzero(~np.isfinite(out).reshape(len(out), -1).all(axis=1))[0]]
            raise FaustnetError(f"{self.file_of(bad)[0]} contains NaN or infinity: replace those values.")

    def file_of(self, place: int) -> tuple[Path, int]:
        """Return the file of the image at a position, and its row in that file."""
        ends = np.cumsum([file.shape[0] for file in self.files])
        number = int(np.searchsorted(ends, self.positions[place], side="right"))
        file = self.files[number]
        return file.path, int(self.positions[place] - ends[number] + file.shape[0])

    def split(self, size: int) -> Iterator[Tensor]:
        """Read all images in chunks of `size`, on the device. → (size, c, h, w) each"""
        for index in torch.arange(len(self)).split(size):
            yield self[index]

    def to(self, device: torch.device) -> "Tensor | StoredPixels":
        """Read all images to a device if `stream` allows it; otherwise return pixels that are read when used."""
        if self.stream == "always" or (self.stream == "auto" and self.size > free_memory(device) // 2):
            return replace(self, device=device, stream="always")
        return self.in_memory(device)

    def in_memory(self, device: torch.device = CPU) -> Tensor:
        """Read all images into a tensor. → (n, c, h, w)"""
        if self.size > free_memory(device):
            raise FaustnetError(
                f"{self.folder} has {self.size / 2**30:.1f} GiB of images, more than the free memory: "
                'set data.stream to "auto", or use a smaller data set.'
            )
        whole, done = torch.empty(self.shape, dtype=self.dtype, device=device), 0
        for chunk in self.split(CHUNK):
            whole[done : done + len(chunk)] = chunk
            done += len(chunk)
        return whole

    @property
    def folder(self) -> Path:
        return self.files[0].path.parent

    def _check_memory(self, count: int) -> None:
        """Raise an error if this number of images does not fit in memory when they are scaled."""
        values = count * self.shape[1] * self.shape[2] * self.shape[3]
        if SCALED_BYTES * values > CHECKED_SIZE and SCALED_BYTES * values > free_memory(CPU):
            raise FaustnetError(
                f"There is not enough memory to read {count:,} images of {self.folder} at once: "
                "set options.choice to random if it is k-means, or use a smaller data set."
            )
