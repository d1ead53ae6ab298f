"""IDX files, as MNIST and its relatives come in: a header of big-endian numbers, then bytes."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from faustnet.errors import FaustnetError

BYTES = 0x08  # the header's code for unsigned bytes


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The array in a file, plain or gzipped, which must have just this shape. No more than that is ever read."""
    try:
        if not path.is_file():  # to open a pipe would be to wait for it
            raise ValueError("it is not a file")
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            return _read(file, shape)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        again = "delete it, and it is downloaded again"
        raise FaustnetError(f"{path} is not the file it should be ({error}): {again}.") from None


def _read(file: BinaryIO | gzip.GzipFile, shape: tuple[int, ...]) -> np.ndarray:
    header = file.read(4 + 4 * len(shape))
    if len(header) < 4 + 4 * len(shape) or header[:2] != b"\0\0":
        raise ValueError("it does not begin as an IDX file does")
    kind, dimensions = header[2], header[3]
    found = struct.unpack(f">{len(shape)}I", header[4:])
    if kind != BYTES or dimensions != len(shape) or found != shape:
        raise ValueError(f"it should hold {'×'.join(map(str, shape))} bytes and says otherwise")
    size = int(np.prod(shape))
    content = file.read(size + 1)
    if len(content) != size:
        raise ValueError(f"it ends {'early' if len(content) < size else 'late'}")
    return np.frombuffer(content, np.uint8).reshape(shape)
