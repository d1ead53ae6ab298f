"""CIFAR-10 batches. They are pickles, which can run arbitrary code, so Python's unpickler is not used: a small interpreter
supports the few operations that image data needs, and creates only plain containers."""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faustnet.errors import FaustnetError

IMAGES, VALUES, CLASSES = 10_000, 3 * 32 * 32, 10
LARGEST = 64 << 20  # bytes; an official batch has 31 million
STEPS = 200_000  # operations in a pickle; an official batch has 30,000


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a batch file. → images (10000, 3072), bytes in the order red, green, blue; labels (10000,)"""
    try:
        if not path.is_file():
            raise ValueError("it is not a regular file")
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        content = _Interpreter().run(path.read_bytes())
        return _images(content["data"]), _labels(content["labels"])
    except Exception as error:  # a damaged pickle can raise any exception
        raise FaustnetError(f"{path} is not a CIFAR-10 batch ({error}): delete it to download CIFAR-10 again.") from None


@dataclass
class _Name:
    """Function or class that the pickle refers to, by its full name."""

    name: str


@dataclass
class _Call:
    """Call of one of those: a data type, an empty array that gets its `state` later, or bytes."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


DTYPE, ARRAY, ENCODE = "numpy.dtype", "multiarray._reconstruct", "_codecs.encode"
_ALLOWED = {
    "numpy.dtype": DTYPE,
    "numpy.ndarray": "numpy.ndarray",
    "numpy.core.multiarray._reconstruct": ARRAY,
    "numpy._core.multiarray._reconstruct": ARRAY,
    "_codecs.encode": ENCODE,  # Python 3 writes bytes this way into a pickle of protocol 2
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


class _Interpreter:
    """Interpreter of a pickle. It never iterates over, compares or hashes the objects that it creates, except for keys,
    which must be strings: for containers that contain each other twice, forty levels deep, that would not end."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        for number, (operation, argument, _) in enumerate(pickletools.genops(program)):
            if number == STEPS:
                raise ValueError(f"it has more than {STEPS:,} operations")
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
            stack.append(tuple(self._pop(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._pop_to_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._pop(1) if name == "APPEND" else self._pop_to_mark()
            _expect(list, stack[-1]).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._pop(2) if name == "SETITEM" else self._pop_to_mark()
            for key, value in zip(items[::2], items[1::2], strict=True):
                _expect(dict, stack[-1])[_expect(str, key)] = value
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = argument.split(" ", 1) if name == "GLOBAL" else [_expect(str, part) for part in self._pop(2)]
            stack.append(_allowed(".".join(parts)))
        elif name == "REDUCE":
            wanted, arguments = self._pop(2)
            stack.append(_Call(_expect(_Name, wanted).name, _expect(tuple, arguments)))
        elif name == "BUILD":
            (state,) = self._pop(1)
            _expect(_Call, stack[-1]).state = state
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it contains the operation {name}, which image data does not need")

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("its stack is empty")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _pop_to_mark(self) -> list[Any]:
        marks = (place for place in range(len(self.stack) - 1, -1, -1) if self.stack[place] is _MARK)
        if (place := next(marks, None)) is None:
            raise ValueError("a mark is missing")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items


def _expect(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError("it is inconsistent")
    return value


def _allowed(name: str) -> _Name:
    if name not in _ALLOWED:
        raise ValueError(f"it refers to {name}, which image data does not need")
    return _Name(_ALLOWED[name])


def _images(array: _Call) -> np.ndarray:
    """Return the images, (10000, 3072), from the state of an array: (version, shape, dtype, column order, raw bytes)."""
    _, shape, dtype, column_order, raw = _expect(tuple, _expect(_Call, array).state)
    code = _expect(_Call, dtype).arguments[0]
    good = array.name == ARRAY and dtype.name == DTYPE and column_order is False
    rows, columns = _expect(tuple, shape)
    if not good or (_expect(int, rows), _expect(int, columns)) != (IMAGES, VALUES) or _expect(str, code) != "u1":
        raise ValueError(f"its images must be {IMAGES}×{VALUES} bytes")
    if type(raw) is _Call and raw.name == ENCODE:
        raw = _expect(str, raw.arguments[0])
    raw = raw.encode("latin1") if type(raw) is str else _expect(bytes, raw)
    return np.frombuffer(raw, np.uint8).reshape(IMAGES, VALUES)


def _labels(labels: list[int]) -> np.ndarray:
    allowed = set(range(CLASSES))
    if type(labels) is not list or len(labels) != IMAGES or not all(type(n) is int and n in allowed for n in labels):
        raise ValueError(f"its labels must be {IMAGES} integers from 0 to {CLASSES - 1}")
    return np.array(labels)
