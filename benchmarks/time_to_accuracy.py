"""Measure how many seconds of training an accuracy on CIFAR-10 takes, by FAUST and by backprop, side by side on one GPU.

    python benchmarks/time_to_accuracy.py FILE --data-dir DIR --validation --only cnn:14:0.02 cnn:14:0.03    choose the rate
    python benchmarks/time_to_accuracy.py FILE --data-dir DIR --only cnn:14:0.03                             measure

FILE is results/time-to-accuracy-h200.json. Each arm is a recipe with other numbers of epochs, and where it says so other
settings. The seconds are those of the training steps, with the recording of CUDA graphs and without evaluations; the
accuracy is that of the last epoch on the test images, or on training images that are kept apart. Before, each arm trains for
one epoch that is not measured, because kernels are compiled once on a machine. The file is written after each run; run the
command again to continue. Runs of another commit are measured again.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from faustnet.bench.trainings import Silent
from faustnet.reproduce.jobs import on_validation
from faustnet.reproduce.worker import cached_data
from faustnet.runs.recipes import Recipe, as_table, put, read_recipe, recipe_from
from faustnet.runs.session import set_up, train
from faustnet.system.environment import environment
from faustnet.system.files import write_whole
from faustnet.training.history import Epoch

CHEAP = {"options.representatives_per_step": 1, "network.head": 192}  # fewer rows, and fewer channels in the heads
DEVICE = torch.device("cuda")
ROOT = Path(__file__).parents[1]
ARMS: dict[str, tuple[str, dict[str, Any]]] = {  # a recipe of the package or a file, and changed settings
    "cnn": ("benchmarks/time_to_accuracy-cnn.toml", CHEAP),
    "cnn-backprop": ("benchmarks/time_to_accuracy-cnn-backprop.toml", {}),
    "cnn-large": ("best/cifar10/cnn-large", CHEAP | {"optimiser.learning_rate": 0.02}),
    "cnn-large-backprop": ("best/cifar10/cnn-large-backprop", {}),
}
COPIES = {  # files, by the recipes that they were copied from
    "benchmarks/time_to_accuracy-cnn.toml": "best/cifar10/cnn",
    "benchmarks/time_to_accuracy-cnn-backprop.toml": "best/cifar10/cnn-backprop",
}
WANTED = ("cnn:15", "cnn-backprop:18", "cnn-large:50", "cnn-large-backprop:58")


@dataclass(frozen=True)
class Work:
    """A training of an arm, written as ARM:EPOCHS, or ARM:EPOCHS:RATE with another learning rate."""

    arm: str
    epochs: int
    rate: float
    seed: int

    @classmethod
    def read(cls, text: str, seed: int) -> "Work":
        arm, epochs, *rate = text.split(":")
        if arm not in ARMS or not epochs.isdigit() or int(epochs) < 2 or len(rate) > 1:
            raise ValueError(
                f"--only must be ARM:EPOCHS or ARM:EPOCHS:RATE, with an arm of {', '.join(ARMS)} and at least 2 epochs, of "
                f"which the first is measured by itself; got {text}."
            )
        return cls(arm, int(epochs), float(rate[0]) if rate else recipe_of(arm).optimiser.learning_rate, seed)

    @classmethod
    def of(cls, line: dict[str, Any]) -> "Work":
        """Return the work of a line of the result file."""
        return cls(line["arm"], line["epochs"], line["recipe"]["optimiser"]["learning_rate"], line["seed"])

    @property
    def recipe(self) -> Recipe:
        changes = {"training.epochs": self.epochs, "training.evaluate_every": self.epochs, "seed": self.seed}
        return recipe_of(self.arm, {"optimiser.learning_rate": self.rate, **changes})


def recipe_of(arm: str, changes: dict[str, Any] | None = None) -> Recipe:
    name, own = ARMS[arm]
    settings = read_recipe(ROOT / name if name.endswith(".toml") else name)
    for key, value in {**own, **(changes or {})}.items():
        put(settings, key, value)
    return recipe_from(settings)


def tested(recipe: Recipe, data_dir: Path | None) -> tuple[list[Epoch], float]:
    """Train a run, and return its history, and its accuracy on the test images."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe, Path(folder) / "run", device=DEVICE, progress=Silent(), data_dir=data_dir)
        return [Epoch(**epoch) for epoch in run.history], run.metrics["test_accuracy"]


def validated(recipe: Recipe, data_dir: Path | None) -> tuple[list[Epoch], float]:
    """Train without 5,000 of the training images, and return the history, and the accuracy on these images."""
    _, trainer = set_up(on_validation(recipe), cached_data(recipe.dataset, data_dir), DEVICE)
    trainer.run(lambda: None, lambda epoch: None)
    accuracy = trainer.history[-1].accuracy
    assert accuracy is not None
    return trainer.history, accuracy


def line_of(work: Work, history: list[Epoch], accuracy: float) -> dict[str, Any]:
    """Return the line of a run in the result file."""
    seconds = [epoch.seconds for epoch in history]
    return {
        "arm": work.arm, "epochs": work.epochs, "seed": work.seed, "accuracy": accuracy,
        "seconds": sum(seconds), "first_epoch_seconds": seconds[0], "epoch_seconds": statistics.median(seconds[1:]),
        "recipe": as_table(work.recipe), "environment": environment(DEVICE, work.seed),
    }  # fmt: skip


def table(lines: list[dict[str, Any]]) -> str:
    """Return the means over the seeds as text."""
    rows = []
    groups: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
    for line in lines:
        work = Work.of(line)
        groups.setdefault((work.arm, work.epochs, work.rate), []).append(line)
    for (arm, epochs, rate), runs in groups.items():
        accuracy, seconds, epoch = (
            statistics.mean(run[key] for run in runs) for key in ("accuracy", "seconds", "epoch_seconds")
        )
        rows.append(
            f"{arm:20} {epochs:3} epochs at {rate:<6g} {accuracy:.2%} of {len(runs)} seeds  {seconds:6.1f} s  "
            f"{epoch:.3f} s an epoch"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-dir", type=Path, help="folder of the data set")
    parser.add_argument("--only", nargs="+", default=WANTED, help="ARM:EPOCHS, or ARM:EPOCHS:RATE with a learning rate")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--validation", action="store_true", help="measure on training images that are kept apart")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    try:
        wanted = [Work.read(text, seed) for seed in seeds for text in given.only]
    except ValueError as error:
        parser.error(str(error))
    found: dict[str, Any] = json.loads(given.file.read_text()) if given.file.exists() else {"runs": []}
    where = environment(DEVICE, seed=0)
    part = "validation" if given.validation else "runs"
    lines = found.setdefault(part, [])
    known = {Work.of(line) for line in lines if line["environment"]["commit"] == where["commit"]}
    missing = [work for work in wanted if work not in known]
    trained = validated if given.validation else tested
    for arm in dict.fromkeys(work.arm for work in missing):
        trained(recipe_of(arm, {"training.epochs": 1, "training.evaluate_every": 1}), given.data_dir)
    for work in missing:
        line = line_of(work, *trained(work.recipe, given.data_dir))
        lines = found[part] = [other for other in lines if Work.of(other) != work] + [line]
        found["environment"] = where  # of the latest runs
        write_whole(given.file, (json.dumps(found, indent=1) + "\n").encode())
    print(table(lines))


if __name__ == "__main__":
    main()
