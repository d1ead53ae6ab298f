"""Data sets in .npz files with the arrays x_train, y_train, x_test and y_test."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from faustnet.data.images import DataSet, Images
from faustnet.data.npy_file import BadLabels, channels_first, different_labels, label_kind, read_header
from faustnet.errors import FaustnetError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # used by numpy; zipfile decompresses the others without a limit
EXPANSION = 100  # an .npz file may expand to this multiple of its size,
SMALLEST_LIMIT = 128 << 20  # and to at least this number of bytes


def load_npz(path: Path) -> DataSet:
    """Read images (n, h, w), (n, h, w, c) or (n, c, h, w), or tables (n, columns), and their labels (n,)."""
    x_train, y_train, x_test, y_test = read_arrays(path, ARRAYS)
    names = _class_names(path, y_train, y_test)
    parts = []
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if y.ndim != 1 or x.ndim < 1 or len(x) != len(y) or not len(y):
            raise FaustnetError(
                f"x_{part} and y_{part} in {path} must have one label for each image, got shapes {x.shape} and {y.shape}."
            )
        parts.append(Images(_pixels(x, f"x_{part} in {path}"), torch.from_numpy(np.searchsorted(names, y))))
    train, test = parts
    if train.shape != test.shape:
        raise FaustnetError(
            f"x_train and x_test in {path} must have images of one shape, got {train.shape} and {test.shape}."
        )
    return DataSet(path.stem, tuple(str(name) for name in names), train, test)


def _class_names(path: Path, y_train: np.ndarray, y_test: np.ndarray) -> np.ndarray:
    """Check the labels, and return the different ones in order."""
    if label_kind(y_train) is None or label_kind(y_train) != label_kind(y_test):
        raise FaustnetError(
            f"y_train and y_test in {path} must both be numbers or both be strings, got {y_train.dtype} and {y_test.dtype}."
        )
    for part, y in (("train", y_train), ("test", y_test)):
        if y.dtype.kind == "f" and len(broken := y[y != np.floor(y)]):  # NaN differs from itself
            raise BadLabels(f"y_{part} in {path} must be integers or strings, got {broken[0]}.")
    return different_labels(path, y_train, y_test)


def read_arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Read the arrays with these names, all of which must be in the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [name for name in names if f"{name}.npy" not in archive.NameToInfo]
            if not missing:
                members = [archive.getinfo(f"{name}.npy") for name in names]
                size, limit = sum(one.file_size for one in members), max(SMALLEST_LIMIT, EXPANSION * path.stat().st_size)
                if size > limit:
                    raise ValueError(f"it expands to {size >> 20:,} MiB, more than the limit of {limit >> 20:,} MiB")
                return [_read_array(path, archive, member) for member in members]
    except FaustnetError:
        raise
    except Exception as error:  # a damaged archive can raise any exception
        raise FaustnetError(f"{path} is not a readable .npz file ({error}): write it with numpy.savez.") from None
    raise FaustnetError(f"{path} must contain the arrays {', '.join(names)}, but has no {missing[0]}: add it.")


def _read_array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array after checking that its header and its size agree."""
    if member.compress_type not in COMPRESSION:
        raise ValueError(f"{member.filename} is compressed by a method that numpy does not use")
    with archive.open(member) as file:
        shape, _, dtype = read_header(file)
        size = member.file_size - file.tell()
    if dtype.hasobject:
        name = member.filename.removesuffix(".npy")
        kinds, converted = ("numbers", "float") if name.startswith("x") else ("numbers or strings", "str")
        raise FaustnetError(
            f"{name} in {path} must contain {kinds}, got the type {dtype}, which is never unpickled: save "
            f"{name}.astype({converted})."
        )
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"the header of {member.filename} says shape {shape} and type {dtype}, but it has {size:,} bytes")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _pixels(array: np.ndarray, name: str) -> torch.Tensor:
    """Convert an array to (n, channels, height, width): integers from 0 to 255 to bytes, everything else to float32."""
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3, 4) or not array.size:
        raise FaustnetError(
            f"{name} must be images or rows of numbers, in 2 to 4 dimensions, got shape {array.shape}, type {array.dtype}."
        )
    array = channels_first(array)
    is_bytes = array.dtype.kind in "bui" and array.min() >= 0 and array.max() <= 255
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused
        array = np.ascontiguousarray(array, np.uint8 if is_bytes else np.float32)
    if not np.isfinite(array).all():
        raise FaustnetError(f"{name} contains NaN, infinity or values beyond the range of float32: replace those values.")
    return torch.from_numpy(array)
