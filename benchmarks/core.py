"""Train the core methods on the CPU with several seeds, and keep what came of it in one file.

    python benchmarks/core.py results/core.json      train what is not in the file yet (needs FAUSTNET_DATA), 15 minutes
    python benchmarks/core.py results/core.json --table      print its table, which the README shows

Every run is a recipe that comes with the package, with another method or seed and nothing else changed. It reports the
last epoch, on the test images, which nothing was chosen on. The file is written after each run; run again to continue.
"""

import argparse
import json
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

from faustnet.progress import Lines
from faustnet.recipes import as_table, read_recipe, recipe_from
from faustnet.runs import train

SEEDS = (0, 1, 2)
METHODS = ("backprop", "forward-forward", "faust-triplet", "faust-tuplet", "faust-representative")
KEPT = ("test_accuracy", "layer_accuracy", "forward_passes", "epochs", "train_seconds", "parameters")
WANTED = [
    *product(["digits"], METHODS, SEEDS),
    *product(["mnist", "cifar10"], ["backprop", "forward-forward", "faust-representative"], SEEDS),
]


def measure(recipe_name: str, method: str, seed: int) -> dict[str, Any]:
    recipe = recipe_from(read_recipe(recipe_name) | {"method": method, "seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe, Path(folder) / "run", device=torch.device("cpu"), progress=Lines())
        environment = run.read("environment.json")
        result = {key: run.metrics[key] for key in KEPT}
    return {"recipe_name": recipe_name, "method": method, "seed": seed, **result,
            "recipe": as_table(recipe), "environment": environment}  # fmt: skip


def table(runs: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation over the seeds, as Markdown."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["method"], run["recipe_name"]), []).append(run)
    recipes = list(dict.fromkeys(recipe for _, recipe in found))
    epochs = {run["recipe_name"]: run["epochs"] for run in runs}
    lines = ["| method | " + " | ".join(f"{recipe}, {epochs[recipe]} epochs" for recipe in recipes) + " |"]
    lines.append("| --- |" + " ---: |" * len(recipes))
    for method in METHODS:
        cells = []
        for recipe in recipes:
            accuracies = [100 * run["test_accuracy"] for run in found.get((method, recipe), [])]
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            cells.append(f"{statistics.mean(accuracies):.2f} ± {spread:.2f}" if accuracies else "–")
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    runs = json.loads(arguments.file.read_text()) if arguments.file.exists() else []
    done = {(run["recipe_name"], run["method"], run["seed"]) for run in runs}
    for wanted in WANTED if not arguments.table else []:
        if wanted not in done:
            runs.append(measure(*wanted))
            arguments.file.parent.mkdir(exist_ok=True)
            arguments.file.write_text(json.dumps(runs, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
