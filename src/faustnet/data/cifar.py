"""CIFAR-10's batches. They are pickles, so they are read by an unpickler that can build nothing but what they hold."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from faustnet.errors import FaustnetError

IMAGES, VALUES, CLASSES = 10_000, 3 * 32 * 32, 10
LARGEST = 64 << 20  # bytes; an official batch has 31 million


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One batch file: images (10000, 3072) of bytes, red, green, blue; labels (10000,)."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError("it is far too large")
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        return _images(content["data"]), _labels(content["labels"])
    except pickle.UnpicklingError as error:
        raise FaustnetError(f"{path} was not opened ({error}): delete it, and CIFAR-10 is fetched again.") from None
    except Exception as error:  # a damaged pickle can fail in any way at all
        again = "delete it, and CIFAR-10 is fetched again"
        raise FaustnetError(f"{path} is not a CIFAR-10 batch ({error}): {again}.") from None


class _DType:
    """Stands for numpy.dtype and remembers what was asked for."""

    def __init__(self, code: str, *_: Any):
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: of no use for bytes."""


class _Array:
    """Stands for numpy.ndarray and remembers its state: (version, shape, dtype, column order, raw bytes)."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into a pickle of protocol 2."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it wants text encoded as {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it wants to use {module}.{name}, which image data has no need of") from None


def _images(array: _Array) -> np.ndarray:
    _, shape, dtype, column_order, raw = array.state
    if tuple(shape) != (IMAGES, VALUES) or dtype.code != "u1" or column_order:
        raise ValueError(f"its images should be {IMAGES}×{VALUES} bytes")
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(raw, np.uint8).reshape(IMAGES, VALUES)


def _labels(labels: list[int]) -> np.ndarray:
    allowed = set(range(CLASSES))
    if type(labels) is not list or len(labels) != IMAGES or not all(type(n) is int and n in allowed for n in labels):
        raise ValueError(f"its labels should be {IMAGES} numbers from 0 to {CLASSES - 1}")
    return np.array(labels)
