"""Choose the recipes of `faustnet reproduce few-shot` on validation episodes, whose alphabets are background alphabets of
Omniglot that are left out of the training. The evaluation alphabets are never read.

    python benchmarks/few_shot.py draw results/few-shot-study.json --trials 6 --epochs 8    add equal trials of every method
    python benchmarks/few_shot.py run results/few-shot-study.json --jobs 4 --seconds 300    train the trials without a result
    python benchmarks/few_shot.py vary results/few-shot-study.json                          add variations of the best trials
    python benchmarks/few_shot.py show results/few-shot-study.json                          list all trials, the best first
    python benchmarks/few_shot.py write results/few-shot-study.json --epochs 20             write recipes/few-shot/omniglot/

`draw` adds the same random settings to every method: as many trials, of one search space, by one sampler. The first trial
has the base settings. `vary` adds longer and deeper trainings with the best settings of every method; they are reported, but
`write` does not choose them. The result of a trial is the mean accuracy over the tasks of `reproduce few-shot` by the best
of several readouts: which layers are compared, and for backprop whether their features are normalised. `write` writes the
recipe of the best trial of each method, with its readout, and the numbers of trials and of readouts to
recipes/few-shot/choices.json. The file of trials is written after each trial; run the command again to continue.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from faustnet.data import DataSet
from faustnet.data.omniglot import alphabet_of
from faustnet.errors import FaustnetError
from faustnet.methods import Faust
from faustnet.reproduce.few_shot import DATASET, FAMILY, METHODS, TASKS
from faustnet.reproduce.worker import cached_data
from faustnet.runs.few_shot import all_images, measure_task, model_features
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, differences, put, recipe_from, to_toml
from faustnet.runs.recipes.files import CHOICES
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.system.environment import environment
from faustnet.training.loop import Diverged
from trials import (
    EQUAL,
    RECIPES,
    Trial,
    best_of,
    is_open,
    outcome,
    print_left,
    read,
    read_existing,
    record,
    results_of,
    save,
    write_recipe,
)

VALIDATION = (  # every fifth background alphabet, from the second one
    "Anglo-Saxon_Futhorc", "Bengali", "Early_Aramaic", "Hebrew", "Latin", "Sanskrit"
)  # fmt: skip
EPISODES = 400  # of each task
SETTINGS = 8  # that are drawn
SCALE = 8.0  # of FAUST

# The network and the augmentation of best/mnist/cnn.
BASE: dict[str, Any] = {
    "dataset": "omniglot-rotated",
    "network.kind": "residual",
    "network.widths": [64, 128, 256],
    "network.pools": [1, 2, 3],
    "network.length": "unit",
    "network.dropout": 0.1,
    "data.crop": 2,
    "data.rotation": 10.0,
    "data.zoom": 0.1,
    "optimiser.name": "muon",
    "optimiser.learning_rate": 0.008,
    "optimiser.warmup": 0.1,
    "optimiser.weight_decay": 0.05,
    "training.batch_size": 512,
    "training.precision": "bfloat16",
}
# Options that the methods do not share. FAUST-representative compares the images of a batch with one drawing of each of
# their classes in a step: those of all 3,856 classes would be too many.
OWN: dict[str, dict[str, Any]] = {
    "faust-representative": {
        "options.scale": SCALE,
        "options.representatives": 5,
        "options.representatives_per_step": 1,
        "options.classes_per_step": "batch",
    },
    "faust-prototype": {"options.scale": SCALE},
    "backprop": {},
}

VARIATIONS: dict[str, dict[str, Any]] = {  # of the best trials: changes, with the number of epochs
    "40 epochs": {"training.epochs": 40},
    "40 epochs, 4 layers": {
        "training.epochs": 40,
        "network.widths": [64, 128, 256, 512],
        "network.pools": [1, 2, 3, 4],
    },
}


def draws(count: int) -> list[dict[str, Any]]:
    """Draw settings from the search space, the same for all methods. The first trial has the base settings. For the others,
    the range of each setting is divided into parts of the same size, and each part is drawn from once (Latin hypercube
    sampling). `options.scale`, which backprop does not have, is left out for it."""
    generator, others = random.Random(DATASET), count - 1
    parts = [generator.sample(range(others), others) for _ in range(SETTINGS)]
    return [{}, *(_settings([(part + generator.random()) / others for part in each]) for each in zip(*parts, strict=True))]


def _settings(shares: Sequence[float]) -> dict[str, Any]:
    """Return the settings at these places in their ranges, each from 0 to 1."""
    rate, decay, dropout, smoothing, scale, crop, rotation, zoom = shares
    return {
        "optimiser.learning_rate": _rounded(BASE["optimiser.learning_rate"] * 2 ** (4 * rate - 2)),
        "optimiser.weight_decay": _rounded(10 ** (2 * decay - 2.5)),
        "network.dropout": _rounded(0.4 * dropout),
        "options.label_smoothing": _rounded(0.2 * smoothing),
        "options.scale": _rounded(SCALE * 2 ** (3 * scale - 1.5)),
        "data.crop": 1 + int(3 * crop),
        "data.rotation": _rounded(5 + 15 * rotation),
        "data.zoom": _rounded(0.05 + 0.2 * zoom),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def recipe_of(trial: Trial, epochs: int) -> Recipe:
    """Return the recipe of a trial with this number of epochs."""
    table: dict[str, Any] = {"method": trial["study"]}
    changes = {"training.epochs": epochs, "training.evaluate_every": epochs, **trial["changes"]}
    for key, value in {**BASE, **OWN[trial["study"]], **changes}.items():
        if key != "options.scale" or trial["study"] != "backprop":
            put(table, key, value)
    return recipe_from(table)


def trial_recipe(trial: Trial) -> Recipe:
    """Return the recipe that is trained to measure a trial."""
    return recipe_of(trial, trial["epochs"])


def split(data: DataSet) -> tuple[DataSet, DataSet]:
    """Return the data of the alphabets to train on, and of the validation alphabets."""
    held_out = [name for name in data.class_names if alphabet_of(name) in VALIDATION]
    return data.only([name for name in data.class_names if name not in set(held_out)]), data.only(held_out)


def run(path: Path, jobs: int, device: str, seconds: float) -> None:
    """Train the trials without a result, beginning with the first of every method, `jobs` at the same time. The file is
    written after each trial. No trial is started after the given seconds. A trial that fails is stored with the reason, and
    trained again by the next call."""
    waiting = sorted(filter(is_open, read_existing(path)), key=lambda one: one["number"])
    calls = [(trial_recipe(trial), device) for trial in waiting]
    failed = 0
    for number, result in results_of(measure, calls, [1] * len(calls), jobs, seconds):
        failed += result["validation_accuracy"] is None
        print(line(record(path, waiting[number], result)), flush=True)
    print_left(path)
    if failed:
        raise SystemExit(f"{failed} trials failed; {path} has the reasons, and the same command trains them again.")


def measure(recipe: Recipe, device: str) -> dict[str, Any]:
    """Return the result of a trial. A trial that diverged has an accuracy of 0; one that failed otherwise has none."""
    begin, where = time.perf_counter(), torch.device(device)
    try:
        model, trainer = set_up(recipe, split(cached_data(recipe.dataset, None))[0], where)
        trainer.run(lambda: None, lambda epoch: None)
        found = best_readout(model, split(cached_data(DATASET, None))[1])
    except Diverged as error:
        found = {"validation_accuracy": 0.0, "failed": str(error)}
    except Exception as error:  # whatever it is, the other trials go on
        found = {"validation_accuracy": None, "failed": f"{type(error).__name__}: {error}"}
    seconds = round(time.perf_counter() - begin, 2)
    return {**found, "seconds": seconds, "environment": environment(where, recipe.seed)}


def best_readout(model: Model, data: DataSet) -> dict[str, Any]:
    """Return the accuracies of the best readout on episodes of these classes, and the mean accuracy of every readout."""
    images = all_images(data).to(model.device)
    found = []
    for readout in readouts(model):
        features = model_features(model, images, **readout)
        tasks = [measure_task(features, task, images.labels, data.class_names, EPISODES, 0)["mean"] for task in TASKS]
        found.append({"readout": readout, "accuracy": sum(tasks) / len(tasks), "tasks": tasks})
    best = max(found, key=lambda one: one["accuracy"])
    means = [{**one["readout"], "accuracy": round(one["accuracy"], 5)} for one in found]
    tasks = {str(task): round(accuracy, 5) for task, accuracy in zip(TASKS, best["tasks"], strict=True)}
    return {"validation_accuracy": round(best["accuracy"], 5), "readout": best["readout"], "tasks": tasks, "readouts": means}


def readouts(model: Model) -> list[dict[str, Any]]:
    """Return the readouts to choose from, as arguments of `model_features`: all ranges of layers. The features of other
    methods than FAUST may be normalised or not."""
    count = len(model.method.network)
    ranges = [list(range(first, last + 1)) for first in range(1, count + 1) for last in range(first, count + 1)]
    if isinstance(model.method, Faust):
        return [{"layers": layers} for layers in ranges]
    return [{"layers": layers, "unit": unit} for layers in ranges for unit in (True, False)]


def draw(path: Path, count: int, epochs: int, methods: list[str]) -> None:
    """Add trials with the same drawn settings to the studies of all methods."""
    trials = read(path)
    if trials:
        raise FaustnetError(f"{path} has trials already: run them, or move the file.")
    for method in methods:
        for number, changes in enumerate(draws(count)):
            trial = {"study": method, "number": number, "changes": changes, "epochs": epochs, "validation_accuracy": None}
            trial_recipe(trial)  # raises an error if the trial is invalid
            trials.append(trial)
    save(path, trials)
    print(f"{count} trials of each of {', '.join(methods)}")


def vary(path: Path) -> None:
    """Add the variations of the best trial of every method."""
    trials = read(path)
    if any("variation" in trial for trial in trials):
        raise FaustnetError(f"{path} has variations already: run them.")
    for method, (best, _) in chosen(trials).items():
        for title, changes in VARIATIONS.items():
            others = {key: value for key, value in changes.items() if key != "training.epochs"}
            number = 1 + max(trial["number"] for trial in trials if trial["study"] == method)
            trial = {"study": method, "number": number, "variation": title, "changes": {**best["changes"], **others},
                     "epochs": changes["training.epochs"], "validation_accuracy": None}  # fmt: skip
            trial_recipe(trial)  # raises an error if the trial is invalid
            trials.append(trial)
    save(path, trials)


def line(trial: Trial) -> str:
    shown = " ".join(f"{100 * one:.2f}" for one in trial.get("tasks", {}).values())
    about = f"{json.dumps(trial.get('readout'))} {json.dumps(trial['changes'])}"
    about = f"({trial['variation']}) {about}" if "variation" in trial else about
    return f"{trial['study']:21}{trial['number']:3} {outcome(trial)}  {shown} {about}"


def show(path: Path) -> None:
    for trial in sorted(read_existing(path), key=lambda trial: (trial["study"], -(trial["validation_accuracy"] or 0.0))):
        print(line(trial))


def chosen(trials: list[Trial]) -> dict[str, tuple[Trial, int]]:
    """Return the best trial and the number of trials of every method with results, without variations."""
    measured = [trial for trial in trials if trial["validation_accuracy"] is not None and "variation" not in trial]
    studies = {method: [trial for trial in measured if trial["study"] == method] for method in METHODS}
    return {method: (best_of(mine), len(mine)) for method, mine in studies.items() if mine}


def write(path: Path, epochs: int) -> None:
    trials, found = read_existing(path), {}
    missing = sum(trial["validation_accuracy"] is None for trial in trials)
    if missing:
        raise FaustnetError(f"{missing} of {len(trials)} trials in {path} have no result: run them first.")
    for method, (best, count) in chosen(trials).items():
        write_recipe(RECIPES / FAMILY / DATASET / f"{method}.toml", recipe_text(best, count, epochs))
        found[f"{DATASET}/{method}"] = choice(best, count)
    write_recipe(RECIPES / FAMILY / CHOICES, json.dumps(found, indent=1) + "\n")


def choice(best: Trial, count: int) -> dict[str, Any]:
    """Return how a recipe was chosen. The readout of FAUST is in the recipe: prediction.weights."""
    is_faust = best["study"] != "backprop"
    own = {} if is_faust else {"readout": best["readout"]}
    return {"tuning": EQUAL, "trials": count, "readouts": len(best["readouts"]), **own}


def recipe_text(best: Trial, count: int, epochs: int) -> str:
    """Return the text of the recipe file: the command, how it was chosen, and the keys that differ from the defaults."""
    recipe, name = recipe_of(best, epochs), f"{FAMILY}/{DATASET}/{best['study']}"
    lines = [
        f"# faustnet train --recipe {name}",
        f"# The best of {count} trials, {best['validation_accuracy']:.2%} of the images in validation episodes after "
        f"{best['epochs']} epochs",
        f"# (results/{FAMILY}-study.json). Accuracy on new alphabets: results/{FAMILY}.md.",
    ]
    table: dict[str, Any] = {"dataset": recipe.dataset, "method": recipe.method}
    for key, (mine, _) in differences(recipe, recipe_from({"method": recipe.method, "dataset": recipe.dataset})).items():
        put(table, key, mine)
    layers, every = best["readout"]["layers"], range(1, len(recipe.network.widths) + 1)
    if recipe.method != "backprop" and layers != list(every):
        put(table, "prediction.weights", [1.0 if number in layers else 0.0 for number in every])
    return "\n".join(lines) + "\n" + to_toml(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["draw", "run", "vary", "show", "write"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--trials", type=int, default=6, help="trials of each method")
    parser.add_argument("--epochs", type=int, help="epochs of each trial, 8, or of the recipes to write, 20")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no new trial after this time")
    given = parser.parse_args()
    try:
        if given.verb == "draw":
            draw(given.file, given.trials, 8 if given.epochs is None else given.epochs, given.methods.split(","))
        elif given.verb == "run":
            run(given.file, given.jobs, choose_device(given.device).type, given.seconds)
        elif given.verb == "vary":
            vary(given.file)
        elif given.verb == "show":
            show(given.file)
        else:
            write(given.file, 20 if given.epochs is None else given.epochs)
    except FaustnetError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
