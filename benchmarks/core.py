"""Train the core methods on the CPU with several seeds and write the results to one file.

    python benchmarks/core.py results/core.json      train the missing runs (needs FAUSTNET_DATA), 15 minutes

Every run is an included recipe in which only the method or the seed is changed. The result is the test accuracy after the
last epoch; nothing was chosen on the test images. The file is written after each run; run the command again to continue.
"""

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.recipes import as_table, read_recipe, recipe_from
from faustnet.runs.session import train
from faustnet.system.files import write_whole

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
        run = train(recipe, Path(folder) / "run", device=torch.device("cpu"), progress=ConsoleProgress())
        environment = run.read("environment.json")
        result = {key: run.metrics[key] for key in KEPT}
    return {"recipe_name": recipe_name, "method": method, "seed": seed, **result,
            "recipe": as_table(recipe), "environment": environment}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    runs = json.loads(arguments.file.read_text()) if arguments.file.exists() else []
    done = {(run["recipe_name"], run["method"], run["seed"]) for run in runs}
    for wanted in WANTED:
        if wanted not in done:
            runs.append(measure(*wanted))
            arguments.file.parent.mkdir(exist_ok=True)
            write_whole(arguments.file, (json.dumps(runs, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
