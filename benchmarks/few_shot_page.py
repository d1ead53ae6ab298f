"""The generated part of docs/few-shot.md, from results/few-shot.json and the recipes of the family few-shot/."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faustnet.report.table1 import over_seeds
from faustnet.report.tables import markdown
from faustnet.reproduce.few_shot import DATASET, FAMILY, METHODS, QUERIES, TABLE
from faustnet.reproduce.results import method_titles
from faustnet.runs.recipes import choice_of_recipe, recipe_from, shipped_recipe, shipped_recipes
from few_shot import EPISODES, VALIDATION, VARIATIONS, chosen
from paragraphs import filled, listed

Cells = list[dict[str, Any]]
Trials = list[dict[str, Any]]
Choices = dict[str, dict[str, Any]]

NOTHING = "There are no results yet."
ACCURACIES = """Accuracy in % of the queries, {queries} of each class, ± half the length of its 95 % interval; mean over
{seeds}. ○ marks an interval of FAUST that overlaps that of backprop. `python benchmarks/results.py` writes this part from
`results/few-shot.json`; `results/few-shot/` has one file per run."""
SHORT = """**New classes from one or five images each**: characters of Omniglot, of alphabets that were not trained on. In
each episode, N characters (N-way) are added from K drawings each (K-shot), and other drawings are classified among them.
Accuracy in % ± half the length of its 95 % interval over {episodes} episodes. All methods have the same network and had the
same number of trials; ○ marks an interval of FAUST that overlaps that of backprop. [Few-shot
classification](docs/few-shot.md) has the details."""
ORIENTATION = """For orientation, published accuracies of 20-way 1-shot classification with random classes are {published}.
Their networks differ from ours, and so do the characters that they are trained and measured on."""
LAYERS = """The next table has the accuracy of each layer alone, in the order of the layers, and the number of episodes of
all seeds together:"""
PUBLISHED = (  # 20-way 1-shot, random classes
    (96.0, "prototypical networks, Snell et al. 2017, with rotated characters as additional classes in training"),
    (93.8, "matching networks, Vinyals et al. 2016"),
)
CHOSEN = """**Choice of settings.** In their first trial, all methods have the same settings: the network and the
augmentation of the FAUST recipe best/mnist/cnn. The settings of the other trials were drawn for all methods from the same
search space by the same sampler (`python benchmarks/few_shot.py`; `results/few-shot-study.json` has every trial). A trial
was measured in {episodes} episodes of every task, made of {alphabets} alphabets of the background set that were left out
of its training. In each trial, the best of several *readouts* was chosen: all ranges of successive layers, and for backprop
each of them with and without normalised features, so backprop had twice as many."""
VARIED = """The best settings of each method were also tried in longer trainings, without and with a fourth layer of 512
channels. The table has their mean accuracy over all tasks in validation episodes. No recipe was chosen from these trials."""
ROTATED = "In training, characters that were rotated by 90, 180 and 270 degrees were additional classes."


def section(folder: Path) -> str:
    """Return the text about the results in a folder."""
    if not (folder / f"{FAMILY}.json").exists():
        return NOTHING
    cells, trials = (_read(folder / f"{name}.json") for name in (FAMILY, f"{FAMILY}-study"))
    return described(cells, choices(), trials)


def in_short(folder: Path) -> str:
    """Return a paragraph and the table of the accuracies for README.md, or nothing without results."""
    cells = _read(folder / f"{FAMILY}.json")
    if not cells:
        return ""
    counts = sorted({f"{cell['episodes']:,}" for cell in cells})
    return "\n\n".join([filled([SHORT.format(episodes=" or ".join(counts))]), accuracies(cells)])


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def choices() -> Choices:
    """Return how the recipe of each method was chosen: trials, readouts, the layers that are compared, and its data set."""
    found = {}
    for method in METHODS:
        name = f"{FAMILY}/{DATASET}/{method}"
        if name in shipped_recipes() and (choice := choice_of_recipe(f"{DATASET}/{method}", FAMILY)):
            recipe = recipe_from(shipped_recipe(name))
            count = len(recipe.network.widths)
            weights = recipe.prediction.weights or [1.0] * count
            weighted = [number for number, weight in enumerate(weights, start=1) if weight]
            found[method] = {"layers": weighted, "data": recipe.dataset, **choice, **choice.get("readout", {})}
    return found


def described(cells: Cells, choices: Choices, trials: Trials) -> str:
    """Return the tables, and how the recipes were chosen."""
    published = " and ".join(f"{accuracy} ({who})" for accuracy, who in PUBLISHED)
    parts = [
        filled([ACCURACIES.format(queries=QUERIES, seeds=over_seeds(cells))]),
        accuracies(cells),
        filled([ORIENTATION.format(published=published)]),
        filled([LAYERS]),
        layers(cells),
        *(how_chosen(choices) if choices else []),
        *varied(trials),
    ]
    return "\n\n".join(parts)


def accuracies(cells: Cells) -> str:
    """Table of the accuracy by task and method."""
    found: dict[str, dict[str, str]] = {}
    for task, method, accuracy, difference, *_ in TABLE.rows(cells):
        found.setdefault(task, {})[method] = accuracy + (" ○" if difference.endswith("○") else "")
    methods = list(dict.fromkeys(method for row in found.values() for method in row))
    rows = [[task, *(row.get(method, "–") for method in methods)] for task, row in found.items()]
    return markdown(["task", *methods], rows)


def layers(cells: Cells) -> str:
    """Table of the differences to backprop, of the accuracy of each layer, and of the numbers of episodes."""
    rows = [
        [task, method, difference, ", ".join(_numbers(cell)) or "–", alone, episodes]
        for cell, (task, method, _, difference, alone, episodes) in zip(cells, TABLE.rows(cells), strict=True)
    ]
    columns = ["task", "method", "difference to backprop", "layers", "each layer alone", "episodes"]
    return markdown(columns, rows, numbers=4)


def _numbers(cell: dict[str, Any]) -> Iterator[str]:
    return (name.removeprefix("layer ") for name in cell["layers"] if name.startswith("layer "))


def how_chosen(choices: Choices) -> list[str]:
    """Return a paragraph and a table about the trials and readouts of each method."""
    rows = [
        [method_titles()[method], str(choice["trials"]), str(choice["readouts"]), _readout(choice)]
        for method, choice in choices.items()
    ]
    rotated = all(choice["data"] == f"{DATASET}-rotated" for choice in choices.values())
    said = CHOSEN.format(episodes=EPISODES, alphabets=len(VALIDATION))
    table = markdown(["method", "trials", "readouts", "chosen layers"], rows)
    return [filled([said, *([ROTATED] if rotated else [])]), table]


def varied(trials: Trials) -> list[str]:
    """Return a paragraph and a table about the variations of the best trials, if they were measured."""
    found: dict[str, dict[str, str]] = {method: {} for method in METHODS}
    for trial in trials:
        if "variation" in trial and trial["validation_accuracy"] is not None:
            found[trial["study"]][trial["variation"]] = f"{100 * trial['validation_accuracy']:.2f}"
    if not any(found.values()):
        return []
    best = {method: trial for method, (trial, _) in chosen(trials).items()}
    rows = [
        [
            method_titles()[method],
            f"{100 * trial['validation_accuracy']:.2f}",
            *(found[method].get(title, "–") for title in VARIATIONS),
        ]
        for method, trial in best.items()
    ]
    epochs = listed([str(count) for count in sorted({trial["epochs"] for trial in best.values()})])
    return [filled([VARIED]), markdown(["method", f"{epochs} epochs", *VARIATIONS], rows)]


def _readout(choice: dict[str, Any]) -> str:
    unit = {True: ", normalised", False: ", not normalised"}.get(choice.get("unit"), "")
    return ", ".join(map(str, choice["layers"])) + unit
