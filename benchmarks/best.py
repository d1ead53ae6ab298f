"""Choose the recipes of `faustnet reproduce best` on validation images, which are a part of the training set.

    python benchmarks/best.py add results/best-study.json cifar10/mlp --base tuned/cifar10/faust-representative \\
        'network.widths=[800,800,800,800]' data.flip=true         add a trial: a recipe with some changed keys
    python benchmarks/best.py draw results/best-study.json cifar10/mlp --base best/cifar10/mlp --trials 10 --epochs 100
                                                                  add equal trials of FAUST, backprop and deep supervision
    python benchmarks/best.py run results/best-study.json --jobs 6 --seconds 500   train the trials without a result
    python benchmarks/best.py show results/best-study.json        list all trials, the best of every study first
    python benchmarks/best.py write results/best-study.json       write the best trials to recipes/best/DATASET/NAME.toml

A study is the search for one recipe, DATASET/NAME, or its twin, DATASET/NAME-backprop. With --epochs, a trial is shorter
or longer than the final recipe. `draw` adds the same random settings (benchmarks/search.py) to a study and to its twins
with the endings -backprop and -deep-supervision; once all of them have ended, the recipe is the best of them, and no other
trial counts. `run` trains up to --jobs dense networks at the same time, or two other networks; with the name of a
study, it trains only this study and its twins. `write` also writes how many trials there were, to
recipes/best/choices.json, and names the studies that lack results of trials. The file is written after each trial; run
the command again to continue.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faustnet.data import DATASETS
from faustnet.errors import FaustnetError, unknown
from faustnet.reproduce.best import original
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
from faustnet.runs.recipes.files import CHOICES
from faustnet.system.devices import choose_device
from search import ARMS, arm, draws
from trials import (
    EQUAL,
    LEARNING_RATE,
    RECIPES,
    Trial,
    best_of,
    is_open,
    outcome,
    read,
    read_existing,
    run,
    save,
    write_recipe,
)

FAMILY = "best/"


def recipe_of(study: str, base: str | None, changes: dict[str, Any]) -> Recipe:
    """Return the recipe of a trial: an included recipe or the defaults, with some changed keys."""
    if base is not None and base not in shipped_recipes():
        raise unknown("recipe", base, shipped_recipes(), shown=kinds_of_recipes())
    recipe = Recipe() if base is None else recipe_from(shipped_recipe(base))
    return changed(recipe, {**changes, "dataset": study.split("/")[0]})


def trial_recipe(trial: Trial) -> Recipe:
    """Return the recipe that is trained to measure a trial."""
    shorter = {"training.epochs": trial["epochs"]} if "epochs" in trial else {}
    return on_validation(recipe_of(trial["study"], trial["base"], trial["changes"] | shorter))


def stated(recipe: Recipe) -> dict[str, Any]:
    """Return the method and the dotted keys that differ from its defaults."""
    found = differences(recipe, recipe_from({"method": recipe.method, "dataset": recipe.dataset}))
    return {"method": recipe.method, **{key: mine for key, (mine, _) in found.items()}}


def check_study(study: str) -> None:
    if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", study) or study.split("/")[0] not in DATASETS:
        raise FaustnetError(f"A study is DATASET/NAME, e.g. cifar10/mlp, with one of {', '.join(DATASETS)}; not {study!r}.")


def add(path: Path, study: str, base: str | None, assignments: list[str], epochs: int | None) -> None:
    """Add a trial to the file. A trial based on a best/ recipe stores all its keys, because that recipe may change."""
    check_study(study)
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
    recipe = trial_recipe(trial)  # raises an error if the trial is invalid
    trials.append(trial)
    save(path, trials)
    print(f"{study}, trial {trial['number']}: {recipe.method}, {recipe.training.epochs} epochs")


def draw(path: Path, study: str, base: str | None, assignments: list[str], count: int, epochs: int | None) -> None:
    """Add trials with the same drawn settings to a study and to its twins. They are marked as equal tuning."""
    check_study(study)
    recipe, trials = recipe_of(study, base, dict(map(assigned, assignments))), read(path)
    if any(trial["study"] == study and trial.get("tuning") == EQUAL for trial in trials):
        raise FaustnetError(f"{path} has drawn trials of {study} already: run them, or remove them from the file.")
    for ending, method in ARMS.items():
        first = sum(other["study"] == study + ending for other in trials)
        for number, settings in enumerate(draws(study, recipe, count), start=first):
            trials.append(
                {
                    "study": study + ending,
                    "number": number,
                    "base": None,
                    "changes": stated(changed(arm(recipe, method), settings)),
                    **({"epochs": epochs} if epochs else {}),
                    "tuning": EQUAL,
                    "validation_accuracy": None,
                }
            )
        print(f"{study}{ending}: {count} trials")
    save(path, trials)


def line(trial: Trial) -> str:
    epochs = f" {trial['epochs']} epochs" if "epochs" in trial else ""
    settings = f"{trial['base'] or '–'}{epochs} {json.dumps(trial['changes'])}"
    return f"{trial['study']:30}{trial['number']:4} {outcome(trial)}  {settings}"


def wanted(study: str, trials: list[Trial]) -> Callable[[Trial], bool]:
    """Return which trials are of a study or of its twins; all, if it is empty. A study without trials is an error."""
    names, known = {study + ending for ending in ARMS}, {trial["study"] for trial in trials}
    if study and trials and not names & known:
        raise unknown("study", study, sorted(set(map(original, known))))
    return lambda trial: not study or trial["study"] in names


def show(path: Path) -> None:
    for trial in sorted(read_existing(path), key=lambda trial: (trial["study"], -(trial["validation_accuracy"] or 0.0))):
        print(line(trial))


def write(path: Path) -> None:
    found, trials = {}, read_existing(path)
    for study, (best, count) in chosen(trials).items():
        write_recipe(RECIPES / f"{FAMILY}{study}.toml", recipe_text(best, count))
        found[study] = {"tuning": best.get("tuning", LEARNING_RATE), "trials": count}
    write_recipe(RECIPES / FAMILY / CHOICES, json.dumps(found, indent=1) + "\n")
    for sentence in unfinished(trials):
        print(sentence)


def unfinished(trials: list[Trial]) -> Iterator[str]:
    """Name the studies that are not chosen from their equal trials, or not at all, with the number of trials they lack."""
    found = chosen(trials)
    for study in dict.fromkeys(trial["study"] for trial in trials):
        mine = [trial for trial in trials if trial["study"] == study]
        if equal := any(trial.get("tuning") == EQUAL for trial in mine):
            arms = [trial for trial in trials if original(trial["study"]) == original(study)]
            mine = [trial for trial in arms if trial.get("tuning") == EQUAL]
        count = f"{sum(map(is_open, mine))} of {len(mine)} {'equal trials of all arms' if equal else 'trials'}"
        if study not in found:
            yield f"{study} is not written, because it lacks the results of {count}."
        elif equal and any(map(is_open, mine)):
            yield f"{study} is written from its other trials, because it lacks the results of {count}."


def chosen(trials: list[Trial]) -> dict[str, tuple[Trial, int]]:
    """Return the best trial and the number of trials of every study with results. Where trials were drawn for equal tuning,
    the others do not count, once all drawn trials of the study and of its twins have an accuracy."""
    equal = [trial for trial in trials if trial.get("tuning") == EQUAL]
    unfinished = {original(trial["study"]) for trial in equal if trial["validation_accuracy"] is None}
    drawn = {trial["study"] for trial in equal if original(trial["study"]) not in unfinished}
    measured: dict[str, list[Trial]] = {}
    for trial in trials:
        counts = (trial.get("tuning") == EQUAL) == (trial["study"] in drawn)
        if counts and trial["validation_accuracy"] is not None:
            measured.setdefault(trial["study"], []).append(trial)
    return {study: (best_of(mine), len(mine)) for study, mine in measured.items()}


def recipe_text(best: Trial, count: int) -> str:
    """Return the text of the recipe file: the command, how it was chosen, and the keys that differ from the defaults."""
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
    parser.add_argument("verb", choices=["add", "draw", "run", "show", "write"])
    parser.add_argument("file", type=Path)
    parser.add_argument("study", nargs="?", default="", help="DATASET/NAME; for `run`: only this study and its twins")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="keys that differ from the base")
    parser.add_argument("--base", help="an included recipe (default: the default settings)")
    parser.add_argument("--epochs", type=int, help="epochs of this trial only")
    parser.add_argument("--trials", type=int, default=10, help="trials to draw for each arm")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no new trial after this time")
    given = parser.parse_intermixed_args()
    try:
        if given.verb == "add":
            add(given.file, given.study, given.base, given.changes, given.epochs)
        elif given.verb == "draw":
            draw(given.file, given.study, given.base, given.changes, given.trials, given.epochs)
        elif given.verb == "run":
            run(
                given.file,
                trial_recipe,
                line,
                wanted(given.study, read(given.file)),
                given.jobs,
                choose_device(given.device).type,
                given.seconds,
            )
        elif given.verb == "show":
            show(given.file)
        else:
            write(given.file)
    except FaustnetError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
