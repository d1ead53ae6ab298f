"""Compare values of two defaults: the scale of FAUST's distances and the norm of Forward-Forward's label vector.

    python benchmarks/defaults.py results/defaults.json      train the missing runs (needs FAUSTNET_DATA)

Each value trains the included recipes of MNIST and CIFAR-10 and is evaluated on 5,000 training images that are held out.
The test images are not used. The file is written after each run; run the command again to continue.
"""

import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.recipes import read_recipe, recipe_from
from faustnet.runs.session import train
from faustnet.system.files import write_whole

STUDIES = {
    ("faust-representative", "scale"): (0.005, 0.01, 0.02, 0.05, 0.1, 1.0),
    ("forward-forward", "label_length"): (0.125, 0.25, 0.5, 1.0),
}


def measure(recipe_name: str, method: str, option: str, value: float) -> dict[str, Any]:
    table = read_recipe(recipe_name) | {"method": method, "options": {option: value}}
    table["training"] = table["training"] | {"epochs": 4, "validation": 5000}
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe_from(table), Path(folder) / "run", device=torch.device("cpu"), progress=ConsoleProgress())
        accuracy, environment = run.metrics["validation_accuracy"], run.read("environment.json")
    entry = {"recipe_name": recipe_name, "method": method, "option": option, "value": value, "epochs": 4}
    return entry | {"validation_accuracy": accuracy, "environment": environment}


def main(path: Path) -> None:
    found = json.loads(path.read_text()) if path.exists() else []
    done = {(entry["recipe_name"], entry["method"], entry["value"]) for entry in found}
    for (method, option), values in STUDIES.items():
        for recipe_name, value in product(["mnist", "cifar10"], values):
            if (recipe_name, method, value) not in done:
                found.append(measure(recipe_name, method, option, value))
                write_whole(path, (json.dumps(found, indent=1) + "\n").encode())
    for entry in found:
        what = f"{entry['method']} {entry['option']} {entry['value']}"
        print(f"{what:40} {entry['recipe_name']:8} {entry['validation_accuracy']:.2%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
