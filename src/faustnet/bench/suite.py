"""The parts of the benchmark. Each returns entries of the result file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from faustnet.bench import convolutions, memory, prediction, steps
from faustnet.bench.steps import Case
from faustnet.data import load_data
from faustnet.system.devices import has_triton
from faustnet.system.environment import environment

Say = Callable[[str], None]
DEPTHS = {"cpu": (2, 4, 8, 16), "cuda": (2, 4, 8, 16, 32)}


def base(device: torch.device) -> Case:
    """Return the base case: a small embedding on a CPU, where arithmetic dominates; bfloat16 on a GPU."""
    return Case(precision="bfloat16") if device.type == "cuda" else Case(embedding=64, precision="float32")


def measure_steps(device: torch.device, seconds: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    """Measure steps by depth; on a GPU also in other precisions, and backprop with torch.compile."""
    lines = [_step(replace(base(device), layers=layers), device, seconds, say) for layers in DEPTHS[device.type]]
    found: dict[str, Any] = {"steps": lines}
    if device.type == "cuda":
        others = [replace(Case(), layers=layers, precision=p) for p in ("tf32", "float32") for layers in (4, 8, 16)]
        found["steps_in_other_precisions"] = [_step(case, device, seconds, say) for case in others]
    if has_triton(device):
        for line in lines:
            if 4 <= line["layers"] <= 16:
                case = replace(base(device), layers=line["layers"])
                line["backprop_compiled_us"] = steps.measure_compiled(case, device, seconds)
                say(f"{case.layers:3} × {case.width}: backprop with torch.compile {line['backprop_compiled_us']:.0f} µs")
    return found


def _step(case: Case, device: torch.device, seconds: float, say: Say) -> dict[str, Any]:
    line = {"device": device.type, **_facts(case), **steps.measure(case, device, seconds)}
    say(
        f"{case.layers} × {case.width}, embedding {case.embedding}, batch {case.batch}, classes {case.classes}, "
        f"representatives {case.representatives}, {case.precision}: backprop {line['backprop_us'] / 1000:,.3f} ms; "
        f"times that: sequential {line['sequential_us'] / line['backprop_us']:.2f}, "
        f"wavefront {line['wavefront_us'] / line['backprop_us']:.2f}"
    )
    return line


def _facts(case: Case) -> dict[str, Any]:
    names = ("layers", "width", "embedding", "batch", "classes", "representatives", "precision")
    return {name: getattr(case, name) for name in names}


def measure_scaling(device: torch.device, seconds: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    """Vary one size at a time; `steps` varies the depth."""
    varied: dict[str, tuple[Any, ...]] = {
        "width": (200, 400, 1600),
        "batch": (64, 1024),
        "embedding": (16, 256) if device.type == "cpu" else (64, 800),
        "classes": (100,),
        "representatives": (10,),
    }
    cases = [replace(base(device), **{name: value}) for name, values in varied.items() for value in values]
    return {"scaling": [_step(case, device, seconds, say) for case in [base(device), *cases]]}


def measure_memory(device: torch.device, seconds: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    def on_line(line: dict[str, Any]) -> None:
        say(f"{line['layers']:3} layers, {line['system']:24} peak {line['peak']:8.1f} MiB above the start")

    if not memory.can_measure(device):
        say("Memory on a CPU is measured on Linux only: skipped.")
        return {}
    return {"memory": memory.measure(device, on_line)}


def measure_prediction(device: torch.device, seconds: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    found = []
    for widths in ((500,) * 3, (800,) * 4):
        for embedding in (64, 256):
            line = prediction.measure(widths, embedding, device, seconds)
            found.append(line)
            say(
                f"predicting 10,000 images, {len(widths)} × {widths[0]}, embedding {embedding}: backprop "
                f"{line['backprop_ms']:.1f} ms   FAUST {line['faust_ms'] / line['backprop_ms']:.2f}   "
                f"Forward-Forward {line['forward_forward_ms'] / line['faust_ms']:.1f} times FAUST"
            )
    return {"prediction": found}


def measure_early_exit(device: torch.device, seconds: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    """Measure early exit on Fashion-MNIST, with a threshold chosen on 5,000 held-out images."""
    say("training on Fashion-MNIST for early exit …")
    found = prediction.early_exit(device, data_dir)
    say(
        f"early exit on Fashion-MNIST at a margin of {found['threshold']}: {found['saved']:.0%} of the multiplications "
        f"saved, accuracy {found['accuracy']:.2%} instead of {found['accuracy_of_all_layers']:.2%}"
    )
    return {"early_exit": found}


def measure_training(device: torch.device, seconds: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    """Train 60 epochs of CIFAR-10 on a GPU or 2 on a CPU, with an evaluation after each."""
    found = []
    for method in ("faust-representative", "backprop"):
        say(f"training {method} on CIFAR-10 …")
        line = prediction.training(method, 60 if device.type == "cuda" else 2, device, data_dir)
        found.append(line)
        say(
            f"{method}, {line['epochs']} epochs of CIFAR-10, 3 × 500, {line['schedule']}: {line['seconds']:.2f} s with "
            f"evaluations and checkpoints, {line['whole_seconds']:.2f} s with set-up; test accuracy {line['accuracy']:.2%}"
        )
    return {"training": found}


def measure_convolutions(device: torch.device, seconds: float, data_dir: Path | None, say: Say) -> dict[str, Any]:
    found = []
    for network in (convolutions.VGG, convolutions.RESIDUAL):
        line = convolutions.measure(network, device, seconds)
        found.append(line)
        ratios = [f"{name} {line[f'{name}_us'] / line['backprop_us']:.2f}" for name in ("sequential", "wavefront")]
        what = f"{line['kind']}, batch {line['batch']}, {line['precision']}"
        say(f"{what}: backprop {line['backprop_us'] / 1000:.1f} ms; times that: {', '.join(ratios)}")
        if "backprop_beside_mib" in line:
            most = [f"{name} {line[f'{name}_beside_mib']:,.0f} MiB" for name in convolutions.SYSTEMS]
            say(f"  peak memory without weights and optimiser state: {', '.join(most)}")
    return {"convolutions": found}


PARTS: dict[str, Callable[[torch.device, float, Path | None, Say], dict[str, Any]]] = {
    "steps": measure_steps,
    "scaling": measure_scaling,
    "prediction": measure_prediction,
    "memory": measure_memory,
    "convolutions": measure_convolutions,
    "early-exit": measure_early_exit,
    "training": measure_training,
}


NEEDED = {"early-exit": "fashion-mnist", "training": "cifar10"}  # data sets that a part needs


def run(
    parts: list[str],
    device: torch.device,
    seconds: float,
    data_dir: Path | None,
    say: Say,
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure parts one after the other, and save the results after each."""
    for part, dataset in NEEDED.items():
        if part in parts:
            load_data(dataset, data_dir)  # fails now if it is missing
    found: dict[str, Any] = {"environment": environment(device, seed=0), "seconds_for_a_case": seconds}
    for part in parts:
        found |= PARTS[part](device, seconds, data_dir, say)
        save(found)
    return found
