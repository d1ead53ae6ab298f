"""Rejection of images of unknown classes: images of another data set, by FAUST and by backprop.

MNIST and Fashion-MNIST are very different from each other. CIFAR-100 is close to CIFAR-10, and the evaluation set of
Omniglot has characters of other alphabets, drawn in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.data import Images
from faustnet.errors import require
from faustnet.methods import Faust
from faustnet.nn.references import known_score, score_margin
from faustnet.report.paper import dataset_rank, dataset_title
from faustnet.report.table1 import ours
from faustnet.reproduce.jobs import (
    Job,
    Load,
    Table1Job,
    check_known,
    check_seeds,
    check_shipped,
    on_validation,
    recipe_name,
)
from faustnet.reproduce.results import Cells, ResultTable, grouped, method_titles, percent
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed, recipe_from, shipped_recipe
from faustnet.runs.session import validation_split
from faustnet.training.evaluation import auroc, chunks, threshold_accepting

UNKNOWN = {  # the data set whose images are to be rejected
    "mnist": "fashion-mnist", "fashion-mnist": "mnist", "cifar10": "cifar100", "omniglot": "omniglot-evaluation"
}  # fmt: skip
RECIPES = {  # of data sets that are not trained by their tuned recipe with fewer epochs; of FAUST and of its backprop twin
    "cifar10": ("best/cifar10/cnn", "best/cifar10/cnn-backprop"),
    "omniglot": ("few-shot/omniglot/faust-representative", "few-shot/omniglot/backprop"),
}
COMPARED = ("faust-representative", "backprop")
EPOCHS = 5  # of a tuned recipe
ACCEPT = 0.95  # of the validation images
HELD_OUT = 5000  # training images of the unknown data set, for validation
HELD_OUT_SHARE = 0.1  # of the training images of Omniglot, which has few
NEIGHBOURS = (1, 50)  # the distance to the nearest training image, and to the 50th one as by Sun et al. (2022)
AT_ONCE = 500  # images whose distances to all training images are computed at once


@dataclass(frozen=True)
class RejectionJob(Job):
    """A run on one data set; the test images of another one are to be rejected."""

    table = "rejection"
    dataset: str
    method: str
    seed: int

    def __post_init__(self) -> None:
        check_known("method of the comparison", [self.method], COMPARED)
        check_shipped(self.recipe_name)

    @property
    def recipe_name(self) -> str:
        if self.dataset in RECIPES:
            return RECIPES[self.dataset][COMPARED.index(self.method)]
        return recipe_name("tuned", self.method, self.dataset)

    @property
    def recipe(self) -> Recipe:
        """The tuned recipe with fewer epochs, or that of `RECIPES`, with images held out for calibration."""
        if self.dataset not in RECIPES:
            tuned = Table1Job("tuned", self.method, self.dataset, "3x500", self.seed).recipe
            return on_validation(changed(tuned, {"training.epochs": EPOCHS}))
        recipe = on_validation(recipe_from({**shipped_recipe(self.recipe_name), "seed": self.seed}))
        return changed(recipe, {"training.validation": HELD_OUT_SHARE}) if self.dataset == "omniglot" else recipe

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, seed {self.seed}"

    def measure(self, model: Model, load: Load) -> dict[str, Any]:
        """Return the AUROC of each score, on test and on held-out images, the false positives at 95 % true positives, and
        the shares accepted and rejected.

        A false positive is an unknown test image that reaches the threshold which 95 % of the known test images reach. The
        other shares are at the threshold that accepts a share ACCEPT of the held-out images.
        """
        data, other = load(self.recipe.dataset), load(UNKNOWN[self.dataset])
        train, held_out = validation_split(self.recipe, data)
        sets = data.test, other.test, held_out, other.train.split(HELD_OUT, seed=0)[1]
        by_name: dict[str, list[Tensor]] = {name: [] for name in scores_of(model)}
        for images in sets:  # one after the other, because scores of many classes need much memory
            scores = model.scores(images.all_pixels).cpu()
            for name, score in scores_of(model).items():
                by_name[name].append(score(scores))
        by_name |= neighbour_scores(model, train, sets)
        return {"strange": UNKNOWN[self.dataset], "scores": [measured(name, *found) for name, found in by_name.items()]}


def measured(name: str, known: Tensor, unknown: Tensor, known_held_out: Tensor, unknown_held_out: Tensor) -> dict[str, Any]:
    """Return how well a score distinguishes test images, and held-out images, from those of unknown classes. (n,) each"""
    threshold = threshold_accepting(known_held_out, ACCEPT)
    return {
        "score": name,
        "auroc": auroc(known, unknown),
        "validation_auroc": auroc(known_held_out, unknown_held_out),
        "false_positives": (unknown >= threshold_accepting(known, ACCEPT)).double().mean().item(),
        "accepted": (known >= threshold).double().mean().item(),
        "rejected": (unknown < threshold).double().mean().item(),
    }


def neighbour_scores(model: Model, train: Images, sets: Sequence[Images]) -> dict[str, list[Tensor]]:
    """Return the negative distance of images to their k-th nearest training image, for each k of `NEIGHBOURS` that is at
    most the number of training images of every class: that of the last layer's embeddings, divided by their lengths."""
    images = unit_embeddings(model, train)
    smallest = int(torch.bincount(train.labels).min())
    counts = [count for count in NEIGHBOURS if count == 1 or count <= smallest]
    found: dict[str, list[Tensor]] = {f"neighbour {count}": [] for count in counts}
    for one in sets:
        parts = [
            torch.cdist(rows, images).topk(max(counts), largest=False) for rows in unit_embeddings(model, one).split(AT_ONCE)
        ]
        distances = torch.cat([part.values for part in parts]).cpu()
        for count in counts:
            found[f"neighbour {count}"].append(-distances[:, count - 1])
    return found


def unit_embeddings(model: Model, images: Images) -> Tensor:
    """Return the embeddings of the last layer, divided by their lengths. → (n, e)"""
    source, last = model.source(images.to(model.device)), [len(model.method.network)]
    found = [model.method.embed(source.plain(chunk), last) for chunk in chunks(source, model.method)]
    return functional.normalize(torch.cat(found), dim=1)


def scores_of(model: Model) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return candidate scores for "of a known class"; larger is more certain. `calibrate` uses the first one.

    Each maps (voters, n, C) → (n,).
    """
    if not isinstance(model.method, Faust):
        return {
            "softmax": lambda scores: scores[-1].softmax(dim=-1).amax(dim=-1),
            "output": lambda scores: scores[-1].amax(dim=-1),
            "energy": lambda scores: scores[-1].logsumexp(dim=-1),
        }
    scale = model.method.scale
    return {
        "first layer": known_score,
        "last layer": lambda scores: scores[-1].amax(dim=-1),
        "all layers": lambda scores: scores.sum(dim=0).amax(dim=-1),
        "margin": lambda scores: score_margin(scores.sum(dim=0)),
        "softmax": lambda scores: (-scale * scores.square().sum(dim=0)).softmax(dim=-1).amax(dim=-1),
        "energy": lambda scores: (-scale * scores.square()).logsumexp(dim=-1).sum(dim=0),
    }


def rejection_jobs(datasets: Sequence[str], seeds: int) -> list[RejectionJob]:
    """Return jobs for both methods on every data set, seed by seed."""
    check_seeds(seeds)
    for name in datasets:
        require(name in UNKNOWN, f"--datasets must be {' or '.join(UNKNOWN)}, got {name!r}.")
    every = [(dataset, method, seed) for seed in range(seeds) for dataset in datasets for method in COMPARED]
    return list(dict.fromkeys(RejectionJob(*one) for one in every))


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per data set, method and score, in %: AUROC with its standard deviation over the seeds, and means."""
    scores = [{**result, **score, "accuracy": result["test_accuracy"]} for result in results for score in result["scores"]]
    means = ("validation_auroc", "false_positives", "accepted", "rejected", "accuracy")
    return [
        {
            **about,
            "seeds": len(mine),
            **percent(mine, "auroc"),
            **{name: percent(mine, name)["mean"] for name in means if all(name in one for one in mine)},
        }
        for about, mine in grouped(scores, "dataset", "strange", "method", "score")
    ]


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per method and score."""
    return [
        [
            f"{dataset_title(cell['dataset'])} / {dataset_title(cell['strange'])}",
            method_titles()[cell["method"]],
            cell["score"],
            ours(cell),
            *(
                f"{cell[key]:.2f}" if key in cell else "–"  # earlier results have no false positives
                for key in ("validation_auroc", "false_positives", "accepted", "rejected")
            ),
        ]
        for cell in sorted(cells, key=lambda cell: (dataset_rank(cell["dataset"]), cell["method"] == "backprop"))
    ]


COLUMNS = (
    "known / unknown data set", "method", "score", "AUROC", "AUROC on validation images", "false positives at 95 %",
    "known accepted", "unknown rejected"
)  # fmt: skip
TABLE = ResultTable(RejectionJob, summary, ("dataset", "method", "score"), COLUMNS, rows)
