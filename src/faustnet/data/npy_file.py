"""Arrays in .npy files that are read row by row, and the layouts of images and labels in arrays."""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from faustnet.errors import FaustnetError, require

OPEN_FILES = 64  # at once, at most


class BadLabels(FaustnetError):
    """Labels that are no classes, such as -1 beside a list of class names."""


@dataclass(frozen=True)
class NpyFile:
    """A .npy file whose rows are contiguous."""

    path: Path
    start: int  # offset of the first row in bytes
    shape: tuple[int, ...]  # (rows, …)
    dtype: np.dtype

    @classmethod
    def open(cls, path: Path) -> "NpyFile":
        """Read the header of a file and check that the file is as long as it says. Python objects, which would have to be
        unpickled, are refused."""
        try:
            if not path.is_file():  # opening a pipe would block
                raise ValueError("it is not a regular file")
            with path.open("rb") as file:
                shape, fortran, dtype = read_header(file)
                start = file.tell()
        except (OSError, ValueError) as error:
            raise FaustnetError(f"{path} is not a readable array ({error}): write it with numpy.save.") from None
        require(not dtype.hasobject, f"{path} contains Python objects, which are never unpickled: save numbers or strings.")
        require(not fortran or len(shape) <= 1, f"{path} is in Fortran order: save numpy.ascontiguousarray(array) instead.")
        missing = start + math.prod(shape) * dtype.itemsize - path.stat().st_size
        require(missing <= 0, f"{path} is incomplete ({missing:,} bytes are missing): write or copy it again.")
        return cls(path, start, shape, dtype)

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape of the array in a .npy file, whether it is in Fortran order, and its type."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
    except Exception as error:  # numpy parses the header as Python, which can raise any exception
        raise ValueError(str(error) or "its header is invalid") from None
    if not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"its header says shape {shape} and type {dtype}")
    return shape, fortran, dtype


def label_kind(labels: np.ndarray) -> str | None:
    """Return "numbers", "strings" or "bytes"; None if an array cannot contain labels."""
    if labels.dtype.kind == "U":  # numpy allows numbers that are not Unicode characters; Python raises later
        numbers = np.frombuffer(labels.tobytes(), np.dtype("u4").newbyteorder(labels.dtype.byteorder))
        return "strings" if numbers.max(initial=0) <= sys.maxunicode else None
    return (dict.fromkeys("buif", "numbers") | {"S": "bytes"}).get(labels.dtype.kind)


def different_labels(source: Path, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the different training labels in order. There must be at least two, and no others among the test labels."""
    names = np.unique(train)
    require(len(names) > 1, f"{source} must have training images of at least two classes, got {len(names)}.")
    if len(unknown := np.setdiff1d(test, names)):
        raise BadLabels(
            f"{source} has test images but no training images of the class {unknown[0]}: add training images of it."
        )
    return names


def read_rows(files: Sequence[NpyFile], positions: np.ndarray, out: np.ndarray) -> None:
    """Read the rows at these positions into `out`; rows are numbered through all files in order. (b,), (b, …)"""
    if not len(positions):
        return
    lengths, row, target = np.array([file.shape[0] for file in files]), files[0].row_bytes, out.data.cast("B")
    ends = lengths.cumsum()
    owners = np.searchsorted(ends, positions, side="right")
    broken = (np.diff(positions) != 1) | (np.diff(owners) != 0)
    firsts = np.flatnonzero(np.concatenate([[True], broken]))  # of runs of consecutive rows
    stops = np.append(firsts[1:], len(positions))
    starts = np.array([file.start for file in files]) - (ends - lengths) * row  # offset that row 0 would have in each file
    runs = np.stack([owners[firsts], starts[owners[firsts]] + positions[firsts] * row, firsts * row, stops * row], axis=1)
    runs = runs[positions[firsts].argsort(kind="stable")]
    parts = np.split(runs, np.flatnonzero(np.diff(runs[:, 0])) + 1)  # one for each file
    for some in (parts[first : first + OPEN_FILES] for first in range(0, len(parts), OPEN_FILES)):
        _read_runs([(files[part[0, 0]].path, part[:, 1:].tolist()) for part in some], target)


def _read_runs(parts: Sequence[tuple[Path, list[list[int]]]], target: memoryview) -> None:
    """Read byte ranges of files: for each, the offset in the file, and the start and the stop in `target`."""
    with ExitStack() as stack:
        opened = []
        for path, runs in parts:
            with _explain_errors(path):
                opened.append(stack.enter_context(path.open("rb", buffering=0)))
            if hasattr(os, "posix_fadvise"):  # a disk serves many requests almost as fast as one
                with suppress(OSError):
                    for offset, start, stop in runs:
                        os.posix_fadvise(opened[-1].fileno(), offset, stop - start, os.POSIX_FADV_WILLNEED)
        for file, (path, runs) in zip(opened, parts, strict=True):
            with _explain_errors(path):
                for offset, start, stop in runs:
                    file.seek(offset)
                    while start < stop:
                        start += (got := file.readinto(target[start:stop]))
                        if not got:
                            raise EOFError


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except EOFError:
        raise FaustnetError(f"{path} was truncated while it was being read: copy it again.") from None
    except OSError as error:
        raise FaustnetError(f"{path} can no longer be read ({error.strerror}): restore it.") from None


def channels_first(array: np.ndarray) -> np.ndarray:
    """View a table (n, columns), or images (n, h, w), (n, h, w, c) or (n, c, h, w), as (n, c, h, w)."""
    if array.ndim == 2:
        return array[:, :, None, None]
    if array.ndim == 3:
        return array[:, None]
    if array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        return array.transpose(0, 3, 1, 2)
    return array
