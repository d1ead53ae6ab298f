"""The sections of RESULTS.md about experiments that are not in the paper, and docs/representatives.md, from the files in
a folder of results. A section whose file does not exist is left out."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import class_counts
import stronger
from faustnet.report.paper import dataset_title
from faustnet.report.table1 import ours, over_seeds, signed
from faustnet.report.tables import markdown
from faustnet.reproduce.ablation import TABLE as ABLATION
from faustnet.reproduce.best import LOCAL, in_order

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
validation images, {seeds}. ± after a difference is its 95 % interval (Welch's t); ○ marks an interval that includes zero.
`results/ablation/` has one file per run. All other settings stay the same: for example,
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
        yield stronger.section(cells, _read(folder / "best-study.json"))
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
    counts = class_counts.counts_of(_read(folder / "class-counts.json"))
    if counts or _read(folder / "coarse-groups.json"):
        some = f"{counts[0]} to {counts[-1]} classes" if len(counts) > 1 else "some of the classes of a data set"
        yield (
            f"## Number of classes\n\nFAUST and its twins on {some}, and groups of classes as targets of the "
            "early layers: [docs/class-counts.md](docs/class-counts.md)."
        )
    if _read(folder / "new-classes.json"):
        yield (
            "## New classes and rejection\n\nAccuracy of classes that were added without training, and rejection of images "
            "from another data set: [docs/new-classes.md](docs/new-classes.md)."
        )
    if _read(folder / "incremental.json"):
        yield (
            "## Classes that come over time\n\nAccuracy of FAUST and of backprop on old and new classes after every step in "
            "which classes are added: [docs/new-classes.md](docs/new-classes.md#classes-that-come-over-time)."
        )
    if _read(folder / "few-shot.json"):
        yield (
            "## Few-shot classification\n\nAccuracy of FAUST, backprop and raw pixels on new characters of Omniglot, from "
            "one or five drawings of each: [docs/few-shot.md](docs/few-shot.md#accuracy-on-omniglot)."
        )


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
