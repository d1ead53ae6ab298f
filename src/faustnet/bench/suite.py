"""The parts of the benchmark. Each returns entries of the result file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from faustnet.bench import convolutions, memory, prediction, residual_memory, steps, trainings
from faustnet.bench.measurement_cache import MeasurementCache
from faustnet.bench.starts import Work, measure
from faustnet.bench.steps import Case
from faustnet.data import load_data
from faustnet.nn.architectures import NetworkSettings
from faustnet.system.devices import has_triton
from faustnet.system.environment import environment

DEPTHS = {"cpu": (2, 4, 8, 16), "cuda": (2, 4, 8, 16, 32)}
Entries = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What all parts need.

    Args:
        device: Where to measure.
        seconds: Time for one case.
        data_dir: Folder of the data sets.
        say: Function that prints a line.
        starts: Number of new processes in which `steps` and `convolutions` are measured, 1 for this process, and number of
            trainings of each kind in `training`.
        cache: Measurements of new processes, from which an interrupted benchmark goes on.
    """

    device: torch.device
    seconds: float
    data_dir: Path | None
    say: Callable[[str], None]
    starts: int = 1
    cache: MeasurementCache = field(default_factory=MeasurementCache)

    def steps(self, cases: Sequence[Case], starts: int = 1) -> list[dict[str, Any]]:
        """Measure training steps."""
        found = []
        for case, line in zip(cases, self._measure(cases, starts), strict=True):
            found.append(line)
            self.say(
                f"{case.layers} × {case.width}, embedding {case.embedding}, batch {case.batch}, classes {case.classes}, "
                f"representatives {case.representatives}, {case.precision}: {compared(line)}"
            )
        return found

    def convolutions(self, networks: Sequence[NetworkSettings]) -> list[dict[str, Any]]:
        """Measure training steps of convolutional networks."""
        found = []
        for line in self._measure(networks, self.starts):
            found.append(line)
            sizes = f"{len(line['widths'])} layers, head {line['head']}, batch {line['batch']}"
            self.say(f"{line['kind']}, {sizes}, {line['precision']}: {compared(line)}")
            if "backprop_beside_mib" in line:
                most = [f"{name} {line[f'{name}_beside_mib']:,.0f} MiB" for name in convolutions.SYSTEMS]
                self.say(f"  peak memory without weights and optimiser state: {', '.join(most)}")
        return found

    def _measure(self, work: Sequence[Work], starts: int) -> Iterator[dict[str, Any]]:
        return measure(work, self.device, self.seconds, starts, self.say, self.cache)


def compared(line: Mapping[str, Any]) -> str:
    """Return the times of a step as text."""
    whole = line["backprop_us"]
    ratios = []
    for name in ("sequential", "wavefront", "sampled_sequential", "sampled_wavefront"):
        if f"{name}_us" not in line:
            continue
        worst = f" (at most {line[f'{name}_worst_us'] / whole:.2f})" if f"{name}_worst_us" in line else ""
        ratios.append(f"{name.replace('_', ' ')} {line[f'{name}_us'] / whole:.2f}{worst}")
    return f"backprop {whole / 1000:,.3f} ms; relative to backprop: {', '.join(ratios)}"


def base(device: torch.device) -> Case:
    """Return the base case: a small embedding on a CPU, where arithmetic dominates; bfloat16 on a GPU."""
    return Case(precision="bfloat16") if device.type == "cuda" else Case(embedding=64, precision="float32")


def measure_steps(bench: Bench) -> Entries:
    """Measure steps by depth; on a GPU also in other precisions, with many classes, and backprop with torch.compile."""
    device = bench.device
    cases = {"steps": [replace(base(device), layers=layers) for layers in DEPTHS[device.type]]}
    if device.type == "cuda":
        cases["steps_in_other_precisions"] = [Case(layers=layers, precision="tf32") for layers in (4, 8, 16)]
    lines = iter(bench.steps([case for group in cases.values() for case in group], bench.starts))
    found = {name: [next(lines) for _ in group] for name, group in cases.items()}
    if device.type == "cuda":
        found["steps_in_other_precisions"] += bench.steps([Case(layers=n, precision="float32") for n in (4, 8, 16)])
        many: list[dict[str, Any]] = [{"classes": 10}, {"classes": 100}, {"classes": 1000, "classes_per_step": "batch"}]
        kinds = [replace(case, **sizes) for case in (Case(), base(device)) for sizes in many]
        found["steps_with_many_classes"] = bench.steps(kinds)
    if has_triton(device):
        for case, line in zip(cases["steps"], found["steps"], strict=True):
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
    changes.append({"classes": 1000, "classes_per_step": "batch"})
    return {"scaling": bench.steps([replace(base(bench.device), **change) for change in changes])}


def measure_memory(bench: Bench) -> Entries:
    if not memory.can_measure(bench.device):
        bench.say("The part memory was skipped: on a CPU it runs on Linux only.")
        return {}
    about = "{layers:3} layers, {system:24} peak memory {peak:8.1f} MiB more than at the start".format
    deep = "{blocks:3} residual blocks, {system:24} peak memory without weights and optimiser state {beside:8.1f} MiB".format
    return {
        "memory": memory.measure(bench.device, lambda line: bench.say(about(**line))),
        "residual_memory": residual_memory.measure(bench.device, lambda line: bench.say(deep(**line))),
    }


def measure_prediction(bench: Bench) -> Entries:
    found = []
    for widths, embedding in (((500,) * 3, 64), ((500,) * 3, 256), ((800,) * 4, 64), ((800,) * 4, 256)):
        line = prediction.measure(widths, embedding, bench.device, bench.seconds)
        found.append(line)
        recorded = ""
        if "recorded_faust_ms" in line:
            recorded = f", as CUDA graphs {line['recorded_faust_ms'] / line['recorded_backprop_ms']:.2f}"
        bench.say(
            f"predicting 10,000 images, {len(widths)} × {widths[0]}, embedding {embedding}: backprop "
            f"{line['backprop_ms']:.1f} ms; FAUST ÷ backprop {line['faust_ms'] / line['backprop_ms']:.2f}{recorded}; "
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
    """Train runs on CIFAR-10, each in a new process."""
    found = []
    work = trainings.trainings(bench.device)
    for line in trainings.measure(work, bench.device, bench.data_dir, bench.starts, bench.say, bench.cache):
        found.append(line)
        bench.say(
            f"{line['recipe']}, {line['epochs']} epochs of CIFAR-10, {line['schedule']}: {line['seconds']:.2f} s with "
            f"evaluations and checkpoints, {line['whole_seconds']:.2f} s with set-up, {line['other_seconds']:.2f} s without "
            f"the steps; first epoch {line['first_epoch_seconds']:.2f} s, others {line['epoch_seconds']:.2f} s; "
            f"test accuracy {line['accuracy']:.2%}"
        )
    return {"training": found}


def measure_convolutions(bench: Bench) -> Entries:
    return {
        "convolutions": bench.convolutions(
            [convolutions.VGG, convolutions.NARROW_HEADS, convolutions.RESIDUAL, convolutions.LARGE]
        )
    }


PARTS: dict[str, Callable[[Bench], Entries]] = {
    "steps": measure_steps,
    "scaling": measure_scaling,
    "prediction": measure_prediction,
    "memory": measure_memory,
    "convolutions": measure_convolutions,
    "early-exit": measure_early_exit,
    "training": measure_training,
}


def run(parts: list[str], bench: Bench, save: Callable[[Entries], None], earlier: Entries | None = None) -> None:
    """Measure parts one after the other, and save the results after each, together with those of an earlier file."""
    for part, dataset in (("early-exit", "fashion-mnist"), ("training", "cifar10")):
        if part in parts:
            load_data(dataset, bench.data_dir)  # fails now if it is missing
    found: Entries = {"environment": environment(bench.device, seed=0), "seconds_for_a_case": bench.seconds}
    for part in parts:
        found |= PARTS[part](bench)
        save(together(earlier, found) if earlier else found)
        bench.cache.clear()


def together(earlier: Entries, found: Entries) -> Entries:
    """Return new entries, and those of an earlier file that were not measured again. The environment that these were
    measured in is in `environments`."""
    about = {"environment", "environments", "seconds_for_a_case"}
    kept = {name: entry for name, entry in earlier.items() if name not in {*found, *about}}
    environments = {name: earlier.get("environments", {}).get(name, earlier["environment"]) for name in kept}
    return found | kept | ({"environments": environments} if kept else {})
