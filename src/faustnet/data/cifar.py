"""CIFAR-10's batches. They are pickles, which are programs that may do anything at all, so Python's own reader is not used:
a small machine knows the few steps that image data takes, and builds nothing but what it holds."""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faustnet.errors import FaustnetError

IMAGES, VALUES, CLASSES = 10_000, 3 * 32 * 32, 10
LARGEST = 64 << 20  # bytes; an official batch has 31 million
STEPS = 200_000  # of a pickle's program; an official batch has 30,000


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One batch file: images (10000, 3072) of bytes, red, green, blue; labels (10000,)."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        if path.stat().st_size > LARGEST:
            raise ValueError("it is far too large")
        content = _Machine().run(path.read_bytes())
        return _images(content["data"]), _labels(content["labels"])
    except Exception as error:  # a damaged pickle can fail in any way at all
        again = "delete it, and CIFAR-10 is fetched again"
        raise FaustnetError(f"{path} is not a CIFAR-10 batch ({error}): {again}.") from None


@dataclass
class _Name:
    """Something that the pickle wants to use, by its full name."""

    name: str


@dataclass
class _Made:
    """What one of those made of `arguments`: a data type, an empty array that is given its `state` later, or bytes."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


DTYPE, ARRAY, ENCODE = "numpy.dtype", "multiarray._reconstruct", "_codecs.encode"
_ALLOWED = {
    "numpy.dtype": DTYPE,
    "numpy.ndarray": "numpy.ndarray",
    "numpy.core.multiarray._reconstruct": ARRAY,
    "numpy._core.multiarray._reconstruct": ARRAY,
    "_codecs.encode": ENCODE,  # how Python 3 writes bytes into a pickle of protocol 2
}
_MARK = object()
_PUSHED = {
    "BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """Runs a pickle. What it builds is never looked into, compared or hashed here, except that keys must be words: of
    things that hold each other twice, forty deep, that would take for ever."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        for number, (operation, argument, _) in enumerate(pickletools.genops(program)):
            if number == STEPS:
                raise ValueError(f"it takes more than {STEPS:,} steps")
            if operation.name == "STOP":
                (result,) = self.stack
                return result
            self._step(operation.name, argument)

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _PUSHED:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memory[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memory[len(self.memory)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memory[argument])
        elif name in _TUPLES:
            stack.append(tuple(self._popped(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._popped(1) if name == "APPEND" else self._since_mark()
            _only(list, stack[-1]).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._popped(2) if name == "SETITEM" else self._since_mark()
            for key, value in zip(items[::2], items[1::2], strict=True):
                _only(dict, stack[-1])[_only(str, key)] = value
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = argument.split(" ", 1) if name == "GLOBAL" else [_only(str, part) for part in self._popped(2)]
            stack.append(_allowed(".".join(parts)))
        elif name == "REDUCE":
            wanted, arguments = self._popped(2)
            stack.append(_Made(_only(_Name, wanted).name, _only(tuple, arguments)))
        elif name == "BUILD":
            (state,) = self._popped(1)
            _only(_Made, stack[-1]).state = state
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it holds the step {name}, which image data has no need of")

    def _popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes from an empty stack")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _since_mark(self) -> list[Any]:
        marks = (place for place in range(len(self.stack) - 1, -1, -1) if self.stack[place] is _MARK)
        if (place := next(marks, None)) is None:
            raise ValueError("it lacks a mark")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items


def _only(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError("it does not hold together")
    return value


def _allowed(name: str) -> _Name:
    if name not in _ALLOWED:
        raise ValueError(f"it wants to use {name}, which image data has no need of")
    return _Name(_ALLOWED[name])


def _images(array: _Made) -> np.ndarray:
    """(10000, 3072), from the state of an array: (version, shape, dtype, column order, raw bytes)."""
    _, shape, dtype, column_order, raw = _only(tuple, _only(_Made, array).state)
    code = _only(_Made, dtype).arguments[0]
    good = array.name == ARRAY and dtype.name == DTYPE and column_order is False
    rows, columns = _only(tuple, shape)
    if not good or (_only(int, rows), _only(int, columns)) != (IMAGES, VALUES) or _only(str, code) != "u1":
        raise ValueError(f"its images should be {IMAGES}×{VALUES} bytes")
    if type(raw) is _Made and raw.name == ENCODE:
        raw = _only(str, raw.arguments[0])
    raw = raw.encode("latin1") if type(raw) is str else _only(bytes, raw)
    return np.frombuffer(raw, np.uint8).reshape(IMAGES, VALUES)


def _labels(labels: list[int]) -> np.ndarray:
    allowed = set(range(CLASSES))
    if type(labels) is not list or len(labels) != IMAGES or not all(type(n) is int and n in allowed for n in labels):
        raise ValueError(f"its labels should be {IMAGES} numbers from 0 to {CLASSES - 1}")
    return np.array(labels)
