"""Measure how many seconds of training an accuracy on CIFAR-10 takes, by FAUST and by backprop, side by side on one GPU.

    python benchmarks/time_to_accuracy.py results/time-to-accuracy-h200.json --data-dir DIR [--only cnn:15]

Each arm is a recipe with other numbers of epochs, and where it says so other settings. The seconds are those of
the training steps, with the recording of CUDA graphs and without evaluations; the accuracy is that of the last epoch on the
test images. Before, each arm trains for one epoch that is not measured, because kernels are compiled once on a machine. The
file is written after each run; run the command again to continue. Runs of another commit are measured again.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from faustnet.bench.trainings import Silent
from faustnet.runs.recipes import Recipe, as_table, put, read_recipe, recipe_from
from faustnet.runs.session import train
from faustnet.system.environment import environment
from faustnet.system.files import write_whole

CHEAP = {"options.representatives_per_step": 1, "network.head": 192}  # fewer rows, and fewer channels in the heads
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


def recipe_of(arm: str, epochs: int, seed: int) -> Recipe:
    name, changes = ARMS[arm]
    settings = read_recipe(ROOT / name if name.endswith(".toml") else name)
    for key, value in (changes | {"training.epochs": epochs, "training.evaluate_every": epochs, "seed": seed}).items():
        put(settings, key, value)
    return recipe_from(settings)


def trained(arm: str, epochs: int, seed: int, data_dir: Path | None) -> tuple[Recipe, dict[str, Any], list[dict[str, Any]]]:
    """Train one run, and return its recipe, metrics and history."""
    recipe = recipe_of(arm, epochs, seed)
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe, Path(folder) / "run", device=torch.device("cuda"), progress=Silent(), data_dir=data_dir)
        return recipe, run.metrics, run.history


def measured(arm: str, epochs: int, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """Train one run, and return its line of the result file."""
    recipe, metrics, history = trained(arm, epochs, seed, data_dir)
    seconds = [epoch["seconds"] for epoch in history]
    return {
        "arm": arm, "epochs": epochs, "seed": seed, "accuracy": metrics["test_accuracy"],
        "seconds": sum(seconds), "first_epoch_seconds": seconds[0], "epoch_seconds": statistics.median(seconds[1:]),
        "recipe": as_table(recipe), "environment": environment(torch.device("cuda"), seed),
    }  # fmt: skip


def run_of(line: dict[str, Any]) -> tuple[str, int, int]:
    """Return the arm, the number of epochs and the seed of a line."""
    return line["arm"], line["epochs"], line["seed"]


def table(lines: list[dict[str, Any]]) -> str:
    """Return the means over the seeds as text."""
    rows = []
    for arm, epochs in dict.fromkeys((line["arm"], line["epochs"]) for line in lines):
        runs = [line for line in lines if (line["arm"], line["epochs"]) == (arm, epochs)]
        accuracy, seconds, epoch = (
            statistics.mean(run[key] for run in runs) for key in ("accuracy", "seconds", "epoch_seconds")
        )
        rows.append(
            f"{arm:20} {epochs:3} epochs  {accuracy:.2%} of {len(runs)} seeds  {seconds:6.1f} s  {epoch:.3f} s an epoch"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-dir", type=Path, help="folder of the data set")
    parser.add_argument("--only", nargs="+", default=WANTED, help="arms and numbers of epochs, ARM:EPOCHS")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    given = parser.parse_args()
    found = json.loads(given.file.read_text()) if given.file.exists() else {"runs": []}
    found["environment"] = environment(torch.device("cuda"), seed=0)  # of the latest runs
    commit = found["environment"]["commit"]
    known = {run_of(line) for line in found["runs"] if line["environment"]["commit"] == commit}
    wanted = [(arm, int(epochs)) for arm, epochs in (one.split(":") for one in given.only)]
    if min(epochs for _, epochs in wanted) < 2:
        parser.error("--only needs at least 2 epochs: the first one is measured by itself")
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    missing = [(*one, seed) for seed in seeds for one in wanted if (*one, seed) not in known]
    for arm in dict.fromkeys(arm for arm, _, _ in missing):
        trained(arm, 1, 0, given.data_dir)  # not measured: it compiles the kernels
    for work in missing:
        line = measured(*work, given.data_dir)
        found["runs"] = [other for other in found["runs"] if run_of(other) != work] + [line]
        write_whole(given.file, (json.dumps(found, indent=1) + "\n").encode())
    print(table(found["runs"]))


if __name__ == "__main__":
    main()
