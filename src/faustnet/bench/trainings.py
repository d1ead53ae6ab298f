"""Time of complete trainings of CIFAR-10, as the command line does them, each in a new process.

The first training of a process also starts the GPU and its libraries, so two of them in one process cannot be compared.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from faustnet.bench.measurement_cache import MeasurementCache, read_input
from faustnet.bench.starts import combined
from faustnet.data import DataSet
from faustnet.runs.model import Model
from faustnet.runs.recipes import put, read_recipe, recipe_from
from faustnet.runs.session import train
from faustnet.training.history import Epoch
from faustnet.training.loop import TrainingLoop


@dataclass(frozen=True)
class Training:
    """A training of an included recipe, or of a method with the default network, for some epochs.

    Args:
        method: Name of a method, or of an included recipe that contains a "/".
        epochs: Number of epochs.
        evaluate_every: Number of epochs between two evaluations.
    """

    method: str
    epochs: int
    evaluate_every: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe, as a table."""
        included = "/" in self.method
        table = read_recipe(self.method) if included else {"dataset": "cifar10", "method": self.method}
        for key in ("epochs", "evaluate_every"):
            put(table, f"training.{key}", getattr(self, key))
        return table


DENSE = ("faust-representative", "backprop")
CONVOLUTIONAL = ("best/cifar10/cnn", "best/cifar10/cnn-backprop")


def trainings(device: torch.device) -> list[Training]:
    """Return what is measured on a device."""
    if device.type != "cuda":
        return [Training(method, epochs=2) for method in DENSE]
    return [*(Training(method, 60) for method in DENSE), *(Training(name, 4, evaluate_every=4) for name in CONVOLUTIONAL)]


class Silent:
    """Progress that only measures the time."""

    def begin(self, model: Model, data: DataSet, trainer: TrainingLoop) -> None:
        self.began, self.schedule = time.perf_counter(), trainer.schedule.name

    def batch(self) -> None: ...
    def epoch(self, epoch: Epoch) -> None: ...
    def end(self) -> None:
        self.seconds = time.perf_counter() - self.began


def measured(work: Training, device: torch.device, data_dir: Path | None) -> dict[str, Any]:
    """Train in a temporary folder, and return one entry of the result file. Its times are those of the training with
    evaluations and checkpoints; of the whole; of the steps alone; of the first epoch and of the others; and of all that
    is no step."""
    recipe, watch = recipe_from(work.settings), Silent()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe, Path(folder) / "run", device=device, progress=watch, data_dir=data_dir)
        whole, accuracy = time.perf_counter() - begin, run.metrics["test_accuracy"]
        epochs = [epoch["seconds"] for epoch in run.history]
    return {
        "dataset": recipe.dataset, "recipe": work.method, "method": recipe.method, "kind": recipe.network.kind,
        "widths": list(recipe.network.widths), "embedding": recipe.network.embedding, "batch": recipe.training.batch_size,
        "precision": recipe.training.precision, "schedule": watch.schedule, "epochs": work.epochs,
        "evaluate_every": work.evaluate_every, "accuracy": accuracy,
        "seconds": watch.seconds, "whole_seconds": whole, "steps_seconds": sum(epochs),
        "first_epoch_seconds": epochs[0], "epoch_seconds": statistics.median(epochs[1:]),
        "other_seconds": whole - sum(epochs),
    }  # fmt: skip


def measure(
    work: list[Training],
    device: torch.device,
    data_dir: Path | None,
    starts: int,
    say: Callable[[str], None],
    cache: MeasurementCache,
) -> Iterator[dict[str, Any]]:
    """Yield one entry of the result file for each training: the median of several starts, and the slowest beside it."""
    found: list[list[dict[str, Any]]] = [[] for _ in work]
    for number in range(1, starts + 1):
        say(f"trainings of CIFAR-10, start {number} of {starts} …")
        for lines, training in zip(found, work, strict=True):
            lines.append(new_process(training, device, data_dir, cache))
    yield from map(combined, found)


def new_process(work: Training, device: torch.device, data_dir: Path | None, cache: MeasurementCache) -> dict[str, Any]:
    """Measure a training in a new process."""
    return cache.measure(__name__, {"work": asdict(work), "device": str(device), "data_dir": data_dir and str(data_dir)})


def main() -> None:
    """Measure the training that comes through the standard input."""
    given = read_input()
    data_dir = given["data_dir"] and Path(given["data_dir"])
    print(json.dumps(measured(Training(**given["work"]), torch.device(given["device"]), data_dir)))
