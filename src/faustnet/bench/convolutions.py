"""Time and memory of a training step of convolutional layers, trained locally and by backprop.

The backprop network has the same blocks, and only the last head.
"""

import gc
from dataclasses import replace
from typing import Any

import torch

from faustnet.bench.steps import Case, microseconds, schedule_of, scheduled_step
from faustnet.data import ImageSource
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.precision import matmul_precision
from faustnet.training.schedules.base import Schedule

VGG = NetworkSettings((128, 256, 256, 512, 512, 512), kind="vgg", pools=(2, 4, 5, 6), length="unit")
RESIDUAL = NetworkSettings((128, 256, 512), kind="residual", pools=(1, 2, 3), length="unit")
LARGE = NetworkSettings((128, 256, 512, 512), kind="residual", pools=(2, 3, 4), length="unit")  # of best/cifar10/cnn-large
NARROW_HEADS = replace(VGG, head=192)
SYSTEMS = {
    "backprop": ("backprop", "sequential"),
    "sequential": ("faust-representative", "sequential"),
    "wavefront": ("faust-representative", "wavefront"),
}
SAMPLED = {f"sampled_{order}": ("faust-representative", order) for order in ("sequential", "wavefront")}


def new_schedule(system: str, network: NetworkSettings, case: Case, source: ImageSource) -> Schedule:
    """Return a schedule for one of the systems. The sampled ones use one representative of each class in a step."""
    name, order = (SYSTEMS | SAMPLED)[system]
    options = {} if name == "backprop" else {**case.options, "scale": 5.0}
    if system in SAMPLED:
        options["representatives_per_step"] = 1
    return schedule_of(name, order, case, source, network, options, "muon")


def measure(network: NetworkSettings, device: torch.device, seconds: float) -> dict[str, Any]:
    """Return one entry of `convolutions` in the result file."""
    torch.manual_seed(0)
    factor, precision = (1, "bfloat16") if device.type == "cuda" else (8, "float32")  # channels and images divided by it
    network = replace(network, widths=tuple(width // factor for width in network.widths), head=network.head // factor)
    case = Case(batch=512 // factor, representatives=4, precision=precision)
    source = case.source(device)
    found: dict[str, Any] = {
        "kind": network.kind, "widths": network.widths, "head": network.head, "batch": case.batch,
        "representatives": case.representatives, "precision": case.precision,
    }  # fmt: skip
    with matmul_precision(case.precision):
        if device.type == "cuda":
            found |= {f"{system}_beside_mib": _most_beside(system, network, case, source) for system in SYSTEMS}
        systems = SYSTEMS | SAMPLED
        steps = {f"{system}_us": scheduled_step(new_schedule(system, network, case, source), case) for system in systems}
        return found | microseconds(steps, device, seconds, 24 if device.type == "cuda" else 1)


def _most_beside(system: str, network: NetworkSettings, case: Case, source: ImageSource) -> float:
    """Return the peak GPU memory in MiB of gradients, activations and buffers of the schedule, without CUDA graphs.

    Images, weights and optimiser state are subtracted.
    """
    device = source.labels.device
    gc.collect()  # schedules of other systems, which would be freed meanwhile
    before = torch.cuda.memory_allocated(device)
    schedule = new_schedule(system, network, case, source)
    schedule.enter(0)
    schedule.graph.recorded = False
    schedule.begin(*case.plan(), 0)
    schedule.step()
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(3):
        schedule.step()
    torch.cuda.synchronize(device)
    most = torch.cuda.max_memory_allocated(device) - before
    kept = [*schedule.method.parameters(), *schedule.method.buffers(), *schedule.state().values()]
    return round((most - sum(tensor.nbytes for tensor in kept if tensor.is_cuda)) / 2**20, 1)
