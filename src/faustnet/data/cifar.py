"""Files of CIFAR-10 and CIFAR-100. They are pickles, which can run arbitrary code, so only the few operations that image
data needs are allowed, and the functions of numpy that a file refers to are recorded instead of called."""

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import calcsize, unpack_from
from typing import Any

import numpy as np

from faustnet.errors import FaustnetError
from faustnet.system.files import read_limited

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


@dataclass(frozen=True)
class BatchFormat:
    """Contents of a batch file: images with labels, and the limits of its size."""

    dataset: str  # for error messages
    images: int
    label_key: str
    classes: int
    values: int = 3 * 32 * 32  # bytes of an image
    largest: int = 64 << 20  # bytes; an official batch of 10,000 images has 31 million
    operations: int = 200_000  # of the pickle; an official batch of CIFAR-10 has 30,000


CIFAR10 = BatchFormat("CIFAR-10", 10_000, "labels", 10)


def cifar100_format(images: int, labels: str) -> BatchFormat:
    """Return the format of a file of CIFAR-100, train or test, with "fine" labels (100 classes) or "coarse" ones (20)."""
    classes = {"fine": 100, "coarse": 20}[labels]
    limits = {"largest": 320 << 20, "operations": 1_000_000}  # the official file train has 155 million and 200,000
    return BatchFormat("CIFAR-100", images, f"{labels}_labels", classes, **limits)


def read_batch(path: Path, form: BatchFormat = CIFAR10) -> tuple[np.ndarray, np.ndarray]:
    """Read a batch file. → images (n, 3072), bytes in the order red, green, blue; labels (n,)"""
    try:
        content = _unpickle(path, form.largest, form.operations)
        return _images(content["data"], form), _labels(content[form.label_key], form)
    except Exception as error:  # a damaged pickle can raise any exception
        raise _damaged(path, f"a {form.dataset} batch", error, form.dataset) from None


def read_class_names(path: Path, labels: str) -> tuple[str, ...]:
    """Read the names of the "fine" or "coarse" classes from the file meta of CIFAR-100."""
    form = cifar100_format(0, labels)
    try:
        names = _unpickle(path, largest=1 << 16, operations=1_000)[f"{labels}_label_names"]
        if type(names) is not list or any(type(name) is not str or not name for name in names):
            raise ValueError("its class names must be a list of strings that are not empty")
        if len(names) != form.classes or len(set(names)) != form.classes:
            raise ValueError(f"its {labels} class names must be {form.classes} different strings")
        "".join(names).encode()  # fails if there is invalid Unicode
        return tuple(names)
    except Exception as error:  # a damaged pickle can raise any exception
        raise _damaged(path, "the file of CIFAR-100's class names", error, form.dataset) from None


def _damaged(path: Path, what: str, error: Exception, dataset: str) -> FaustnetError:
    return FaustnetError(f"{path} is not {what} ({error}): delete it to download {dataset} again.")


def _unpickle(path: Path, largest: int, operations: int) -> Any:
    return _Unpickler(read_limited(path, largest), operations).load()


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


class _Operations(dict[int, Any]):
    """The allowed operations of a pickle, by their codes. At most `limit` of them are looked up."""

    def __init__(self, limit: int):
        super().__init__(ALLOWED)
        self.limit = self.left = limit

    def __getitem__(self, code: int) -> Any:
        self.spend(1)
        return super().__getitem__(code)

    def spend(self, count: int) -> None:
        """Count operations."""
        self.left -= count
        if self.left < 0:
            raise ValueError(f"it has more than {self.limit:,} operations")

    def __missing__(self, code: int) -> Any:
        name = NAMES.get(code, f"0x{code:02x}")
        raise ValueError(f"it contains the operation {name}, which image data does not need")


class _Unpickler(pickle._Unpickler):  # in Python: the one in C allocates memory for any index of its memo
    def __init__(self, pickled: bytes, operations: int):
        self.pickled, self.file = pickled, io.BytesIO(pickled)
        super().__init__(self.file, encoding="latin1")
        self.operations = vars(self)["dispatch"] = _Operations(operations)  # replaces that of the class

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in FUNCTIONS:
            raise ValueError(f"it refers to {module}.{name}, which image data does not need")
        return partial(_Call, name)


NAMES = {ord(operation.code): operation.name for operation in pickletools.opcodes}
ALLOWED: dict[int, Any] = {code: pickle._Unpickler.dispatch[code] for code, name in NAMES.items() if name in OPERATIONS}
ALLOWED[pickle.EMPTY_DICT[0]] = lambda unpickler: unpickler.append(_Table())


def _load_several(load_one: Callable[[_Unpickler], None], unpickler: _Unpickler) -> None:
    """Load the present operation and those after it, as far as they are strings, small integers and entries of the memo.

    Nearly all operations of a batch are, and one by one they would take most of the time of reading. Other cases, such as
    a frame or a string that is longer than the file, are left to `load_one`.
    """
    content, view, left = unpickler.pickled, memoryview(unpickler.pickled), unpickler.operations.left
    at, end, done = unpickler.file.tell() - 1, len(content), 0
    if unpickler._unframer.current_frame is not None:  # type: ignore[attr-defined]
        return load_one(unpickler)
    stack, memo = unpickler.stack, unpickler.memo  # type: ignore[attr-defined]
    while at + LONGEST <= end and done <= left:
        code = content[at]
        if code == BININT1:
            stack.append(content[at + 1])
            at += 2
        elif code == BINPUT:
            memo[content[at + 1]] = stack[-1]
            at += 2
        elif code == LONG_BINPUT:
            memo[unpack_from("<I", content, at + 1)[0]] = stack[-1]
            at += 5
        elif code in STRINGS:
            form, encoding, errors = STRINGS[code]
            start = at + 1 + calcsize(form)
            stop = start + unpack_from(form, content, at + 1)[0]
            if not start <= stop <= end:
                break
            stack.append(str(view[start:stop], encoding, errors))
            at = stop
        else:
            break
        done += 1
    if not done:
        return load_one(unpickler)
    unpickler.file.seek(at)
    unpickler.operations.spend(done - 1)  # the first one is counted already


BININT1, BINPUT, LONG_BINPUT = pickle.BININT1[0], pickle.BINPUT[0], pickle.LONG_BINPUT[0]
STRINGS = {  # format of the length, encoding, and what is done about errors
    pickle.BINUNICODE[0]: ("<I", "utf-8", "surrogatepass"),
    pickle.BINSTRING[0]: ("<i", "latin1", "strict"),
    pickle.SHORT_BINSTRING[0]: ("<B", "latin1", "strict"),
}
LONGEST = 5  # bytes of these operations, at most, without the characters of a string
for _code in (BININT1, BINPUT, LONG_BINPUT, *STRINGS):
    ALLOWED[_code] = partial(_load_several, ALLOWED[_code])


def _images(array: _Call, form: BatchFormat) -> np.ndarray:
    """Return the images, (n, 3072), from the state of an array: (version, shape, dtype, column order, raw bytes)."""
    _, shape, dtype, column_order, raw = array.state
    found, expected = (array.name, dtype.name, dtype.arguments[0], shape, column_order), (form.images, form.values)
    if found != ("_reconstruct", "dtype", "u1", expected, False):
        raise ValueError(f"its images must be {form.images}×{form.values} bytes")
    text = raw.arguments[0] if isinstance(raw, _Call) else raw
    return np.frombuffer(text.encode("latin1") if isinstance(text, str) else text, np.uint8).reshape(expected)


def _labels(labels: list[int], form: BatchFormat) -> np.ndarray:
    allowed = set(range(form.classes))
    if type(labels) is not list or len(labels) != form.images or not all(type(n) is int and n in allowed for n in labels):
        raise ValueError(f"its labels must be {form.images} integers from 0 to {form.classes - 1}")
    return np.array(labels)
