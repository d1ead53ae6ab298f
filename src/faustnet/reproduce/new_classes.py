"""Accuracy on a class that was added from a few images, without training, to a model of all other classes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from faustnet.data import DATASETS, DataSet
from faustnet.errors import require
from faustnet.nn.references import REFERENCE_KINDS
from faustnet.report.paper import dataset_rank, dataset_title
from faustnet.report.table1 import ours, signed
from faustnet.reproduce.jobs import Job, Load, Table1Job, check_known, check_seeds
from faustnet.reproduce.results import Cells, ResultTable, grouped, mean_and_std
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed
from faustnet.training.evaluation import evaluate

EXAMPLES = (1, 10, 100)  # numbers of images that a class is added from
DRAWS = 5  # of each number
EPOCHS = 5
CLASSES = 10  # of every named data set
KEYS = ("dataset", "references", "kind", "examples")


@dataclass(frozen=True)
class NewClassJob(Job):
    """A class is left out of the training images, and added to the trained model."""

    table = "new-classes"
    dataset: str
    left_out: int
    references: int  # of each class
    seed: int

    @property
    def recipe(self) -> Recipe:
        """FAUST-representative as tuned on MNIST, with fewer epochs.

        The recipe tuned on Fashion-MNIST maps classes so close together that a new class is rarely closest to its own
        references.
        """
        tuned = Table1Job("tuned", "faust-representative", "mnist", "3x500", self.seed).recipe
        changes = {"dataset": self.dataset, "training.epochs": EPOCHS, "training.evaluate_every": EPOCHS}
        return changed(tuned, {**changes, "options.representatives": self.references})

    def __str__(self) -> str:
        return f"{self.dataset} without class {self.left_out}, references {self.references}, seed {self.seed}"

    def data(self, load: Load) -> DataSet:
        """Return the data set without one class."""
        data = load(self.dataset)
        return data.only([name for number, name in enumerate(data.class_names) if number != self.left_out])

    def measure(self, model: Model, load: Load) -> dict[str, Any]:
        """Return the test accuracy on the new class, on the old classes and on all, for each draw of examples."""
        data = load(self.dataset)
        name, train = data.class_names[self.left_out], data.train
        own = train.all_pixels[train.labels == self.left_out]
        found = []
        for examples in EXAMPLES:
            for kind in REFERENCE_KINDS if examples > 1 else REFERENCE_KINDS[:1]:  # all kinds are equal for a single example
                accuracies = []
                for draw in range(DRAWS):
                    drawn = torch.randperm(len(own), generator=torch.Generator().manual_seed(draw))[:examples]
                    accuracies.append(new_old_all_accuracy(model.add_class(name, own[drawn], kind), data))
                new, old, both = map(list, zip(*accuracies, strict=True))
                found.append({"kind": kind, "examples": examples, "new": new, "old": old, "all": both})
        return {"class_name": name, "added": found}


def new_old_all_accuracy(model: Model, data: DataSet) -> tuple[float, float, float]:
    """Return the accuracy on the test images of the model's last class, of its other classes, and of all."""
    test = model.known(data).test.to(model.device)
    confusion = torch.tensor(evaluate(model.method, model.source(test)).confusion, dtype=torch.float64)
    right, counts = confusion.diagonal(), confusion.sum(dim=1)
    shares = right[-1] / counts[-1], right[:-1].sum() / counts[:-1].sum(), right.sum() / counts.sum()
    new, old, both = (share.item() for share in shares)
    return new, old, both


def new_class_jobs(
    datasets: Sequence[str], classes: Sequence[int], references: Sequence[int], seeds: int
) -> list[NewClassJob]:
    """Return jobs that leave out each of these classes of each data set in turn."""
    check_seeds(seeds)
    check_known("data set", datasets, DATASETS)
    for number in classes:
        require(0 <= number < CLASSES, f"--classes must be numbers from 0 to {CLASSES - 1}, got {number}.")
    for count in references:
        require(count >= 1, f"--references must be at least 1, got {count}.")
    every = product(range(seeds), references, datasets, classes)
    return list(dict.fromkeys(NewClassJob(dataset, number, count, seed) for seed, count, dataset, number in every))


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per data set, references, kind and examples: accuracies in %, means over draws, then over classes.

    The accuracy on the new class has its standard deviation over the classes, and its minimum.
    """
    runs = [
        {
            **result,
            **added,
            **{which: 100 * statistics.mean(added[which]) for which in ("new", "old", "all")},
            "before": 100 * result["test_accuracy"],
        }
        for result in results
        for added in result["added"]
    ]
    return [
        {
            **about,
            "runs": len(mine),
            **mean_and_std([one["new"] for one in mine]),
            "least": round(min(one["new"] for one in mine), 3),
            **{which: round(statistics.mean(one[which] for one in mine), 3) for which in ("before", "old", "all")},
        }
        for about, mine in grouped(runs, *KEYS)
    ]


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per kind of reference and number of examples."""
    return [
        [
            f"{dataset_title(cell['dataset'])}, {cell['references']}",
            cell["kind"] if cell["examples"] > 1 else "any",
            str(cell["examples"]),
            ours(cell),
            *(f"{cell[key]:.2f}" for key in ("least", "before", "old")),
            signed(cell["old"] - cell["before"]),
            f"{cell['all']:.2f}",
        ]
        for cell in sorted(cells, key=lambda cell: (dataset_rank(cell["dataset"]), cell["references"], cell["examples"]))
    ]


COLUMNS = (
    "data set, references per class", "kind", "examples", "new class", "minimum", "old classes before", "after",
    "difference", "all classes",
)  # fmt: skip
TABLE = ResultTable(NewClassJob, summary, KEYS, COLUMNS, rows)
