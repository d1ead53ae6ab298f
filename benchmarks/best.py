"""Choose the recipes of `faustnet reproduce best`, on validation images: part of the training set, never the test set.

    python benchmarks/best.py add results/best-study.json cifar10/mlp --base tuned/cifar10/faust-representative \\
        'network.widths=[800,800,800,800]' data.flip=true         put in a trial: a recipe, with other values of some keys
    python benchmarks/best.py run results/best-study.json --jobs 6 --seconds 500   train those that have no figure yet
    python benchmarks/best.py show results/best-study.json        all of them, the best of every study first
    python benchmarks/best.py write results/best-study.json       write the best as recipes/best/DATASET/NAME.toml

A study is a recipe that is sought, DATASET/NAME, or its twin, DATASET/NAME-backprop. With --epochs a trial is shorter or
longer than the recipe that comes of it. The file is written after each trial; run again to continue.
"""

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

from faustnet.data import DATASETS
from faustnet.errors import FaustnetError, unknown
from faustnet.reproduce.jobs import on_validation
from faustnet.runs.recipes import (
    Recipe,
    assigned,
    changed,
    differences,
    kinds_of_recipes,
    put,
    recipe_from,
    shipped_recipe,
    shipped_recipes,
    to_toml,
)
from faustnet.system.devices import choose_device
from trials import RECIPES, Trial, best_of, read, run, save, write_recipe

FAMILY = "best/"


def recipe_of(study: str, base: str | None, changes: dict[str, Any]) -> Recipe:
    """What a trial is of: a recipe that comes with the package, or the defaults, with other values of some keys."""
    if base is not None and base not in shipped_recipes():
        raise unknown("recipe", base, shipped_recipes(), shown=kinds_of_recipes())
    recipe = Recipe() if base is None else recipe_from(shipped_recipe(base))
    return changed(recipe, {**changes, "dataset": study.split("/")[0]})


def trial_recipe(trial: Trial) -> Recipe:
    """As it is measured."""
    shorter = {"training.epochs": trial["epochs"]} if "epochs" in trial else {}
    return on_validation(recipe_of(trial["study"], trial["base"], trial["changes"] | shorter))


def stated(recipe: Recipe) -> dict[str, Any]:
    """The method, and the dotted keys that differ from its defaults."""
    found = differences(recipe, recipe_from({"method": recipe.method, "dataset": recipe.dataset}))
    return {"method": recipe.method, **{key: mine for key, (mine, _) in found.items()}}


def add(path: Path, study: str, base: str | None, assignments: list[str], epochs: int | None) -> None:
    """Put a trial into the file. One of a recipe among the best states all that it consists of, for they may change."""
    if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", study) or study.split("/")[0] not in DATASETS:
        raise FaustnetError(f"A study is DATASET/NAME, e.g. cifar10/mlp, with one of {', '.join(DATASETS)}; not {study!r}.")
    changes = dict(map(assigned, assignments))
    if base is not None and base.startswith(FAMILY):
        base, changes = None, stated(recipe_of(study, base, changes))
    trials = read(path)
    trial: Trial = {
        "study": study,
        "number": sum(other["study"] == study for other in trials),
        "base": base,
        "changes": changes,
        **({"epochs": epochs} if epochs else {}),
        "validation_accuracy": None,
    }
    recipe = trial_recipe(trial)  # says what is wrong with it
    trials.append(trial)
    save(path, trials)
    print(f"{study}, trial {trial['number']}: {recipe.method}, {recipe.training.epochs} epochs")


def line(trial: Trial) -> str:
    accuracy, seconds = trial["validation_accuracy"], trial.get("seconds", 0.0)
    figure = f"{'–':>7} {'':8}" if accuracy is None else f"{accuracy:7.2%} {seconds:6.1f} s"
    epochs = f" {trial['epochs']} epochs" if "epochs" in trial else ""
    return f"{trial['study']:30}{trial['number']:4} {figure}  {trial['base'] or '–'}{epochs} {json.dumps(trial['changes'])}"


def show(path: Path) -> None:
    for trial in sorted(read(path), key=lambda trial: (trial["study"], -(trial["validation_accuracy"] or 0.0))):
        print(line(trial))


def write(path: Path) -> None:
    for study, (best, count) in chosen(read(path)).items():
        write_recipe(RECIPES / f"{FAMILY}{study}.toml", recipe_text(best, count))


def chosen(trials: list[Trial]) -> dict[str, tuple[Trial, int]]:
    """Of every study that has figures: the best trial, and of how many."""
    measured: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial["validation_accuracy"] is not None:
            measured.setdefault(trial["study"], []).append(trial)
    return {study: (best_of(mine), len(mine)) for study, mine in measured.items()}


def recipe_text(best: Trial, count: int) -> str:
    """As a file: the command, how it was chosen, then what differs from the defaults."""
    recipe = recipe_of(best["study"], best["base"], best["changes"])
    after = f" after {best['epochs']} epochs" if "epochs" in best else ""
    lines = [
        f"# faustnet train --recipe {FAMILY}{best['study']}",
        f"# The best of {count} trials, {best['validation_accuracy']:.2%} of the validation images{after} "
        "(results/best-study.json).",
        *(["# Test accuracy, machine and time: RESULTS.md."] if recipe.dataset != "digits" else []),
    ]
    table: dict[str, Any] = {"dataset": recipe.dataset}
    for key, value in stated(recipe).items():
        put(table, key, value)
    return "\n".join(lines) + "\n" + to_toml(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["add", "run", "show", "write"])
    parser.add_argument("file", type=Path)
    parser.add_argument("study", nargs="?", default="", help="of the trial that is added")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="what is other than in the base")
    parser.add_argument("--base", help="a recipe that comes with the package (default: the defaults)")
    parser.add_argument("--epochs", type=int, help="of this trial alone")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no trial after that")
    given = parser.parse_intermixed_args()
    try:
        if given.verb == "add":
            add(given.file, given.study, given.base, given.changes, given.epochs)
        elif given.verb == "run":
            run(given.file, trial_recipe, line, given.jobs, choose_device(given.device).type, given.seconds)
        elif given.verb == "show":
            show(given.file)
        else:
            write(given.file)
    except FaustnetError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
