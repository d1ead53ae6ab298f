"""Safetensors files with a header of JSON and a checksum: model files and checkpoints."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from faustnet.errors import FaustnetError
from faustnet.methods.state_file import storable

ABOUT, CHECKSUM = "faustnet", "checksum"  # the only entry of the metadata, whose value is JSON; a key in that JSON
LARGEST_HEADER = 16 << 20  # bytes of the safetensors header, which describes each tensor

Tensors = dict[str, Tensor]


def pack(tensors: Tensors, about: dict[str, Any]) -> bytes:
    """Return the contents of a safetensors file, with `about` and a checksum of everything in its header."""
    tensors = storable(tensors)
    about = about | {CHECKSUM: _checksum(tensors, about)}
    return save(tensors, {ABOUT: json.dumps(about)})  # one entry, because the order of several is random


def unpack(content: bytes) -> tuple[dict[str, str], Tensors]:
    """Return the metadata and the tensors of the contents of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__", {}), load(content)


def is_intact(tensors: Tensors, about: dict[str, Any]) -> bool:
    """Return whether the checksum is right. The first files of version 0.1 have none, and pass."""
    return CHECKSUM not in about or about[CHECKSUM] == _checksum(tensors, about)


def _checksum(tensors: Tensors, about: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps({key: value for key, value in about.items() if key != CHECKSUM}).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, str], Tensors]:
    """Return the metadata and the tensors of a safetensors file."""
    try:
        if not path.is_file() and path.exists():
            raise ValueError("it is not a file")
        with path.open("rb") as start:  # a long header would need far more memory than its tensors
            if int.from_bytes(start.read(8), "little") > LARGEST_HEADER:
                raise ValueError(f"its header has more than {LARGEST_HEADER >> 20} MiB")
        with safe_open(path, "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FaustnetError(f"There is no file {path}: check the name, or train first.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise FaustnetError(
            f"{path} is damaged or not a safetensors file ({error}): copy it again, or train again."
        ) from None
