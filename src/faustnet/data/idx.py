"""IDX files, the format of MNIST and Fashion-MNIST: a header of big-endian numbers, then bytes."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from faustnet.errors import FaustnetError

UINT8 = 0x08  # the header's code for unsigned bytes


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read the array in an IDX file, compressed or not, which must have this shape. No more than that is read."""
    try:
        if not path.is_file():  # opening a pipe would block
            raise ValueError("it is not a regular file")
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as file:
            return _read(file, shape)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise FaustnetError(
            f"{path} is damaged or not the file of this data set ({error}): delete it to download it again."
        ) from None


def _read(file: BinaryIO | gzip.GzipFile, shape: tuple[int, ...]) -> np.ndarray:
    header = bytes([0, 0, UINT8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    if file.read(len(header)) != header:
        raise ValueError(f"its header does not say {'×'.join(map(str, shape))} bytes")
    size = math.prod(shape)
    content = file.read(size + 1)
    if len(content) != size:
        raise ValueError(f"it is {'shorter' if len(content) < size else 'longer'} than its header says")
    return np.frombuffer(content, np.uint8).reshape(shape)
