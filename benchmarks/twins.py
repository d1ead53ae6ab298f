"""Facts about the strongest recipes and their twins that several pages state, from the cells of results/best.json and the
trials of results/best-study.json."""

from collections.abc import Collection
from typing import Any

from best import trial_recipe
from faustnet.report.tables import markdown
from faustnet.reproduce.best import LOCAL, ROLES
from search import ARMS
from trials import EQUAL, LEARNING_RATE, Trial, best_of

Cells = list[dict[str, Any]]
Trials = list[Trial]
TWINS = tuple(ending for ending in ARMS if ending)  # endings of their names


def arms_of(cells: Cells) -> dict[str, Cells]:
    """Return the cells of each recipe, its own first, and then those of its twins, by its name."""
    order = [LOCAL, *ROLES.values()]
    found: dict[str, Cells] = {cell["name"]: [] for cell in cells if cell["role"] == LOCAL}
    for cell in sorted(cells, key=lambda cell: order.index(cell["role"])):
        if cell["of"] in found:
            found[cell["of"]].append(cell)
    return found


def tuned_equally(arms: Cells) -> bool:
    """Whether a recipe and its twins were chosen from the same number of trials in the same search space."""
    return len(arms) > 1 and all(cell["tuning"] == EQUAL for cell in arms)


def seeds_of(arms: Cells) -> str:
    """Return the number of seeds of a recipe and of its twins, or the numbers in their order where they differ."""
    numbers = [str(cell["seeds"]) for cell in arms]
    return numbers[0] if len(set(numbers)) == 1 else " / ".join(numbers)


def same_seeds(cells: Cells) -> bool:
    return len({cell["seeds"] for cell in cells}) == 1


def with_disadvantage(cells: Cells) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each twin of which only the learning rate was tuned, after its recipe."""
    return [(arms[0], twin) for arms in arms_of(cells).values() for twin in arms[1:] if twin["tuning"] == LEARNING_RATE]


def has_shorter_trials(recipe: dict[str, Any], twin: dict[str, Any], studies: dict[str, Trials]) -> bool:
    """Whether the longest trial of a twin has fewer epochs than the shortest one of its recipe."""
    mine, its = (compared(cell, studies) for cell in (recipe, twin))
    return bool(mine and its) and max(map(_epochs, its)) < min(map(_epochs, mine))


def _epochs(trial: Trial) -> int:
    return trial_recipe(trial).training.epochs


def compared(cell: dict[str, Any], studies: dict[str, Trials]) -> Trials:
    """Return the trials that a recipe was chosen from."""
    equal = cell["tuning"] == EQUAL
    return [trial for trial in studies.get(cell["name"], []) if (trial.get("tuning") == EQUAL) == equal]


def at_the_edge(trials: Trials) -> bool:
    """Whether the best trial has the lowest or the highest learning rate of all trials."""
    if not trials:
        return False
    rates = [trial_recipe(trial).optimiser.learning_rate for trial in trials]
    return trial_recipe(best_of(trials)).optimiser.learning_rate in (min(rates), max(rates))


def studies_of(trials: Trials) -> dict[str, Trials]:
    """Return the trials with a result by their study."""
    found: dict[str, Trials] = {}
    for trial in trials:
        if trial["validation_accuracy"] is not None:
            found.setdefault(trial["study"], []).append(trial)
    return found


def equal_studies(trials: Trials) -> dict[str, list[Trials]]:
    """Return the equal trials with a result of FAUST, backprop and deep supervision, by the name of the recipe. Studies
    in which an arm has no such trial are left out."""
    studies = studies_of([trial for trial in trials if trial.get("tuning") == EQUAL])
    found = {name: [studies.get(name + ending, []) for ending in ARMS] for name in studies if not name.endswith(TWINS)}
    return {name: arms for name, arms in found.items() if all(arms)}


def equal_trials(trials: Trials, without: Collection[str] = ()) -> str:
    """Return a table of the best equal trial of each arm, without some recipes."""
    rows = []
    for name, arms in equal_studies(trials).items():
        if name not in without:
            epochs = sorted({_epochs(trial) for arm in arms for trial in arm})
            best = [f"{100 * best_of(arm)['validation_accuracy']:.2f} ({len(arm)})" for arm in arms]
            rows.append([name, " / ".join(map(str, epochs)), *best])
    return markdown(["recipe", "epochs", "FAUST", "backprop", "deep supervision"], rows) if rows else ""


def measured_equally(cells: Cells) -> set[str]:
    """Return the recipes that were chosen by equal tuning and measured on test images together with all their twins."""
    return {name for name, arms in arms_of(cells).items() if len(arms) == len(ARMS) and tuned_equally(arms)}
