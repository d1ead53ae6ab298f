"""Arrays in .npy files that are not read whole, and images in any usual layout."""

import io
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from faustnet.errors import FaustnetError

OPEN = 64  # files at once


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
            if not path.is_file():  # a pipe would keep us waiting
                raise ValueError("it is no file")
            with path.open("rb") as file:
                shape, by_columns, dtype = read_header(file)
                start = file.tell()
        except (OSError, ValueError) as error:
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


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape of an array in a .npy file, whether it lies column by column, and its type."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, by_columns, dtype = read(file)
    except Exception as error:  # numpy reads it as Python, over which it can stumble in any way at all
        raise ValueError(str(error) or "its header cannot be read") from None
    if not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"it says that it is {shape} of {dtype}")
    return shape, by_columns, dtype


def kind_of_labels(labels: np.ndarray) -> str | None:
    """What they can be compared with: numbers, words, or bytes; nothing if they are no labels."""
    if labels.dtype.kind == "U":  # numpy keeps any number as a character, and Python stumbles over it later
        numbers = np.frombuffer(labels.tobytes(), np.dtype("u4").newbyteorder(labels.dtype.byteorder))
        return "words" if numbers.max(initial=0) <= sys.maxunicode else None
    return (dict.fromkeys("buif", "numbers") | {"S": "bytes"}).get(labels.dtype.kind)


def read_rows(files: Sequence[ArrayFile], positions: np.ndarray, out: np.ndarray) -> None:
    """The rows at these positions, counted through all files in order, into `out`. (b,), (b, …)"""
    if not len(positions):
        return
    lengths, row, target = np.array([file.shape[0] for file in files]), files[0].row, out.data.cast("B")
    ends = lengths.cumsum()
    owners = np.searchsorted(ends, positions, side="right")
    broken = (np.diff(positions) != 1) | (np.diff(owners) != 0)
    firsts = np.flatnonzero(np.concatenate([[True], broken]))  # of rows that follow one another
    stops = np.append(firsts[1:], len(positions))
    starts = np.array([file.start for file in files]) - (ends - lengths) * row  # of row 0, if the file began with that
    runs = np.stack([owners[firsts], starts[owners[firsts]] + positions[firsts] * row, firsts * row, stops * row], axis=1)
    runs = runs[positions[firsts].argsort(kind="stable")]
    parts = np.split(runs, np.flatnonzero(np.diff(runs[:, 0])) + 1)  # file by file
    for some in (parts[first : first + OPEN] for first in range(0, len(parts), OPEN)):
        _read_runs([(files[part[0, 0]].path, part[:, 1:].tolist()) for part in some], target)


def _read_runs(parts: Sequence[tuple[Path, list[list[int]]]], target: memoryview) -> None:
    """Of each file some bytes: from where in the file, and from where to where in memory."""
    with ExitStack() as stack:
        opened = []
        for path, runs in parts:
            with _told(path):
                opened.append(stack.enter_context(path.open("rb", buffering=0)))
            if hasattr(os, "posix_fadvise"):  # a disk answers many questions almost as fast as one
                with suppress(OSError):
                    for where, start, stop in runs:
                        os.posix_fadvise(opened[-1].fileno(), where, stop - start, os.POSIX_FADV_WILLNEED)
        for file, (path, runs) in zip(opened, parts, strict=True):
            with _told(path):
                for where, start, stop in runs:
                    _read_at(file, where, target[start:stop])


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except EOFError:
        raise FaustnetError(f"{path} has become shorter while it was used: copy it anew.") from None
    except OSError as error:
        raise FaustnetError(f"{path} cannot be read any more ({error.strerror}): bring it back.") from None


def _read_at(file: io.FileIO, where: int, target: memoryview) -> None:
    """As many bytes from there on as there is room for."""
    while target:
        if hasattr(os, "preadv"):
            got = os.preadv(file.fileno(), [target], where)
        else:
            file.seek(where)
            got = file.readinto(target)
        if not got:
            raise EOFError
        where, target = where + got, target[got:]


def as_images(array: np.ndarray) -> np.ndarray:
    """A table (n, columns), or images (n, h, w), (n, h, w, c) or (n, c, h, w), seen as (n, c, h, w)."""
    if array.ndim == 2:
        return array[:, :, None, None]
    if array.ndim == 3:
        return array[:, None]
    if array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        return array.transpose(0, 3, 1, 2)
    return array
