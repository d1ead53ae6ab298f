"""Choose the hyper-parameters of the tuned recipes with Optuna on validation images, which are a part of the training
set.

    python benchmarks/tuning.py ask results/study.json --trials 8     propose trials (requires optuna)
    python benchmarks/tuning.py run results/study.json --jobs 6       train the trials without a result
    python benchmarks/tuning.py write results/study.json              write recipes/tuned/DATASET/METHOD.toml

After a run, `ask` proposes new trials from the results. `run` does not require optuna, so it can be used on another
machine. All trials have three layers of 500 units and one seed, and most are shorter than the final training. The file is
written after each trial; run the command again to continue. Trials can also be added to the file by hand.
"""

import argparse
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from faustnet.errors import FaustnetError
from faustnet.reproduce.jobs import check_known, on_validation
from faustnet.runs.recipes import Recipe, put, recipe_from, to_toml
from faustnet.system.devices import choose_device
from trials import RECIPES, Trial, best_of, outcome, read, read_existing, run, save, write_recipe

DATASETS = ("mnist", "fashion-mnist", "cifar10", "cifar100", "digits")
FAMILY = "tuned"

# Search space: lowest value, highest value, and whether the scale is logarithmic.
COMMON = {"optimiser.weight_decay": (1e-3, 0.3, True), "network.dropout": (0.0, 0.5, False)}
RATE, FAST = {"optimiser.learning_rate": (3e-4, 5e-3, True)}, {"optimiser.learning_rate": (1e-3, 1e-2, True)}
SMOOTHING, SCALE = {"options.label_smoothing": (0.0, 0.2, False)}, {"options.scale": (0.003, 0.1, True)}
LABEL, THRESHOLD = {"options.label_length": (0.2, 1.0, True)}, {"options.threshold": (0.1, 2.0, True)}
SPACES: dict[str, dict[str, tuple[float, float, bool]]] = {
    "backprop": {**RATE, **COMMON, **SMOOTHING},
    "forward-forward": {**FAST, **COMMON, **LABEL, **THRESHOLD},
    "symba": {**FAST, **COMMON, **LABEL, "options.sharpness": (0.5, 8.0, True)},
    "sffa": {**FAST, **COMMON, **LABEL},
    "ffcm": {**RATE, **COMMON, "options.temperature": (0.05, 0.3, True), "options.first_margin": (0.0, 0.4, False)},
    "collaborative-ff": {**FAST, **COMMON, **LABEL, **THRESHOLD},
    "mono-forward": {**RATE, **COMMON},
    "predsim": {**RATE, **COMMON, "options.matching": (0.9, 0.999, False)},
    "faust-triplet": {**RATE, **COMMON, **SCALE},
    "faust-tuplet": {**RATE, **COMMON, **SCALE, **SMOOTHING},
    "faust-representative": {**RATE, **COMMON, **SCALE, **SMOOTHING},
}
# The first trial of every study: the defaults with some settings that are known to help.
FIRST = {
    "optimiser.learning_rate": 1e-3,
    "optimiser.weight_decay": 0.1,
    "network.dropout": 0.2,
    "options.label_smoothing": 0.1,
    "options.scale": 0.02,
    "options.label_length": 0.5,
    "options.threshold": 0.5,
    "options.sharpness": 4.0,
    "options.temperature": 0.15,
    "options.first_margin": 0.4,
    "options.matching": 0.99,
}
DISTORTED = {
    "mnist": {"crop": 2},
    "fashion-mnist": {"crop": 2, "flip": True},
    "cifar10": {"crop": 4, "flip": True},
    "cifar100": {"crop": 4, "flip": True},
}


def recipe_table(method: str, dataset: str, params: dict[str, float]) -> dict[str, Any]:
    """Return the recipe without the widths of its network."""
    small = dataset == "digits"
    table: dict[str, Any] = {
        "dataset": dataset,
        "method": method,
        "optimiser": {"name": "adamw"},
        "training": {"epochs": 30, "batch_size": 64, "evaluate_every": 30}
        if small
        else {"epochs": 60, "evaluate_every": 10},
    }
    if method == "ffcm" and not small:  # its authors use data augmentation
        table["data"] = DISTORTED[dataset]
        table["training"]["evaluate_every"] = 60  # every evaluation trains a linear classifier
    for key, value in params.items():
        put(table, key, value)
    return table


def trial_recipe(trial: Trial) -> Recipe:
    """Return the shorter recipe that is trained to measure a trial."""
    table = recipe_table(trial["method"], trial["dataset"], trial["params"])
    put(table, "training.epochs", trial["epochs"])
    return on_validation(recipe_from(table))


def ask(path: Path, methods: list[str], datasets: list[str], count: int, epochs: int) -> None:
    try:
        import optuna
    except ImportError:
        raise SystemExit("Proposing trials needs Optuna: pip install -c constraints.txt -e '.[tuning]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = read(path)
    check_known("method", methods, SPACES)
    check_known("data set", datasets, DATASETS)
    for method, dataset in product(methods, datasets):
        mine = [trial for trial in trials if (trial["method"], trial["dataset"]) == (method, dataset)]
        space = {
            key: optuna.distributions.FloatDistribution(low, high, log=log)
            for key, (low, high, log) in SPACES[method].items()
        }
        sampler = optuna.samplers.TPESampler(seed=len(mine), multivariate=True, constant_liar=True, n_startup_trials=6)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in mine:
            accuracy = trial["validation_accuracy"]
            state = optuna.trial.TrialState.RUNNING if accuracy is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(optuna.trial.create_trial(
                state=state, params=trial["params"], distributions=space, value=accuracy))  # fmt: skip
        if not mine:
            study.enqueue_trial({key: FIRST[key] for key in space})
        for number in range(count):
            params = {key: float(f"{value:.3g}") for key, value in study.ask(space).params.items()}
            trials.append({"method": method, "dataset": dataset, "number": len(mine) + number, "epochs": epochs,
                           "params": params, "validation_accuracy": None})  # fmt: skip
    save(path, trials)
    print(f"{sum(trial['validation_accuracy'] is None for trial in trials)} trials to run")


def wanted(methods: list[str], datasets: list[str], trials: list[Trial]) -> Callable[[Trial], bool]:
    """Return which trials are of these methods and data sets. Names that are not known are an error."""
    check_known("method", methods, list(dict.fromkeys([*SPACES, *(trial["method"] for trial in trials)])))
    check_known("data set", datasets, list(dict.fromkeys([*DATASETS, *(trial["dataset"] for trial in trials)])))
    return lambda trial: trial["method"] in methods and trial["dataset"] in datasets


def line(trial: Trial) -> str:
    return f"{trial['method']:21}{trial['dataset']:14}{outcome(trial)} {trial['params']}"


def write(path: Path) -> None:
    trials = read_existing(path)
    for method, dataset in product(SPACES, DATASETS):
        measured = [trial for trial in trials if trial["validation_accuracy"] is not None]
        mine = [trial for trial in measured if (trial["method"], trial["dataset"]) == (method, dataset)]
        if mine:
            write_recipe(RECIPES / FAMILY / dataset / f"{method}.toml", recipe_text(best_of(mine), len(mine)))


def recipe_text(best: Trial, count: int) -> str:
    """Return the text of the recipe file: the command, how it was chosen, and the keys that differ from the defaults."""
    method, dataset = best["method"], best["dataset"]
    lines = [
        f"# faustnet train --recipe tuned/{dataset}/{method} --widths 500,500,500",
        f"# The best of {count} trials, {best['validation_accuracy']:.2%} of the validation images (results/study.json).",
        "# Test accuracy with both networks, machine and time: RESULTS.md.",
    ]
    return "\n".join(lines) + "\n" + to_toml(recipe_table(method, dataset, best["params"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["ask", "run", "write"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", default=",".join(SPACES))
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--trials", type=int, default=8, help="trials per method and data set")
    parser.add_argument("--epochs", type=int, default=25, help="epochs per trial")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no new trial after this time")
    given = parser.parse_args()
    try:
        if given.verb == "ask":
            ask(given.file, given.methods.split(","), given.datasets.split(","), given.trials, given.epochs)
        elif given.verb == "run":
            chosen = wanted(given.methods.split(","), given.datasets.split(","), read(given.file))
            run(given.file, trial_recipe, line, chosen, given.jobs, choose_device(given.device).type, given.seconds)
        else:
            write(given.file)
    except FaustnetError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
