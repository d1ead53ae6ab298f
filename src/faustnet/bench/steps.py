"""Time of one training step, compared with plain PyTorch backprop of the same widths.

The backprop network has linear layers with ReLU, a linear output, cross entropy, fused Adam and no layer norm; on a GPU
its step is one CUDA graph, like ours. All systems use the same random images.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.data import Images, ImageSource, Scaling
from faustnet.methods import build
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.precision import matmul_precision, set_compute_dtype
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules import SCHEDULES
from faustnet.training.schedules.base import Schedule
from faustnet.training.schedules.step_graph import StepGraph, StepTable

Step = Callable[[], object]
IMAGES = 4096
STEPS = 192  # batches of an epoch, which is repeated; an epoch of CIFAR-10 has 195


@dataclass(frozen=True)
class Case:
    """Sizes and precision of one measurement."""

    layers: int = 4
    width: int = 800
    embedding: int = 256
    batch: int = 256
    classes: int = 10
    representatives: int = 1
    representatives_per_step: int = 0
    classes_per_step: str = "all"
    shape: tuple[int, int, int] = (3, 32, 32)
    precision: str = "tf32"

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width,) * self.layers

    @property
    def inputs(self) -> int:
        channels, height, width = self.shape
        return channels * height * width

    @property
    def options(self) -> dict[str, Any]:
        """Options of faust-representative."""
        names = ("representatives", "representatives_per_step", "classes_per_step")
        return {name: getattr(self, name) for name in names}

    def source(self, device: torch.device) -> ImageSource:
        """Return random images; the time of a step does not depend on their content."""
        labels = torch.arange(IMAGES) % self.classes
        images = Images(torch.randint(256, (IMAGES, *self.shape), dtype=torch.uint8), labels).to(device)
        return ImageSource(images, Scaling.of(images), [str(number) for number in range(self.classes)])

    def plan(self) -> tuple[Tensor, Tensor]:
        """Return positions of images (STEPS, batch) and learning rates (STEPS)."""
        return torch.randint(IMAGES, (STEPS, self.batch)), torch.full((STEPS,), 1e-3, dtype=torch.float64)


def plain_network(case: Case) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, width in pairwise([case.inputs, *case.widths]):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(case.width, case.classes))


def backprop_step(case: Case, device: torch.device, *, compiled: bool = False) -> Step:
    source, network, table = case.source(device), plain_network(case).to(device), StepTable(device)
    table.fill(case.plan(), 0)
    updates = OptimiserSettings().create().updates(network, [network.parameters()])
    of_type = torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bfloat16")

    def loss_of(index: Tensor) -> Tensor:
        return functional.cross_entropy(network(source.plain(index).flatten(1)), source.labels[index])

    forward = torch.compile(loss_of) if compiled else loss_of

    def work() -> None:
        index, rate = table.read()
        table.position.remainder_(STEPS)
        with of_type:
            loss = forward(index)
        loss.backward()
        updates.step(rate)

    def works(times: int) -> None:
        for _ in range(times):
            work()

    def changes() -> list[Tensor]:
        return [table.position, *network.parameters(), *updates.changes()]

    graph = StepGraph(works, changes, lambda steps: nullcontext())
    graph.recorded = device.type == "cuda"
    return graph.enqueue


def faust_schedule(case: Case, source: ImageSource, order: str) -> Schedule:
    """Return a schedule that trains a new FAUST network."""
    return schedule_of(
        "faust-representative", order, case, source, NetworkSettings(case.widths, case.embedding), case.options
    )


def schedule_of(
    name: str,
    order: str,
    case: Case,
    source: ImageSource,
    network: NetworkSettings,
    options: Mapping[str, Any],
    optimiser: str = "adam",
) -> Schedule:
    method = build(name, case.shape, case.classes, network, options).to(source.labels.device)
    set_compute_dtype(method, case.precision)
    method.start(source)
    return SCHEDULES[order](method, source, OptimiserSettings(optimiser).create())


def scheduled_step(order: Schedule, case: Case) -> Step:
    """Return a step within an epoch. (At the end of an epoch, the wavefront needs one step less than layers in addition.)"""
    order.enter(0)
    batches, rates = case.plan()
    position = STEPS

    def step() -> None:
        nonlocal position
        if position == STEPS:
            order.begin(batches, rates, 0)
            position = 0
        order.step()
        position += 1

    return step


def microseconds(
    steps: Mapping[str, Step], device: torch.device, seconds: float, group: int | None = None
) -> dict[str, float]:
    """Return the median time of each step. Steps alternate in small groups, so that a slower machine affects all equally."""
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    group = group or (STEPS if device.type == "cuda" else 4)
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(steps))]) < 5:
        for name, step in steps.items():
            wait()
            begin = time.perf_counter()
            for _ in range(group):
                step()
            wait()
            times[name].append((time.perf_counter() - begin) / group * 1e6)
    return {name: statistics.median(found[len(found) // 5 :]) for name, found in times.items()}  # the first fifth warms up


def measure(case: Case, device: torch.device, seconds: float) -> dict[str, Any]:
    """Return one entry of `steps` in the result file."""
    torch.manual_seed(0)
    steps = {"backprop_us": backprop_step(case, device)}
    for order in ("sequential", "wavefront"):
        steps[f"{order}_us"] = scheduled_step(faust_schedule(case, case.source(device), order), case)
    with matmul_precision(case.precision):
        return microseconds(steps, device, seconds)


def measure_compiled(case: Case, device: torch.device, seconds: float) -> float:
    """Return the time of the backprop step with torch.compile.

    It compiles in this process, because compile workers would slow down later measurements.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with matmul_precision(case.precision):
        return microseconds({"step": backprop_step(case, device, compiled=True)}, device, seconds)["step"]
