"""The parts of the benchmark. Each returns entries of the result file."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from faustnet.bench import convolutions, memory, prediction, steps
from faustnet.bench.steps import Case
from faustnet.data import load_data
from faustnet.system.devices import has_triton
from faustnet.system.environment import environment

DEPTHS = {"cpu": (2, 4, 8, 16), "cuda": (2, 4, 8, 16, 32)}
Entries = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What all parts need. `seconds` is the time for one case."""

    device: torch.device
    seconds: float
    data_dir: Path | None
    say: Callable[[str], None]

    def step(self, case: Case) -> dict[str, Any]:
        """Measure a training step."""
        sizes = {name: value for name, value in asdict(case).items() if name != "shape"}
        line = {"device": self.device.type, **sizes, **steps.measure(case, self.device, self.seconds)}
        self.say(
            f"{case.layers} × {case.width}, embedding {case.embedding}, batch {case.batch}, classes {case.classes}, "
            f"representatives {case.representatives}, {case.precision}: backprop {line['backprop_us'] / 1000:,.3f} ms; "
            f"relative to backprop: sequential {line['sequential_us'] / line['backprop_us']:.2f}, "
            f"wavefront {line['wavefront_us'] / line['backprop_us']:.2f}"
        )
        return line


def base(device: torch.device) -> Case:
    """Return the base case: a small embedding on a CPU, where arithmetic dominates; bfloat16 on a GPU."""
    return Case(precision="bfloat16") if device.type == "cuda" else Case(embedding=64, precision="float32")


def measure_steps(bench: Bench) -> Entries:
    """Measure steps by depth; on a GPU also in other precisions, and backprop with torch.compile."""
    device = bench.device
    cases = [replace(base(device), layers=layers) for layers in DEPTHS[device.type]]
    found = {"steps": [bench.step(case) for case in cases]}
    if device.type == "cuda":
        others = [Case(layers=layers, precision=name) for name in ("tf32", "float32") for layers in (4, 8, 16)]
        found["steps_in_other_precisions"] = [bench.step(case) for case in others]
    if has_triton(device):
        for case, line in zip(cases, found["steps"], strict=True):
            if 4 <= case.layers <= 16:
                line["backprop_compiled_us"] = steps.measure_compiled(case, device, bench.seconds)
                bench.say(
                    f"{case.layers:3} × {case.width}: backprop with torch.compile {line['backprop_compiled_us']:.0f} µs"
                )
    return found


def measure_scaling(bench: Bench) -> Entries:
    """Vary one size at a time; `steps` varies the depth."""
    varied = {
        "width": (200, 400, 1600),
        "batch": (64, 1024),
        "embedding": (16, 256) if bench.device.type == "cpu" else (64, 800),
        "classes": (100,),
        "representatives": (10,),
    }
    changes: list[dict[str, Any]] = [{}, *({name: value} for name, values in varied.items() for value in values)]
    return {"scaling": [bench.step(replace(base(bench.device), **change)) for change in changes]}


def measure_memory(bench: Bench) -> Entries:
    if not memory.can_measure(bench.device):
        bench.say("The part memory was skipped: on a CPU it runs on Linux only.")
        return {}
    about = "{layers:3} layers, {system:24} peak memory {peak:8.1f} MiB more than at the start".format
    return {"memory": memory.measure(bench.device, lambda line: bench.say(about(**line)))}


def measure_prediction(bench: Bench) -> Entries:
    found = []
    for widths, embedding in (((500,) * 3, 64), ((500,) * 3, 256), ((800,) * 4, 64), ((800,) * 4, 256)):
        line = prediction.measure(widths, embedding, bench.device, bench.seconds)
        found.append(line)
        bench.say(
            f"predicting 10,000 images, {len(widths)} × {widths[0]}, embedding {embedding}: backprop "
            f"{line['backprop_ms']:.1f} ms; FAUST ÷ backprop {line['faust_ms'] / line['backprop_ms']:.2f}; "
            f"Forward-Forward ÷ FAUST {line['forward_forward_ms'] / line['faust_ms']:.1f}"
        )
    return {"prediction": found}


def measure_early_exit(bench: Bench) -> Entries:
    """Measure early exit on Fashion-MNIST, with a threshold chosen on 5,000 held-out images."""
    bench.say("training on Fashion-MNIST for early exit …")
    found = prediction.early_exit(bench.device, bench.data_dir)
    bench.say(
        f"early exit on Fashion-MNIST at a margin of {found['threshold']}: {found['saved']:.0%} of the multiplications "
        f"saved, accuracy {found['accuracy']:.2%} instead of {found['accuracy_of_all_layers']:.2%}"
    )
    return {"early_exit": found}


def measure_training(bench: Bench) -> Entries:
    """Train 60 epochs of CIFAR-10 on a GPU or 2 on a CPU, with an evaluation after each."""
    found = []
    for method in ("faust-representative", "backprop"):
        bench.say(f"training {method} on CIFAR-10 …")
        line = prediction.training(method, 60 if bench.device.type == "cuda" else 2, bench.device, bench.data_dir)
        found.append(line)
        bench.say(
            f"{method}, {line['epochs']} epochs of CIFAR-10, 3 × 500, {line['schedule']}: {line['seconds']:.2f} s with "
            f"evaluations and checkpoints, {line['whole_seconds']:.2f} s with set-up; test accuracy {line['accuracy']:.2%}"
        )
    return {"training": found}


def measure_convolutions(bench: Bench) -> Entries:
    found = []
    for network in (convolutions.VGG, convolutions.RESIDUAL):
        line = convolutions.measure(network, bench.device, bench.seconds)
        found.append(line)
        ratios = [f"{name} {line[f'{name}_us'] / line['backprop_us']:.2f}" for name in ("sequential", "wavefront")]
        what = f"{line['kind']}, batch {line['batch']}, {line['precision']}"
        bench.say(f"{what}: backprop {line['backprop_us'] / 1000:.1f} ms; relative to backprop: {', '.join(ratios)}")
        if "backprop_beside_mib" in line:
            most = [f"{name} {line[f'{name}_beside_mib']:,.0f} MiB" for name in convolutions.SYSTEMS]
            bench.say(f"  peak memory without weights and optimiser state: {', '.join(most)}")
    return {"convolutions": found}


PARTS: dict[str, Callable[[Bench], Entries]] = {
    "steps": measure_steps,
    "scaling": measure_scaling,
    "prediction": measure_prediction,
    "memory": measure_memory,
    "convolutions": measure_convolutions,
    "early-exit": measure_early_exit,
    "training": measure_training,
}


def run(parts: list[str], bench: Bench, save: Callable[[Entries], None]) -> None:
    """Measure parts one after the other, and save the results after each."""
    for part, dataset in (("early-exit", "fashion-mnist"), ("training", "cifar10")):
        if part in parts:
            load_data(dataset, bench.data_dir)  # fails now if it is missing
    found: Entries = {"environment": environment(bench.device, seed=0), "seconds_for_a_case": bench.seconds}
    for part in parts:
        found |= PARTS[part](bench)
        save(found)
