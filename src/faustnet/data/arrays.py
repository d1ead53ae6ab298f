"""Arrays in .npy files that are not read whole, and images in any usual layout."""

import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from faustnet.errors import FaustnetError


@dataclass(frozen=True)
class ArrayFile:
    """A .npy file in which rows lie one after the other."""

    path: Path
    start: int  # of the first row, in bytes
    shape: tuple[int, ...]  # (rows, …)
    dtype: np.dtype

    @classmethod
    def open(cls, path: Path) -> "ArrayFile":
        """What its header says, if the file holds as much. Objects, which would have to be unpickled, are refused."""
        try:
            with path.open("rb") as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, by_columns, dtype = read(file)
                start = file.tell()
        except (OSError, ValueError, EOFError) as error:
            raise FaustnetError(f"{path} is no array that can be read ({error}): write it with numpy.save.") from None
        if dtype.hasobject:
            raise FaustnetError(f"{path} holds Python objects, which are never opened: save plain numbers or words.")
        if by_columns and len(shape) > 1:
            raise FaustnetError(f"{path} lies column by column: save numpy.ascontiguousarray of it.")
        missing = start + math.prod(shape) * dtype.itemsize - path.stat().st_size
        if missing > 0:
            raise FaustnetError(f"{path} is cut short, {missing:,} bytes are missing: write or copy it anew.")
        return cls(path, start, shape, dtype)

    @property
    def row(self) -> int:
        """The size of a row in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def read_rows(files: Sequence[ArrayFile], positions: np.ndarray, out: np.ndarray) -> None:
    """The rows at these positions, counted through all files in order, into `out`. (b,), (b, …)"""
    if not len(positions):
        return
    lengths = np.array([file.shape[0] for file in files])
    ends = lengths.cumsum()
    owners = np.searchsorted(ends, positions, side="right")
    broken = (np.diff(positions) != 1) | (np.diff(owners) != 0)
    firsts = np.flatnonzero(np.concatenate([[True], broken]))  # of rows that follow one another
    counts = np.diff(firsts, append=len(positions))
    inside = positions[firsts] - (ends - lengths)[owners[firsts]]
    runs = np.stack([owners[firsts], inside, firsts, counts], axis=1)
    runs = runs[positions[firsts].argsort(kind="stable")]
    target = out.data.cast("B")
    own = [(files[owner], runs[runs[:, 0] == owner, 1:].tolist()) for owner in np.unique(runs[:, 0])]
    if len(runs) > 1 and hasattr(os, "posix_fadvise"):
        for file, wanted in own:
            _announce(file, wanted)
    for file, wanted in own:
        _read_runs(file, wanted, target)


Run = list[int]  # of rows that follow one another: the first in the file, the first in memory, how many


@contextmanager
def _opened(file: ArrayFile) -> Iterator[io.FileIO]:
    try:
        with file.path.open("rb", buffering=0) as opened:
            yield opened
    except OSError as error:
        raise FaustnetError(f"{file.path} cannot be read any more ({error.strerror}): bring it back.") from None


def _announce(file: ArrayFile, runs: Sequence[Run]) -> None:
    """Let the system fetch all of it at once: a disk answers many questions almost as fast as one."""
    with _opened(file) as opened:
        for there, _, count in runs:
            where = file.start + there * file.row
            os.posix_fadvise(opened.fileno(), where, count * file.row, os.POSIX_FADV_WILLNEED)


def _read_runs(file: ArrayFile, runs: Sequence[Run], target: memoryview) -> None:
    with _opened(file) as opened:
        for there, here, count in runs:
            where, rest = file.start + there * file.row, target[here * file.row : (here + count) * file.row]
            while rest:
                got = _read_at(opened, where, rest)
                if not got:
                    raise FaustnetError(f"{file.path} has become shorter while it was used: copy it anew.")
                where, rest = where + got, rest[got:]


def _read_at(opened: io.FileIO, where: int, target: memoryview) -> int:
    """Some bytes from there on, at most as many as there is room for; how many."""
    if hasattr(os, "preadv"):
        return os.preadv(opened.fileno(), [target], where)
    opened.seek(where)
    return opened.readinto(target)


def as_images(array: np.ndarray) -> np.ndarray:
    """A table (n, columns), or images (n, h, w), (n, h, w, c) or (n, c, h, w), seen as (n, c, h, w)."""
    if array.ndim == 2:
        return array[:, :, None, None]
    if array.ndim == 3:
        return array[:, None]
    if array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        return array.transpose(0, 3, 1, 2)
    return array
