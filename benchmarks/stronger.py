"""The section of RESULTS.md about the strongest recipes and their twins, from best.json and best-study.json."""

from collections.abc import Iterator
from typing import Any

import twins
from faustnet.report.table1 import over_seeds
from faustnet.report.tables import markdown
from faustnet.reproduce.best import TABLE as BEST
from faustnet.reproduce.best import best_names, in_order
from faustnet.runs.recipes import choice_of_recipe, recipe_from, shipped_recipe
from paragraphs import filled
from trials import EQUAL
from twins import Cells, Trials

SECTION = """## Stronger recipes

<!-- not run: takes long -->
```sh
{commands}
```

The table compares the strongest recipes that we found with their twins: the same network, data, optimiser and number of
epochs except for what was tuned, trained by backprop with one loss at the output, or with the same losses on every layer
and the gradient through all layers (deep supervision). ± after a difference is its 95 % interval (Welch's t); ○ marks an
interval that includes zero, where neither side is better. Most recipes average over an image and its mirror image (two
forward passes), as do their twins. All recipes train FAUST, except two that train CwC and the Trifecta; these two have no
twin. *trials* are those of the recipe and of its twins, in the order of the columns. With *learning-rate*, only the learning
rate was tuned for the twins; with *equal*, all arms had the same search space and the same number of trials.{differ}
*trunk parameters* excludes heads and projections.{seeds_column}

{table}

Mean over {seeds}; `results/best/` has one file per run. Several runs shared the GPU, so the times in these files are
longer than for a run that uses the GPU alone.{favours}

The head of a layer matters in a transformer on images. With the mean over the tokens and two linear maps as the head, six
blocks of width 256 and 20 epochs, FAUST reached 81.9 % of the validation images and its twin 86.0 %
(`results/transformer-earlier.json`). The present heads arrange the tokens as feature maps and apply two
convolutions.{chosen}"""
SEEDS_COLUMN = " *seeds* are those of the recipe and of its twins, where they differ."
DIFFER = "The arms of an *equal* recipe have the best settings of their own trials: {settings} differ."
FAVOURS = "**Where only the learning rate was tuned for the twins, the comparison favours FAUST.**"
REGULARISATION = "Their regularisation was chosen for FAUST."
TRANSFORMERS = (
    "The transformers and their twins had the same number of trials, with the same optimisers, learning rates and dropout."
)
SETTINGS = "learning rate, weight decay, dropout, label smoothing, MixUp and cutout"
SEARCH = f"the same search space ({SETTINGS.replace(' and', ',')})"
TEXTS = "The trials on texts were measured by a script with the same settings and copied into the file by hand."
CHOSEN = """

All recipes were chosen on validation images by `python benchmarks/best.py run results/best-study.json`; this file has
every trial. Most trials are shorter than the final training. Number of trials in the file: {counts}."""
EQUALLY = """**Equal tuning.** In these studies, FAUST, backprop and deep supervision have {search}, the same sampler, the
same number of trials and the same validation images. The table shows the best accuracy in % of the validation images with
one seed, and in brackets the number of trials that were measured. A recipe is chosen from these trials, and measured on test
images, once all of them are there."""
AT_THE_EDGE = """

For these recipes and twins, the best learning rate was the lowest, the highest or the only one that was tried, so a better
one may exist outside the tried range: {names}."""
NOTES = {  # by recipe: decisions made after test results were known, and other limitations
    "cifar10/mlp-mixup": """The recipe cifar10/mlp was added after test results were known. At first, cifar10/mlp-mixup had
this name. Test results showed that backprop gains more from MixUp than FAUST does, so the best trial without MixUp
became a recipe too.""",
    "cifar10/cnn-large": """The recipe cifar10/cnn-large was changed after a test result was known. Its first version, with
50 epochs and without MixUp, reached less than 96.0 % on the test images. The present recipe was chosen in further
trials, on validation images.""",
    "cifar10/trifecta": """The Trifecta was trained with {layers} layers for {epochs} epochs. Its authors' code trains
networks of 6 or 12 layers for 100 epochs, with a constant learning rate of 0.001. There, pairs of layers take turns from
batch to batch, and each pair has an optimiser of its own; here, every batch trains all layers.""",
}


def section(cells: Cells, trials: Trials) -> str:
    """Return the section."""
    return SECTION.format(
        commands="\n".join(commands(cells)),
        seeds_column="" if twins.same_seeds(cells) else SEEDS_COLUMN,
        differ=f" {DIFFER.format(settings=SETTINGS)}"
        if any(map(twins.tuned_equally, twins.arms_of(cells).values()))
        else "",
        table=table(cells),
        seeds=over_seeds(cells),
        favours=favours(cells, trials),
        chosen="".join(how_chosen(cells, trials)),
    )


def commands(cells: Cells) -> Iterator[str]:
    """Yield the commands that train all runs of these cells: one for the least number of seeds, and one for each larger
    number, with the recipes that have as many. A recipe and its twins are trained by the same command."""
    seeds = {name: max(cell["seeds"] for cell in arms) for name, arms in twins.arms_of(in_order(cells)).items()}
    shipped = {name for name in best_names() if not name.startswith("digits/")}
    for count in sorted(set(seeds.values())):
        names = [name for name, own in seeds.items() if own >= count]
        chosen = "" if set(names) == shipped else f" --names {','.join(names)}"
        yield f"faustnet reproduce best{chosen} --seeds {count} --out results --jobs 8"


def table(cells: Cells) -> str:
    """Return the table without the times and without empty columns, with the numbers of seeds if they differ."""
    columns, rows = list(BEST.columns), BEST.rows(cells)
    shown = [place for place in range(len(columns) - 1) if any(row[place] != "–" for row in rows)]
    seeds = {} if twins.same_seeds(cells) else {name: twins.seeds_of(arms) for name, arms in twins.arms_of(cells).items()}
    last = ["seeds"] if seeds else []
    return markdown(
        [*(columns[place] for place in shown), *last],
        [[*(row[place] for place in shown), *(seeds[row[0]] for _ in last)] for row in rows],
    )


def favours(cells: Cells, trials: Trials) -> str:
    """Return the paragraph about the twins of which only the learning rate was tuned, or nothing without such twins."""
    texts = any(one["dataset"] in ("sst2", "trec") for one, _ in twins.with_disadvantage(cells))
    said = handicap(cells, trials)
    return "\n\n" + filled([FAVOURS, said, *([TEXTS] if texts else [])]) if said else ""


def handicap(cells: Cells, trials: Trials) -> str:
    """Say what the twins of which only the learning rate was tuned lack, or nothing without such twins."""
    pairs, studies = twins.with_disadvantage(cells), twins.studies_of(trials)
    if not pairs:
        return ""
    fewer = sum(twin["trials"] < one["trials"] for one, twin in pairs)
    shorter = sum(twins.has_shorter_trials(one, twin, studies) for one, twin in pairs)
    counts = {"fewer trials than FAUST": fewer, "shorter trials": shorter}
    had = "; ".join(f"{what}: {count} of {len(pairs)}" for what, count in counts.items() if count)
    transformers = [(one, twin) for one, twin in pairs if one["name"].endswith("/transformer")]
    sentences = [REGULARISATION, *([f"Twins with {had}."] if had else [])]
    if transformers and all(one["trials"] == twin["trials"] for one, twin in transformers):
        sentences.append(TRANSFORMERS)
    return " ".join(sentences)


def how_chosen(cells: Cells, trials: Trials) -> Iterator[str]:
    """Yield the paragraphs about the trials, and notes on some recipes."""
    names, studies = {cell["name"] for cell in cells}, twins.studies_of(trials)
    if counts := ", ".join(f"{study} {len(mine)}" for study, mine in studies.items() if study in names):
        yield CHOSEN.format(counts=counts)
    if edges := [cell["name"] for cell in in_order(cells) if twins.at_the_edge(twins.compared(cell, studies))]:
        yield AT_THE_EDGE.format(names=", ".join(edges))
    if equal := twins.equal_trials(trials):
        yield f"\n\n{filled([EQUALLY.format(search=SEARCH)])}\n\n{equal}"
    by_name = {cell["name"]: cell for cell in cells}
    for name, note in NOTES.items():
        if name in names and _note_holds(name):
            yield f"\n\n{_note(note, by_name[name])}"


def _note_holds(name: str) -> bool:
    """Whether the note on a recipe is true of the included recipes."""
    if name != "cifar10/mlp-mixup":
        return True
    by_equal_tuning = (choice_of_recipe("cifar10/mlp") or {}).get("tuning") == EQUAL
    return not by_equal_tuning and not recipe_from(shipped_recipe("best/cifar10/mlp")).options.get("mixup")


def _note(note: str, cell: dict[str, Any]) -> str:
    widths = shipped_recipe(f"best/{cell['name']}")["network"]["widths"]
    return note.format(epochs=cell["epochs"], layers=len(widths))
