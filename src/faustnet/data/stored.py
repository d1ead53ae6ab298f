"""Pixels that stay in files until they are used."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from faustnet.data.arrays import ArrayFile, as_images, read_rows
from faustnet.errors import FaustnetError
from faustnet.system.devices import free_memory

STREAM = ("auto", "always", "never")
CHUNK = 1024  # images read at once when all of them are
MANY = 2**28  # bytes, from which on it is asked whether there is room
CPU = torch.device("cpu")
SCALED = 8  # bytes that a value takes while it is scaled


@dataclass(frozen=True, eq=False)
class StoredPixels:
    """Pixels in files, (n, channels, height, width), which are bytes or float32. Those at some positions are read when
    they are asked for, and end up on the device."""

    files: tuple[ArrayFile, ...]  # one after the other; rows of all are alike
    positions: np.ndarray  # (n,): the images of this set, counted through all files
    stream: str = "auto"  # whether they stay in files: "always", "never", or if they do not fit well in memory
    device: torch.device = CPU

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        channels, height, width = as_images(np.empty((0, *self.files[0].shape[1:]))).shape[1:]
        return len(self), channels, height, width

    @cached_property
    def _channels_last(self) -> bool:
        """In the files."""
        return not as_images(np.empty((1, *self.files[0].shape[1:]))).flags.c_contiguous

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self.files[0].dtype == np.uint8 else torch.float32

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self) * self.files[0].row

    def at(self, index: Tensor) -> "StoredPixels":
        """Those at these positions, which stay in files too. (b,)"""
        return replace(self, positions=self.positions[index.cpu().numpy()])

    def __getitem__(self, index: Tensor) -> Tensor:
        """(b,) → (b, c, h, w), on the device"""
        self._check_room(len(index))
        out = torch.empty(len(index), *self.shape[1:], dtype=self.dtype)
        self.read(index.cpu().numpy(), out.numpy())
        return out.to(self.device)

    def read(self, index: np.ndarray, out: np.ndarray) -> None:
        """Those at these positions into an array. (b,), (b, c, h, w)"""
        positions = self.positions[index]
        rows = np.empty((len(index), *self.files[0].shape[1:]), out.dtype) if self._channels_last else out
        read_rows(self.files, positions, rows)
        if self._channels_last:
            np.copyto(out, as_images(rows))
        if out.dtype != np.uint8 and not np.isfinite(out).all():
            bad = positions[np.flatnonzero(~np.isfinite(out).reshape(len(out), -1).all(axis=1))[0]]
            ends = np.cumsum([file.shape[0] for file in self.files])
            path = self.files[np.searchsorted(ends, bad, side="right")].path
            raise FaustnetError(f"{path} holds NaN or infinity: replace those values.")

    def split(self, size: int) -> Iterator[Tensor]:
        """All of them, so many at a time. → (size, c, h, w) each, on the device"""
        for index in torch.arange(len(self)).split(size):
            yield self[index]

    def to(self, device: torch.device) -> "Tensor | StoredPixels":
        """All of them as a tensor on a device where they fit well; otherwise these, to be read for that device."""
        if self.stream == "always" or (self.stream == "auto" and self.size > free_memory(device) // 2):
            return replace(self, device=device, stream="always")
        return self.in_memory(device)

    def in_memory(self, device: torch.device = CPU) -> Tensor:
        """All of them as a tensor. → (n, c, h, w)"""
        if self.size > free_memory(device):
            raise FaustnetError(
                f"{self.folder} has {self.size / 2**30:.1f} GiB of images, which do not fit in memory: "
                "leave data.stream at auto, or use a smaller set."
            )
        whole, done = torch.empty(self.shape, dtype=self.dtype, device=device), 0
        for chunk in self.split(CHUNK):
            whole[done : done + len(chunk)] = chunk
            done += len(chunk)
        return whole

    @property
    def folder(self) -> Path:
        return self.files[0].path.parent

    def _check_room(self, count: int) -> None:
        """Refuse so many at once where they do not fit in memory, scaled."""
        values = count * self.shape[1] * self.shape[2] * self.shape[3]
        if SCALED * values > MANY and SCALED * values > free_memory(CPU):
            raise FaustnetError(
                f"{count:,} images of {self.folder} are wanted at once, for which there is too little memory: "
                "choose representatives at random and not by k-means, or use a smaller set."
            )
