"""The sections of RESULTS.md about experiments that are not in the paper, and docs/representatives.md, from the files in
a folder of results. A section whose file does not exist is left out."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from best import trial_recipe
from faustnet.report.paper import dataset_title
from faustnet.report.table1 import ours, over_seeds, signed
from faustnet.report.tables import markdown
from faustnet.reproduce.ablation import TABLE as ABLATION
from faustnet.reproduce.best import LOCAL, in_order
from faustnet.reproduce.best import TABLE as BEST
from faustnet.runs.recipes import shipped_recipe
from search import ARMS
from trials import EQUAL, best_of

KINDS = {"mlp": "MLP", "cnn": "CNN", "cwc": "CwC", "trifecta": "the Trifecta"}  # by the first part of a recipe's name
# Published test accuracies in % of networks whose layers are trained by local losses: data set, kind of network or method,
# accuracy, source.
RECORDS: tuple[tuple[str, str, float, str], ...] = (
    ("mnist", "mlp", 99.38, "predsim, Nøkland and Eidnes 2019"),
    ("fashion-mnist", "mlp", 91.46, "predsim, Nøkland and Eidnes 2019"),
    ("cifar10", "mlp", 69.07, "predsim, 3×3000, crops and flips, Nøkland and Eidnes 2019 (their backprop: 66.44)"),
    ("mnist", "cnn", 99.74, "predsim, VGG8B, cutout, Nøkland and Eidnes 2019"),
    ("mnist", "cnn", 99.7, "best method related to Forward-Forward"),
    ("fashion-mnist", "cnn", 95.86, "predsim, VGG8B, 2 × width, cutout, Nøkland and Eidnes 2019"),
    ("fashion-mnist", "cnn", 93.98, "best method related to Forward-Forward (Mono-Forward)"),
    ("cifar10", "cnn", 96.40, "predsim, VGG11B, 3 × width, 91 M parameters, cutout, Nøkland and Eidnes 2019"),
    ("cifar10", "cnn", 91.8, "best method related to Forward-Forward (DTG-FF)"),
    ("cifar100", "mlp", 43.12, "predsim, 3×3000, crops and flips, Nøkland and Eidnes 2019 (their backprop: 37.43)"),
    (
        "cifar100",
        "cnn",
        79.87,
        "predsim, VGG11B, 3 × width, 91 M parameters, Nøkland and Eidnes 2019 (backprop: 76.31)",
    ),
    ("cifar100", "cnn", 70.09, "best method related to Forward-Forward (HCL-FF)"),
    ("cifar10", "trifecta", 83.51, "Dooms et al. 2023"),
    ("cifar10", "cwc", 78.11, "channels 20-80-240-480, no augmentation, Papachristodoulou et al. 2024"),
)

PAST = """## Stronger recipes

<!-- not run: takes long -->
```sh
faustnet reproduce best --out results --jobs 8
```

The table compares the strongest recipes that we found with their twins: the same network, data, optimiser and number of
epochs, trained by backprop with one loss at the output, or with the same losses on every layer and the gradient through
all layers (deep supervision). ± after a difference is its 95 % interval (Welch's t); ○ marks an interval that includes
zero, where neither side is better. Most recipes average over an image and its mirror image (two forward passes), as do
their twins. All recipes train FAUST, except two that train CwC and the Trifecta; these two have no twin. *trials* are those
of the recipe and of its twins, in the order of the columns. With *learning-rate*, only the learning rate of the twins was
tuned; with *equal*, all arms had the same search space and the same number of trials. *trunk parameters* excludes heads and
projections.

{table}

Mean over {seeds}; `results/best/` has one file per run. Several runs shared the GPU, so the times in these files are
longer than for a run that uses the GPU alone.

**Where only the learning rate was tuned, the comparison favours FAUST.** The twins had fewer trials in most cases, and
shorter ones. Their dropout and other regularisation were chosen for FAUST. The transformers are an
exception: each and its twin had the same number of trials, with the same optimisers, learning rates and dropout. The
trials on texts were measured by a script with the same settings and copied into the file by hand.

The head of a layer matters in a transformer on images. With the mean over the tokens and two linear maps as the head, six
blocks of width 256 and 20 epochs, FAUST reached 81.9 % of the validation images and its twin 86.0 %
(`results/transformer-earlier.json`). The present heads arrange the tokens as feature maps and apply two
convolutions.{chosen}"""
CHOSEN = """

All recipes were chosen on validation images by `python benchmarks/best.py run results/best-study.json`; this file has
every trial. Most trials are shorter than the final training. Number of trials in the file: {counts}."""
EQUALLY = """

**Equal tuning.** In these studies, FAUST, backprop and deep supervision have the same search space (learning rate, weight
decay, dropout, label smoothing, MixUp, cutout), the same sampler, the same number of trials and the same validation
images. The table shows the best accuracy in % of the validation images with one seed, and in brackets the number of trials
that were measured. A recipe is chosen from these trials, and measured on test images, once all of them are there.

{table}"""
AT_THE_EDGE = """

For these recipes, the best learning rate was the lowest or the highest that was tried, so a better one may exist outside
the tried range: {names}."""
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
PUBLISHED = """## Published results of layer-local training

The table shows the highest published accuracies that we know of for networks with a local loss in every layer, next to
our recipes for the same kind of network. If the best method is not related to Forward-Forward, a second row shows
the best related method. The last rows are the results of the authors of the Trifecta and CwC. Network sizes, epochs and
augmentation differ: for example, our CwC uses random crops and flips. The Trifecta is not strictly local, because its
gradients cross one layer boundary. Some authors chose the epoch on the test set; we did not.

{table}"""
PIECES = """## Ablation

<!-- not run: takes long -->
```sh
faustnet reproduce ablation --base {base} --epochs {epochs} --out results --jobs 8
```

The recipe best/{base} is trained for {epochs} epochs, with one setting changed at a time. The table shows accuracies on
validation images, {seeds}. `results/ablation/` has one file per run. All other settings stay the same: for example,
AdamW uses the learning rate that was chosen for Muon. Regularisation that slows down learning, such as MixUp and
dropout, may help more in a longer training.

*Contrast* and *similarity matching* are additional loss terms with the given weight (`options.contrast`,
`options.matching`). *Shifts* are random crops (`data.crop`), *mirror images* are random flips in training (`data.flip`),
and *votes on mirror images* means averaging over an image and its mirror image in prediction (`prediction.mirror`).
*A scale that grows fivefold* sets `options.final_scale`, and *the last layer's vote alone* predicts from the last layer
only.

{table}"""
REPRESENTATIVES = """# Choice of references

FAUST-representative compares every image with one fixed training image per class, drawn at random. This page measures
how much the choice of the image matters, and whether more images or learned vectors are better.

<!-- not run: takes long -->
```sh
faustnet reproduce representatives --out results --jobs 8
```

The command trains the tuned recipe of FAUST-representative ({networks}) with three kinds of references:

- *random*: random training images of each class.
- *k-means*: the training image closest to the centre of each cluster of a class. With one cluster, this is the medoid.
- *prototype*: vectors that each layer learns (`faust-prototype`). Scale and learning rate are those tuned for images.

`python benchmarks/results.py` writes this page from `results/representatives.json`; `results/representatives/` has one
file per run.

![Accuracy by the number of references](../results/figures/representatives.svg)

{words}

## Kind and number of references

Test accuracy in % after the last epoch; mean ± standard deviation (number of seeds). The seed determines the images and
the initial weights.

{tables}

## One random image

The seed changes both the image and the initial weights, so the choice of the image causes at most this variation.

{spread}
"""


def sections(folder: Path) -> Iterator[str]:
    """Yield the sections of RESULTS.md."""
    if cells := _read(folder / "best.json"):
        yield past_the_paper(cells, _read(folder / "best-study.json"))
        if any(_of_kind(cells, dataset, kind) for dataset, kind, _, _ in RECORDS):
            yield PUBLISHED.format(table=records(cells))
    for (base, epochs), found in groupby(_read(folder / "ablation.json"), key=lambda cell: (cell["base"], cell["epochs"])):
        mine = list(found)
        table = markdown(ABLATION.columns, ABLATION.rows(mine))
        yield PIECES.format(base=base, epochs=epochs, seeds=over_seeds(mine), table=table)
    if _read(folder / "representatives.json"):
        yield (
            "## Choice of references\n\nRandom images, images chosen by k-means, learned vectors, and their number: "
            "[docs/representatives.md](docs/representatives.md)."
        )
    if _read(folder / "class-counts.json") or _read(folder / "coarse-groups.json"):
        yield (
            "## Number of classes\n\nFAUST and its twins on 10 to 100 classes, and groups of classes as targets of the "
            "early layers: [docs/class-counts.md](docs/class-counts.md)."
        )
    if _read(folder / "new-classes.json"):
        yield (
            "## New classes and rejection\n\nAccuracy of classes that were added without training, and rejection of images "
            "from another data set: [docs/new-classes.md](docs/new-classes.md)."
        )


def past_the_paper(cells: list[dict[str, Any]], trials: list[dict[str, Any]]) -> str:
    names = {cell["name"] for cell in cells}
    measured = [trial for trial in trials if trial["validation_accuracy"] is not None and trial["study"] in names]
    studies = _by(measured, "study")
    counts = ", ".join(f"{study} {len(mine)}" for study, mine in studies.items())
    edges = ", ".join(
        cell["name"]
        for cell in in_order(cells)
        if (cell["tuning"] == EQUAL or cell["role"] != LOCAL) and at_the_edge(_compared(cell, studies))
    )
    chosen = (CHOSEN.format(counts=counts) if counts else "") + (AT_THE_EDGE.format(names=edges) if edges else "")
    chosen += EQUALLY.format(table=table) if (table := equal_trials(trials)) else ""
    by_name = {cell["name"]: cell for cell in cells}
    chosen += "".join(f"\n\n{_note(note, by_name[name])}" for name, note in NOTES.items() if name in names)
    rows = BEST.rows(cells)
    shown = [
        column for column in range(len(BEST.columns) - 1) if any(row[column] != "–" for row in rows)
    ]  # without the time
    table = markdown([BEST.columns[column] for column in shown], [[row[column] for column in shown] for row in rows])
    return PAST.format(seeds=over_seeds(cells), table=table, chosen=chosen)


def equal_trials(trials: list[dict[str, Any]]) -> str:
    """Table of the best equal trial of each arm, of the studies in which every arm has a trial with a result."""
    equal = [trial for trial in trials if trial.get("tuning") == EQUAL and trial["validation_accuracy"] is not None]
    studies = _by(equal, "study")
    rows = []
    for name in studies:
        arms = [studies.get(name + ending) for ending in ARMS]
        if not name.endswith(tuple(ARMS)[1:]) and all(arms):
            epochs = sorted({trial_recipe(trial).training.epochs for arm in arms for trial in arm or []})
            best = [f"{100 * best_of(arm)['validation_accuracy']:.2f} ({len(arm)})" for arm in arms if arm]
            rows.append([name, " / ".join(map(str, epochs)), *best])
    return markdown(["recipe", "epochs", "FAUST", "backprop", "deep supervision"], rows) if rows else ""


def _note(note: str, cell: dict[str, Any]) -> str:
    widths = shipped_recipe(f"best/{cell['name']}")["network"]["widths"]
    return note.format(epochs=cell["epochs"], layers=len(widths))


def _compared(cell: dict[str, Any], studies: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the trials that a recipe was chosen from."""
    equal = cell["tuning"] == EQUAL
    return [trial for trial in studies.get(cell["name"], []) if (trial.get("tuning") == EQUAL) == equal]


def at_the_edge(trials: list[dict[str, Any]]) -> bool:
    """Whether the best trial has the lowest or the highest learning rate of all trials."""
    if not trials:
        return False
    rates = [trial_recipe(trial).optimiser.learning_rate for trial in trials]
    return trial_recipe(best_of(trials)).optimiser.learning_rate in (min(rates), max(rates))


def in_short(cells: list[dict[str, Any]]) -> str:
    """Table of FAUST's recipes and their twins for README.md."""
    mine = [cell for cell in cells if cell["role"] != LOCAL or cell["method"].startswith("faust")]
    return markdown(["recipe", "FAUST", "backprop twin", "difference"], [row[:4] for row in BEST.rows(mine)])


def records(cells: list[dict[str, Any]]) -> str:
    """Table of published accuracies, each with our recipes for the same kind of network."""
    rows = []
    for dataset, kind, figure, what in RECORDS:
        mine = [
            f"{cell['name'].split('/')[1]} {ours(cell)} ({signed(cell['mean'] - figure)})"
            for cell in _of_kind(cells, dataset, kind)
        ]
        rows.append([f"{dataset_title(dataset)}, {KINDS[kind]}: {what}", f"{figure:.2f}", "<br>".join(mine) or "–"])
    return markdown(["data set, network: method", "published", "ours (difference)"], rows)


def _of_kind(cells: list[dict[str, Any]], dataset: str, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in in_order(cells) if cell["role"] == LOCAL and cell["name"].startswith(f"{dataset}/{kind}")]


def representatives(folder: Path) -> str | None:
    """Return docs/representatives.md."""
    points = _read(folder / "representatives.json")
    if not points:
        return None
    tables = [f"{dataset_title(dataset)}:\n\n{by_number(mine)}" for dataset, mine in _by(points, "dataset").items()]
    networks = ", ".join(_by(points, "network")).replace("x", "×")
    words = "\n".join(in_words(dataset, mine) for dataset, mine in _by(points, "dataset").items())
    return REPRESENTATIVES.format(networks=networks, words=words, tables="\n\n".join(tables), spread=spread(points))


def in_words(dataset: str, points: list[dict[str, Any]]) -> str:
    """Summarise one data set, relative to a single random image."""
    found = {(point["kind"], point["count"]): point for point in points}
    one = found["random", 1]
    names = {"random": "random images", "k-means": "k-means images", "prototype": "prototypes"}
    most = []
    for kind, mine in _by(points, "kind").items():
        best = max(mine, key=lambda point: point["mean"])
        most.append(f"{signed(best['mean'] - one['mean'])} ({best['count']} {names[kind]})")
    medoid = signed(found["k-means", 1]["mean"] - one["mean"])
    return (
        f"- **{dataset_title(dataset)}**: with one random image, the standard deviation over seeds is {one['std']:.2f}. The "
        f"medoid changes the mean by {medoid}. The best number of each kind changes it by: {', '.join(most)}."
    )


def by_number(points: list[dict[str, Any]]) -> str:
    counts = sorted({point["count"] for point in points})
    rows = []
    for kind, mine in _by(points, "kind").items():
        found = {point["count"]: f"{ours(point)} ({len(point['accuracies'])})" for point in mine}
        rows.append([kind, *(found.get(count, "–") for count in counts)])
    return markdown(["references per class", *map(str, counts)], rows)


def spread(points: list[dict[str, Any]]) -> str:
    rows = [
        [
            dataset_title(point["dataset"]),
            str(len(point["accuracies"])),
            f"{min(point['accuracies']):.2f}",
            f"{point['mean']:.2f}",
            f"{max(point['accuracies']):.2f}",
            "–" if point["std"] is None else f"{point['std']:.2f}",
        ]
        for point in points
        if (point["kind"], point["count"]) == ("random", 1)
    ]
    return markdown(["data set", "seeds", "lowest", "mean", "highest", "standard deviation"], rows)


def _by(entries: list[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        found.setdefault(entry[key], []).append(entry)
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
