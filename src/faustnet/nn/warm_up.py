"""Starting a GPU ahead of its use."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import torch
from torch.nn import functional

from faustnet.system.devices import has_triton


@contextmanager
def starting(device: torch.device) -> Iterator[None]:
    """Start a GPU and its libraries in a thread meanwhile, which takes more than a second the first time in a process."""
    thread = Thread(target=_start, args=(device,)) if device.type == "cuda" and not torch.cuda.is_initialized() else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        if thread is not None:
            thread.join()


def _start(device: torch.device) -> None:
    """Use CUDA, cuDNN, cuBLAS and Triton once."""
    with suppress(Exception):  # what is wrong with the device is said when it is used
        maps = torch.zeros(2, 8, 8, 8, device=device, dtype=torch.bfloat16)
        rows = functional.conv2d(maps, maps[:, :, :3, :3]).flatten(1)
        torch.mm(rows, rows.mT)
        if has_triton(device):
            from faustnet.nn import kernels

            kernels.block_maxima(maps, (4, 4))
