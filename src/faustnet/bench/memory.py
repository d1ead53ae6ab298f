"""Memory of training by depth, each system in its own process.

Weights, gradients and optimiser state are the sizes of those tensors; activations are the maximum that autograd kept at
a time; cached is what the greedy schedule stores of the training set. The peak is measured independently, and is less
than the sum when the parts reach their maxima at different times: on a GPU it is the memory allocated by PyTorch, on a
CPU the maximum resident size of the process, minus the value before the network was made. No CUDA graphs are used.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from faustnet.bench.steps import Case, faust_schedule, plain_network
from faustnet.data import ImageSource
from faustnet.nn.network import LOSSES_AT_ONCE
from faustnet.nn.structure import tensors
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules import Greedy, Wavefront

DEPTHS = (4, 16, 64)
STEPS = 3
PIECES = 4  # of a batch, for gradient accumulation
STATUS = Path("/proc/self/status")
PARTS = ("weights", "gradients", "optimiser", "activations", "cached")


class Saved:
    """A tensor that autograd keeps for the backward pass."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


class Kept:
    """Measures the memory that autograd keeps for the backward pass, without parameters."""

    def __init__(self) -> None:
        self.saved: weakref.WeakSet[Saved] = weakref.WeakSet()
        self.most = 0

    def keep(self, tensor: Tensor) -> Saved:
        saved = Saved(tensor)
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            self.saved.add(saved)
            storages = (one.tensor.untyped_storage() for one in self.saved)
            self.most = max(self.most, sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))
        return saved


def train_plain(system: str, case: Case, source: ImageSource) -> dict[str, int]:
    """Train by plain backprop, with activation checkpointing, or with gradient accumulation."""
    device = source.labels.device
    network = plain_network(case).to(device)
    updates = OptimiserSettings().create().updates(network, [network.parameters()])
    rate = torch.tensor(1e-3, device=device)
    index = torch.arange(case.batch, device=device)
    forward: Callable[[Tensor], Tensor] = network
    if system == "backprop, checkpointed":
        segments = max(2, round(case.layers**0.5))
        forward = lambda x: checkpoint_sequential(network, segments, x.requires_grad_(), use_reentrant=True)  # noqa: E731
    pieces = PIECES if system == "backprop, accumulated" else 1
    gradients = 0
    for _ in range(STEPS):
        for piece in index.chunk(pieces):
            loss = functional.cross_entropy(forward(source.plain(piece).flatten(1)), source.labels[piece])
            (loss / pieces).backward()
        del loss
        gradients = size(p.grad for p in network.parameters() if p.grad is not None)
        updates.step(rate)
    return {"weights": size(network.parameters()), "gradients": gradients, "optimiser": size(updates.state().values())}


def train_faust(system: str, case: Case, source: ImageSource) -> dict[str, int]:
    """Train FAUST-representative by one of its schedules; the greedy one in its last phase."""
    schedule = faust_schedule(case, source, system)
    schedule.enter(schedule.phases - 1)
    schedule.graph.recorded = False
    schedule.begin(*case.plan(), 0)
    for _ in range(STEPS):
        schedule.step()
    layers = [size(layer.parameters()) for layer in schedule.method.network]
    found = {
        "weights": sum(layers),
        "gradients": max(sum(layers[i : i + LOSSES_AT_ONCE]) for i in range(0, len(layers), LOSSES_AT_ONCE)),
    }
    if isinstance(schedule, Wavefront):
        found["gradients"] = max(size(group.trainable()) for group in schedule.groups)
        found["optimiser"] = size(slot for group in schedule.groups for _, _, slot in group.slots())
    else:
        found["optimiser"] = size(schedule.updates.state().values())  # type: ignore[attr-defined]
    if isinstance(schedule, Greedy):
        found["gradients"] = layers[schedule.phase]
        found["cached"] = size(tensors(schedule.received.passed))  # type: ignore[attr-defined]
    return found


SYSTEMS: dict[str, Callable[[str, Case, ImageSource], dict[str, int]]] = {
    "backprop": train_plain,
    "backprop, checkpointed": train_plain,
    "backprop, accumulated": train_plain,
    "sequential": train_faust,
    "wavefront": train_faust,
    "greedy": train_faust,
}


def size(tensors: Iterable[Tensor]) -> int:
    """Return the size of tensors in bytes."""
    return sum(tensor.nbytes for tensor in tensors)


def measure_one(system: str, layers: int, device: torch.device) -> dict[str, Any]:
    """Measure one system in this process, and return MiB of each part and at the peak."""
    case = Case(layers=layers)
    source, kept = case.source(device), Kept()
    warm_up(device)
    before = begin_peak(device)
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda saved: saved.tensor):
        found = dict.fromkeys(PARTS, 0) | SYSTEMS[system](system, case, source)
    found |= {"activations": kept.most, "peak": peak(device) - before}
    return {"system": system, "layers": layers, **{part: round(taken / 2**20, 1) for part, taken in found.items()}}


def warm_up(device: torch.device) -> None:
    """Load the libraries that the systems need, so that they are not counted. Checkpointing imports torch's compiler."""
    layer = nn.Linear(64, 64, device=device)
    updates = OptimiserSettings().create().updates(layer, [layer.parameters()])
    for use_reentrant in (True, False):
        rows = torch.zeros(8, 64, device=device, requires_grad=True)
        checkpoint(layer, rows, use_reentrant=use_reentrant).sum().backward()
    updates.step(torch.tensor(1e-3, device=device))


def begin_peak(device: torch.device) -> int:
    """Reset the peak, and return the memory in use."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident("VmHWM")


def _resident(word: str) -> int:
    """Return an entry of /proc/self/status in bytes."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{word}:"))


def can_measure(device: torch.device) -> bool:
    return device.type == "cuda" or STATUS.exists()


def measure(device: torch.device, on_line: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Measure every system at every depth."""
    cases = [(system, layers, device) for system in SYSTEMS for layers in DEPTHS]
    return in_own_processes(measure_one, cases, on_line)


def in_own_processes(
    measure_one: Callable[..., dict[str, Any]], cases: Sequence[tuple[Any, ...]], on_line: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Measure each case in a new process."""
    # Freed memory is returned to the system at once, so that the resident size is the memory in use.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    workers, spawn = max(1, (os.cpu_count() or 1) // 2), get_context("spawn")
    lines = []
    with ProcessPoolExecutor(workers, spawn, max_tasks_per_child=1) as pool:
        for line in pool.map(measure_one, *zip(*cases, strict=True)):
            on_line(line)
            lines.append(line)
    return lines
