"""Memory of training residual networks by depth, each system in its own process.

`beside` is the peak without weights and optimiser state: gradients, activations and buffers. `activations` is the maximum
that autograd kept at a time. No CUDA graphs are used.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from faustnet.bench.memory import Kept, begin_peak, in_own_processes, peak, size, warm_up
from faustnet.bench.steps import Case, schedule_of
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.structure import Structure

DEPTHS = (4, 8, 16, 32)  # residual blocks, of three convolutions each
CHANNELS = (64, 128, 256)  # of a third of the blocks each, before which the maps are halved, except the first
SYSTEMS = {
    "backprop": ("backprop", "sequential"),
    "backprop, checkpointed": ("backprop", "sequential"),
    "sequential": ("faust-representative", "sequential"),
    "wavefront": ("faust-representative", "wavefront"),
}
STEPS = 3


class Checkpointed(nn.Module):
    """A block whose activations are computed again in the backward pass."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, rows: Structure) -> Structure:
        return checkpoint(self.block, rows, use_reentrant=False)


def residual(blocks: int, factor: int) -> NetworkSettings:
    """Return a residual network of this depth, with the channels divided by a factor."""
    thirds = [CHANNELS[3 * block // blocks] // factor for block in range(blocks)]
    pools = tuple(block for block in range(1, blocks) if thirds[block] != thirds[block - 1])
    return NetworkSettings(tuple(thirds), kind="residual", pools=pools, head=CHANNELS[-1] // factor, length="unit")


def measure_one(system: str, blocks: int, device: torch.device) -> dict[str, Any]:
    """Measure one system in this process, in MiB."""
    factor, precision = (1, "bfloat16") if device.type == "cuda" else (8, "float32")  # channels and images divided by it
    case = Case(batch=512 // factor, precision=precision)
    name, order = SYSTEMS[system]
    source, kept = case.source(device), Kept()
    warm_up(device)
    before = begin_peak(device)
    options = {} if name == "backprop" else {"scale": 5.0}
    schedule = schedule_of(name, order, case, source, residual(blocks, factor), options)
    if system == "backprop, checkpointed":
        for layer in schedule.method.network:
            layer.body = Checkpointed(layer.body)
    schedule.enter(0)
    schedule.graph.recorded = False
    schedule.begin(*case.plan(), 0)
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda saved: saved.tensor):
        for _ in range(STEPS):
            schedule.step()
    most = peak(device) - before
    weights = size(schedule.method.parameters())
    state = size(tensor for tensor in schedule.state().values() if tensor.dim())
    found = {"weights": weights, "activations": kept.most, "peak": most, "beside": most - weights - state}
    sizes = {part: round(taken / 2**20, 1) for part, taken in found.items()}
    return {"system": system, "blocks": blocks, "batch": case.batch, "channels": CHANNELS[0] // factor, **sizes}


def measure(device: torch.device, on_line: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Measure every system at every depth."""
    cases = [(system, blocks, device) for system in SYSTEMS for blocks in DEPTHS]
    return in_own_processes(measure_one, cases, on_line)
