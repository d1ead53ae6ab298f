"""Which device to work on."""

import os
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import torch

from faustnet.errors import OUT_OF_MEMORY, FaustnetError, unknown

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str) -> torch.device:
    """The device by name; `auto` takes a GPU where there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if name not in available:
        raise unknown("device", name, DEVICES)
    if not available[name]:
        raise FaustnetError(f"This machine has no {name} device that PyTorch can use: leave --device at auto.")
    return torch.device(name)


def free_memory(device: torch.device) -> int:
    """Bytes that could still be used there; of the machine's memory a share, if torchrun has started several ranks on it."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // _ranks_here()
    return (_memory() or 0) // _ranks_here()


def _ranks_here() -> int:
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(said)) if said.isdecimal() else 1


def _memory() -> int | None:
    """Bytes that the machine has, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@cache
def has_triton(device: torch.device) -> bool:
    """Whether kernels of our own run there. Triton comes with PyTorch for GPUs on Linux, and needs a C compiler."""
    return device.type == "cuda" and find_spec("triton") is not None and any(map(which, ("cc", "gcc", "clang")))


def check_memory(numbers: int) -> None:
    """Refuse what cannot fit: a system may promise any memory, and end the process when that is used."""
    memory = _memory()
    if memory and 4 * numbers > memory:
        raise FaustnetError(OUT_OF_MEMORY)
