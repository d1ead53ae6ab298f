"""How well a class is known that was added from a few images, without training: trained on all classes but one."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from faustnet.data import DATASETS, DataSet, Images
from faustnet.errors import require, unknown
from faustnet.nn.references import KINDS
from faustnet.report.classes import ADDED_COLUMNS, added_rows
from faustnet.report.comparisons import markdown
from faustnet.reproduce.results import ResultTable, mean_and_std
from faustnet.reproduce.wanted import Wanted, check_seeds
from faustnet.reproduce.work import Lines, reproduced
from faustnet.reproduce.workers import Workers
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed
from faustnet.training.evaluation import evaluate

EXAMPLES = (1, 10, 100)  # that a class is added from
DRAWS = 5  # of as many
EPOCHS = 5
CLASSES = 10  # of each data set that is known by name


@dataclass(frozen=True)
class Added:
    """One run: a class is left out of the training images, and added afterwards. A class has so many references."""

    dataset: str
    left_out: int
    references: int
    seed: int

    @property
    def recipe(self) -> Recipe:
        """FAUST-representative as tuned on MNIST, cut short. What was tuned on Fashion-MNIST draws classes together so much
        that a new one is seldom near enough to its own."""
        tuned = Wanted("tuned", "faust-representative", "mnist", "3x500", self.seed).recipe
        changes = {"dataset": self.dataset, "training.epochs": EPOCHS, "training.evaluate_every": EPOCHS}
        return changed(tuned, {**changes, "options.representatives": self.references})

    @property
    def facts(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("dataset", "left_out", "references", "seed")}

    def file(self, out: Path) -> Path:
        return out / "new-classes" / f"{self.dataset}-{self.left_out}-{self.references}-{self.seed}.json"

    def folder(self, out: Path) -> Path:
        return self.file(out).with_suffix(".run")

    def __str__(self) -> str:
        return f"{self.dataset} without class {self.left_out}, references {self.references}, seed {self.seed}"

    def data(self, load: Callable[[str], DataSet]) -> DataSet:
        """All classes but one."""
        data = load(self.dataset)
        names = tuple(name for number, name in enumerate(data.class_names) if number != self.left_out)
        train, test = (_without(part, self.left_out) for part in (data.train, data.test))
        return DataSet(data.name, names, train, test)

    def measured(self, model: Model, load: Callable[[str], DataSet]) -> dict[str, Any]:
        """Accuracy on the test images of the new class, of the old ones, and of all, for each draw of examples."""
        data = load(self.dataset)
        name, train = data.class_names[self.left_out], data.train
        own = train.all_pixels[train.labels == self.left_out]
        found = []
        for examples in EXAMPLES:
            for kind in KINDS if examples > 1 else KINDS[:1]:  # of a single example all are the same
                accuracies = []
                for draw in range(DRAWS):
                    drawn = torch.randperm(len(own), generator=torch.Generator().manual_seed(draw))[:examples]
                    accuracies.append(accuracy_by_age(model.add_class(name, own[drawn], kind), data))
                new, old, both = map(list, zip(*accuracies, strict=True))
                found.append({"kind": kind, "examples": examples, "new": new, "old": old, "all": both})
        return {"class_name": name, "added": found}


def accuracy_by_age(model: Model, data: DataSet) -> tuple[float, float, float]:
    """Of the test images of its last class, of the others, and of all."""
    test = model.known(data).test.to(model.scaling.mean.device)
    confusion = torch.tensor(evaluate(model.method, model.source(test)).confusion, dtype=torch.float64)
    right, counts = confusion.diagonal(), confusion.sum(dim=1)
    shares = right[-1] / counts[-1], right[:-1].sum() / counts[:-1].sum(), right.sum() / counts.sum()
    new, old, both = (share.item() for share in shares)
    return new, old, both


def _without(images: Images, left_out: int) -> Images:
    kept = images.take((images.labels != left_out).nonzero().flatten())
    return replace(kept, labels=kept.labels - (kept.labels > left_out).long())


def all_added(datasets: Sequence[str], classes: Sequence[int], references: Sequence[int], seeds: int) -> list[Added]:
    """Every class of every data set in turn."""
    check_seeds(seeds)
    for dataset in datasets:
        if dataset not in DATASETS:
            raise unknown("data set", dataset, DATASETS)
    for number in classes:
        require(0 <= number < CLASSES, f"There is no class {number}: they are numbered from 0 to {CLASSES - 1}.")
    for count in references:
        require(count >= 1, f"A class needs at least one reference, not {count}.")
    every = product(range(seeds), references, datasets, classes)
    return list(dict.fromkeys(Added(dataset, number, count, seed) for seed, count, dataset, number in every))


def study_new_classes(
    wanted: list[Added], out: Path, workers: Workers, say: Callable[[object, str], None]
) -> list[dict[str, Any]]:
    """OUT/new-classes.json and .md of all results that are there. → their cells"""
    return reproduced(TABLE, wanted, out, workers, Lines(out, say))


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracies in %, means over the draws and then over the classes that were left out; of the new class also the
    standard deviation over these and the least."""
    found: dict[tuple[str, int, str, int], list[dict[str, float]]] = {}
    for result in results:
        for one in result["added"]:
            key = (result["dataset"], result["references"], one["kind"], one["examples"])
            means = {age: 100 * statistics.mean(one[age]) for age in ("new", "old", "all")}
            found.setdefault(key, []).append({**means, "before": 100 * result["test_accuracy"]})
    return [
        {
            "dataset": dataset,
            "references": references,
            "kind": kind,
            "examples": examples,
            "runs": len(mine),
            **mean_and_std([one["new"] for one in mine]),
            "least": round(min(one["new"] for one in mine), 3),
            **{age: round(statistics.mean(one[age] for one in mine), 3) for age in ("before", "old", "all")},
        }
        for (dataset, references, kind, examples), mine in found.items()
    ]


TABLE = ResultTable(
    "new-classes",
    "new-classes/*.json",
    "the study of new classes",
    job=lambda result: Added(*(result[key] for key in ("dataset", "left_out", "references", "seed"))),
    cells=summary,
    texts=lambda cells: {"md": markdown(ADDED_COLUMNS, added_rows(cells)) + "\n"},
)
