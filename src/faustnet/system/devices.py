"""Devices that tensors are computed on, and their memory."""

import os
from functools import cache
from importlib.util import find_spec
from shutil import which

import psutil
import torch

from faustnet.errors import OUT_OF_MEMORY, FaustnetError, require

DEVICES = ("auto", "cpu", "cuda", "mps")
SPELLINGS = {  # of devices in other programs, without a number such as that of cuda:0
    "gpu": "cuda, or mps on a Mac",
    "nvidia": "cuda",
    "rocm": "cuda",
    "cuda": "cuda, with CUDA_VISIBLE_DEVICES to choose a GPU",
    "metal": "mps",
    "mps": "mps",
}


def choose_device(name: str) -> torch.device:
    """Return a device by its name; `auto` prefers a GPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if name not in available:
        raise FaustnetError(unknown_device(name))
    if not available[name]:
        raise FaustnetError(f"PyTorch finds no {name} device on this machine: choose the device auto or cpu.")
    return torch.device(name)


def unknown_device(name: str) -> str:
    """Return the message about a name that is not one of `DEVICES`."""
    meant = SPELLINGS.get(name.partition(":")[0].lower(), "")
    hint = f": did you mean {meant}?" if meant else "."
    return f"device must be {' or '.join(DEVICES)}, got {name!r}{hint}"


def free_memory(device: torch.device) -> int:
    """Return the free memory of a device in bytes. Ranks that torchrun has started on one machine share its main memory."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return psutil.virtual_memory().available // (max(1, int(ranks)) if ranks.isdecimal() else 1)


@cache
def has_triton(device: torch.device) -> bool:
    """Return whether Triton kernels run on a device. Triton comes with PyTorch for GPUs on Linux, and needs a C compiler."""
    return device.type == "cuda" and find_spec("triton") is not None and any(map(which, ("cc", "gcc", "clang")))


def check_memory(numbers: int) -> None:
    """Raise an error if this number of float32 values exceeds the memory of the machine. The operating system may
    grant any amount, and kill the process when it uses it."""
    require(4 * numbers <= psutil.virtual_memory().total, OUT_OF_MEMORY)
