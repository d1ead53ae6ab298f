"""How well images that are of no known class are told from those that are, beside backprop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from faustnet.data import DataSet
from faustnet.errors import unknown
from faustnet.methods import Faust
from faustnet.nn.references import margin, nearness
from faustnet.report.classes import REJECTION_COLUMNS, rejection_rows
from faustnet.report.comparisons import markdown
from faustnet.reproduce.results import ResultTable, mean_and_std
from faustnet.reproduce.wanted import Wanted, check_seeds, on_validation
from faustnet.reproduce.work import Lines, reproduced
from faustnet.reproduce.workers import Workers
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed
from faustnet.runs.session import validation_split
from faustnet.training.evaluation import auroc, threshold_accepting

STRANGE = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}  # whose images are of no known class
METHODS = ("faust-representative", "backprop")
EPOCHS = 5
ACCEPT = 0.95  # of the validation images
HELD_OUT = 5000  # of the strange data set's training images, for validation


@dataclass(frozen=True)
class Rejection:
    """One run, on one data set; the test images of another are to be rejected."""

    dataset: str
    method: str
    seed: int

    @property
    def recipe(self) -> Recipe:
        """The tuned one, cut short, with images held out to calibrate on."""
        tuned = Wanted("tuned", self.method, self.dataset, "3x500", self.seed).recipe
        return on_validation(changed(tuned, {"training.epochs": EPOCHS}))

    @property
    def facts(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("dataset", "method", "seed")}

    def file(self, out: Path) -> Path:
        return out / "rejection" / f"{self.dataset}-{self.method}-{self.seed}.json"

    def folder(self, out: Path) -> Path:
        return self.file(out).with_suffix(".run")

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, seed {self.seed}"

    def data(self, load: Callable[[str], DataSet]) -> DataSet:
        return load(self.dataset)

    def measured(self, model: Model, load: Callable[[str], DataSet]) -> dict[str, Any]:
        """By each score: the AUROC on the test images and on images that were held out from training, and what a threshold
        that accepts most of the latter accepts and rejects of the former."""
        data, strange = load(self.dataset), load(STRANGE[self.dataset])
        _, held_out = validation_split(self.recipe, data)
        sets = data.test, strange.test, held_out, strange.train.split(HELD_OUT, seed=0)[1]
        voted = [model.scores(images.all_pixels).cpu() for images in sets]
        found = []
        for name, score in scores_of(model).items():
            known, other, known_before, other_before = map(score, voted)
            threshold = threshold_accepting(known_before, ACCEPT)
            found.append(
                {
                    "score": name,
                    "auroc": auroc(known, other),
                    "validation_auroc": auroc(known_before, other_before),
                    "accepted": (known >= threshold).double().mean().item(),
                    "rejected": (other < threshold).double().mean().item(),
                }
            )
        return {"strange": STRANGE[self.dataset], "scores": found}


def scores_of(model: Model) -> dict[str, Callable[[Tensor], Tensor]]:
    """What may tell how sure it is that an image is of a known class; larger is surer. The first one is what is used.
    Each (voters, n, C) → (n,)"""
    if not isinstance(model.method, Faust):
        return {
            "softmax": lambda scores: scores[-1].softmax(dim=-1).amax(dim=-1),
            "output": lambda scores: scores[-1].amax(dim=-1),
            "energy": lambda scores: scores[-1].logsumexp(dim=-1),
        }
    scale = model.method.scale
    return {
        "first layer": nearness,
        "last layer": lambda scores: scores[-1].amax(dim=-1),
        "all layers": lambda scores: scores.sum(dim=0).amax(dim=-1),
        "margin": lambda scores: margin(scores.sum(dim=0)),
        "softmax": lambda scores: (-scale * scores.square().sum(dim=0)).softmax(dim=-1).amax(dim=-1),
        "energy": lambda scores: (-scale * scores.square()).logsumexp(dim=-1).sum(dim=0),
    }


def all_rejections(datasets: Sequence[str], seeds: int) -> list[Rejection]:
    """Both methods on every data set, seed by seed."""
    check_seeds(seeds)
    for dataset in datasets:
        if dataset not in STRANGE:
            raise unknown("data set with strange images beside it", dataset, STRANGE)
    every = [(dataset, method, seed) for seed in range(seeds) for dataset in datasets for method in METHODS]
    return list(dict.fromkeys(Rejection(*one) for one in every))


def study_rejection(
    wanted: list[Rejection], out: Path, workers: Workers, say: Callable[[object, str], None]
) -> list[dict[str, Any]]:
    """OUT/rejection.json and .md of all results that are there. → their cells"""
    return reproduced(TABLE, wanted, out, workers, Lines(out, say))


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By data set, method and score, in %: the AUROC's mean and standard deviation over the seeds, the means of all else."""
    found: dict[tuple[str, str, str, str], list[dict[str, float]]] = {}
    for result in results:
        for one in result["scores"]:
            key = (result["dataset"], result["strange"], result["method"], one["score"])
            found.setdefault(key, []).append({**one, "accuracy": result["test_accuracy"]})
    others = ("validation_auroc", "accepted", "rejected", "accuracy")
    return [
        {
            "dataset": dataset,
            "strange": strange,
            "method": method,
            "score": score,
            "seeds": len(mine),
            **mean_and_std([100 * one["auroc"] for one in mine]),
            **{key: mean_and_std([100 * one[key] for one in mine])["mean"] for key in others},
        }
        for (dataset, strange, method, score), mine in found.items()
    ]


TABLE = ResultTable(
    "rejection",
    "rejection/*.json",
    "the study of rejection",
    job=lambda result: Rejection(*(result[key] for key in ("dataset", "method", "seed"))),
    cells=summary,
    texts=lambda cells: {"md": markdown(REJECTION_COLUMNS, rejection_rows(cells)) + "\n"},
)
