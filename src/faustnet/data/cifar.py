"""CIFAR-10 batches. They are pickles, which can run arbitrary code, so only the few operations that image data needs are
allowed, and the functions of numpy that a batch refers to are recorded instead of called."""

import io
import pickle
import pickletools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from faustnet.errors import FaustnetError
from faustnet.system.files import read_limited

IMAGES, VALUES, CLASSES = 10_000, 3 * 32 * 32, 10
LARGEST = 64 << 20  # bytes; an official batch has 31 million
STEPS = 200_000  # operations in a pickle; an official batch has 30,000
OPERATIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "BINSTRING",
    "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "APPEND",
    "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "SETITEM", "SETITEMS", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
}  # fmt: skip
FUNCTIONS = {
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "_codecs.encode",  # Python 3 writes bytes this way into a pickle of protocol 2
}


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a batch file. → images (10000, 3072), bytes in the order red, green, blue; labels (10000,)"""
    try:
        pickled = read_limited(path, LARGEST)
        _check_operations(pickled)
        content = _Unpickler(io.BytesIO(pickled), encoding="latin1").load()
        return _images(content["data"]), _labels(content["labels"])
    except Exception as error:  # a damaged pickle can raise any exception
        raise FaustnetError(f"{path} is not a CIFAR-10 batch ({error}): delete it to download CIFAR-10 again.") from None


def _check_operations(pickled: bytes) -> None:
    for number, (operation, _, _) in enumerate(pickletools.genops(pickled)):
        if number == STEPS:
            raise ValueError(f"it has more than {STEPS:,} operations")
        if operation.name not in OPERATIONS:
            raise ValueError(f"it contains the operation {operation.name}, which image data does not need")


class _Call:
    """Recorded call: of a data type, of an array that gets its `state` later, or of the encoding of bytes."""

    def __init__(self, name: str, *arguments: Any):
        self.name, self.arguments = name, arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Table(dict[str, Any]):
    """Dictionary with strings as keys. Hashing deeply nested tuples, as in a malicious file, could take forever."""

    __slots__ = ()

    def __setitem__(self, key: str, value: Any) -> None:
        if type(key) is not str:
            raise ValueError("it has a key that is not a string")
        super().__setitem__(key, value)


class _Unpickler(pickle._Unpickler):  # in Python: the one in C allocates memory for any index of its memo
    dispatch = pickle._Unpickler.dispatch | {pickle.EMPTY_DICT[0]: lambda self: self.append(_Table())}

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in FUNCTIONS:
            raise ValueError(f"it refers to {module}.{name}, which image data does not need")
        return partial(_Call, name)


def _images(array: _Call) -> np.ndarray:
    """Return the images, (10000, 3072), from the state of an array: (version, shape, dtype, column order, raw bytes)."""
    _, shape, dtype, column_order, raw = array.state
    found = (array.name, dtype.name, dtype.arguments[0], shape, column_order)
    if found != ("_reconstruct", "dtype", "u1", (IMAGES, VALUES), False):
        raise ValueError(f"its images must be {IMAGES}×{VALUES} bytes")
    text = raw.arguments[0] if isinstance(raw, _Call) else raw
    return np.frombuffer(text.encode("latin1") if isinstance(text, str) else text, np.uint8).reshape(IMAGES, VALUES)


def _labels(labels: list[int]) -> np.ndarray:
    allowed = set(range(CLASSES))
    if type(labels) is not list or len(labels) != IMAGES or not all(type(n) is int and n in allowed for n in labels):
        raise ValueError(f"its labels must be {IMAGES} integers from 0 to {CLASSES - 1}")
    return np.array(labels)
