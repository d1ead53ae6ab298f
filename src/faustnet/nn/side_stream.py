"""A second CUDA stream, for work that need not wait for the work of the current one."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor


class SideStream:
    """Work beside the current stream, with a lower priority by default. On devices other than GPUs, everything runs in
    order.

    Tensors of another stream that work in the side stream uses must be kept until `join`; `keep` does that.
    """

    def __init__(self, device: torch.device, priority: int = 0):
        self.stream = torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None
        self.kept: list[Tensor] = []
        self.working = False  # since the last `join`

    def go_on(self) -> AbstractContextManager[object]:
        """Run the work of a block in the side stream, after its own work so far."""
        self.working = True
        return torch.cuda.stream(self.stream)

    def fork(self) -> AbstractContextManager[object]:
        """Run the work of a block in the side stream. It starts after all work of the current stream so far."""
        self.follow()
        return self.go_on()

    def follow(self) -> None:
        """Let later work of the side stream start after all work of the current stream so far."""
        self.working = True
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def keep(self, *tensors: Tensor) -> None:
        """Keep tensors in memory until `join`."""
        self.kept += tensors

    def wait(self) -> None:
        """Let later work of the current stream wait for the work of the side stream so far."""
        if self.stream is not None and self.working:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def join(self) -> None:
        """Let later work of the current stream wait for the side stream, and free what was kept."""
        self.wait()
        self.working = False
        self.kept.clear()
