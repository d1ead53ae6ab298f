"""The parts of RESULTS.md that go past the paper, and docs/representatives.md, from the files in a folder of results. A part
whose file is not there is None."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from faustnet.report.comparisons import CHANGE_COLUMNS, PAIR_COLUMNS, change_rows, in_order, markdown, pair_rows
from faustnet.report.paper import RECORDS, dataset_title
from faustnet.report.table1 import ours, over_seeds, signed
from trials import best_of

KINDS = {"mlp": "MLP", "cnn": "CNN", "cwc": "CwC", "trifecta": "the Trifecta"}  # recipes' names begin so
PAST = """## Past the paper

<!-- not run: takes long -->
```sh
faustnet reproduce best --out results --jobs 8
```

The strongest recipes that were found, each beside its twin: the same network, data, optimiser and epochs, trained by
backprop with a learning rate of its own. Where there are two figures, the second is the twin's, which has no projections.
All are FAUST's but for two further systems of the related work, CwC and the Trifecta, which have no twins. There is one file
for each run in `results/best/`; the table is of {seeds}. Several runs shared the GPU, so the time in a file is more than one
run alone would take.

{table}{chosen}"""
CHOSEN = """

They were chosen on validation images, by `python benchmarks/best.py run results/best-study.json`, which has every trial;
most are shorter than the recipes that come of them. Trials of each: {counts}."""
AT_THE_EDGE = """

For these twins the best learning rate was the lowest or the highest of those that were tried, so that a better one may lie
beyond: {names}."""
NOTES = {  # by recipe: what was decided after test images had been looked at, and what is short
    "cifar10/mlp-mixup": """cifar10/mlp-mixup had been the choice for cifar10/mlp. The trials without MixUp were made a
recipe of their own after the test images had shown that backprop gains more from MixUp than FAUST does; both pairs are in
the table.""",
    "cifar10/cnn-large": """A first cifar10/cnn-large, of 50 epochs and without MixUp, had come to less than 96.0 on the test
images. The trials of 24 epochs were made after that.""",
    "cifar10/trifecta": "The Trifecta had 30 epochs, and two learning rates to choose from.",
}
LOCAL = """## Layer-local records

The highest accuracies that we know to have been published for networks whose layers are trained by losses of their own,
beside all of the recipes above that are of the same kind of network; and what the authors of CwC and the Trifecta report.
Sizes, epochs and distortions differ: ours of CwC, for one, sees crops and mirror images. The Trifecta is not strictly local:
its gradients cross one boundary between layers.

{table}"""
PIECES = """## What each piece gives

<!-- not run: takes long -->
```sh
faustnet reproduce ablation --base {base} --epochs {epochs} --out results --jobs 8
```

The recipe best/{base}, trained for {epochs} epochs, with one piece changed at a time, measured on validation images, never
on the test images; {seeds}. The file of each run is in `results/ablation/`. Nothing else is adapted:
AdamW, for one, has the learning rate that was chosen for Muon. And what makes learning slower so that it lasts, such as
MixUp and dropout, may do better in a training of full length.

{table}"""
REPRESENTATIVES = """# What stands for a class

FAUST-representative compares every image with one fixed training image of each class, which the paper draws at random. How
much does it matter which image that is, and would more of them, better chosen ones or learned vectors do better?

<!-- not run: takes long -->
```sh
faustnet reproduce representatives --out results --jobs 8
```

trains the tuned recipe of FAUST-representative ({networks}) with other references: *random* training images of each class;
*k-means*, the training images nearest the middles of as many clusters of a class's images, for one the medoid; and
*prototype*, vectors that each layer learns (`faust-prototype`), with the scale and the learning rate that were tuned for
images. The seed draws the images and the weights. This page is
written by `python benchmarks/results.py` from `results/representatives.json`; every run's file is in
`results/representatives/`.

![Accuracy by the number of references](../results/figures/representatives.svg)

{words}

## By kind and number

Test accuracy in % at the last epoch, mean ± standard deviation over the draws or seeds, whose number is in brackets.

{tables}

## One image, drawn at random

Each draw has weights of its own as well, so this spread is of both, and what the choice of the image does is at most that.

{spread}
"""


def sections(folder: Path) -> Iterator[str]:
    """Those of RESULTS.md."""
    if cells := _read(folder / "best.json"):
        yield past_the_paper(cells, _read(folder / "best-study.json"))
        if any(_of_kind(cells, dataset, kind) for dataset, kind, _, _ in RECORDS):
            yield LOCAL.format(table=records(cells))
    for (base, epochs), found in groupby(_read(folder / "ablation.json"), key=lambda cell: (cell["base"], cell["epochs"])):
        mine = list(found)
        table = markdown(CHANGE_COLUMNS, change_rows(mine))
        yield PIECES.format(base=base, epochs=epochs, seeds=over_seeds(mine), table=table)
    if _read(folder / "representatives.json"):
        yield (
            "## What stands for a class\n\nWhich images, how many, or learned vectors: "
            "[docs/representatives.md](docs/representatives.md)."
        )
    if _read(folder / "new-classes.json"):
        yield (
            "## New classes, and images of none\n\nClasses that are added without training, and how well images of other "
            "data are rejected: [docs/new-classes.md](docs/new-classes.md)."
        )


def past_the_paper(cells: list[dict[str, Any]], trials: list[dict[str, Any]]) -> str:
    names = {cell["name"] for cell in cells}
    measured = [trial for trial in trials if trial["validation_accuracy"] is not None and trial["study"] in names]
    studies = _by(measured, "study")
    counts = ", ".join(f"{study} {len(mine)}" for study, mine in studies.items())
    edges = ", ".join(
        cell["name"] for cell in in_order(cells) if cell["twin"] and at_the_edge(studies.get(cell["name"], []))
    )
    chosen = (CHOSEN.format(counts=counts) if counts else "") + (AT_THE_EDGE.format(names=edges) if edges else "")
    chosen += "".join(f"\n\n{note}" for name, note in NOTES.items() if name in names)
    table = markdown(PAIR_COLUMNS[:-1], [row[:-1] for row in pair_rows(cells)])  # without the time, which was shared
    return PAST.format(seeds=over_seeds(cells), table=table, chosen=chosen)


def at_the_edge(trials: list[dict[str, Any]]) -> bool:
    """Whether the best one has the lowest or the highest learning rate of all."""
    if not trials:
        return False
    rates = [trial["changes"]["optimiser.learning_rate"] for trial in trials]
    return best_of(trials)["changes"]["optimiser.learning_rate"] in (min(rates), max(rates))


def in_short(cells: list[dict[str, Any]]) -> str:
    """FAUST's recipes and their twins, one line each."""
    mine = [cell for cell in cells if cell["twin"] or cell["method"].startswith("faust")]
    return markdown(["recipe", "FAUST", *PAIR_COLUMNS[2:4]], [row[:4] for row in pair_rows(mine)])


def records(cells: list[dict[str, Any]]) -> str:
    """What was published, and all of ours of the same kind of network."""
    rows = []
    for dataset, kind, figure, what in RECORDS:
        mine = [
            f"{cell['name'].split('/')[1]} {ours(cell)} ({signed(cell['mean'] - figure)})"
            for cell in _of_kind(cells, dataset, kind)
        ]
        rows.append([f"{dataset_title(dataset)}, {KINDS[kind]}: {what}", f"{figure:.2f}", "<br>".join(mine) or "–"])
    return markdown(["what it is", "published", "ours (difference)"], rows)


def _of_kind(cells: list[dict[str, Any]], dataset: str, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in in_order(cells) if not cell["twin"] and cell["name"].startswith(f"{dataset}/{kind}")]


def representatives(folder: Path) -> str | None:
    """The page about what stands for a class."""
    points = _read(folder / "representatives.json")
    if not points:
        return None
    tables = [f"{dataset_title(dataset)}:\n\n{by_number(mine)}" for dataset, mine in _by(points, "dataset").items()]
    networks = ", ".join(_by(points, "network")).replace("x", "×")
    words = "\n".join(in_words(dataset, mine) for dataset, mine in _by(points, "dataset").items())
    return REPRESENTATIVES.format(networks=networks, words=words, tables="\n\n".join(tables), spread=spread(points))


def in_words(dataset: str, points: list[dict[str, Any]]) -> str:
    """What the points of a data set come to, next to a single image that is drawn at random."""
    found = {(point["kind"], point["count"]): point for point in points}
    one = found["random", 1]
    names = {"random": "random images", "k-means": "images by k-means", "prototype": "prototypes"}
    most = []
    for kind, mine in _by(points, "kind").items():
        best = max(mine, key=lambda point: point["mean"])
        most.append(f"{best['count']} {names[kind]} {signed(best['mean'] - one['mean'])}")
    medoid = signed(found["k-means", 1]["mean"] - one["mean"])
    return (
        f"- **{dataset_title(dataset)}**: which image it is moves the accuracy by a standard deviation of {one['std']:.2f} "
        f"at most, and the medoid by {medoid} on average. More of them, at the best number of each kind: {', '.join(most)}."
    )


def by_number(points: list[dict[str, Any]]) -> str:
    counts = sorted({point["count"] for point in points})
    rows = []
    for kind, mine in _by(points, "kind").items():
        found = {point["count"]: f"{ours(point)} ({len(point['accuracies'])})" for point in mine}
        rows.append([kind, *(found.get(count, "–") for count in counts)])
    return markdown(["of each class", *map(str, counts)], rows)


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
    return markdown(["data set", "draws", "least", "mean", "most", "standard deviation"], rows)


def _by(entries: list[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        found.setdefault(entry[key], []).append(entry)
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
