"""Rejection of images of unknown classes: images of another data set, by FAUST and by backprop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from faustnet.errors import require
from faustnet.methods import Faust
from faustnet.nn.references import known_score, score_margin
from faustnet.report.paper import dataset_rank, dataset_title
from faustnet.report.table1 import ours
from faustnet.reproduce.jobs import Job, Load, Table1Job, check_seeds, on_validation
from faustnet.reproduce.results import Cells, ResultTable, grouped, method_titles, percent
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed
from faustnet.runs.session import validation_split
from faustnet.training.evaluation import auroc, threshold_accepting

UNKNOWN = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}  # the data set whose images are to be rejected
COMPARED = ("faust-representative", "backprop")
EPOCHS = 5
ACCEPT = 0.95  # of the validation images
HELD_OUT = 5000  # training images of the unknown data set, for validation


@dataclass(frozen=True)
class RejectionJob(Job):
    """A run on one data set; the test images of another one are to be rejected."""

    table = "rejection"
    dataset: str
    method: str
    seed: int

    @property
    def recipe(self) -> Recipe:
        """The tuned recipe with fewer epochs, and with images held out for calibration."""
        tuned = Table1Job("tuned", self.method, self.dataset, "3x500", self.seed).recipe
        return on_validation(changed(tuned, {"training.epochs": EPOCHS}))

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, seed {self.seed}"

    def measure(self, model: Model, load: Load) -> dict[str, Any]:
        """Return the AUROC of each score, on test and on held-out images, and the shares accepted and rejected.

        The threshold accepts a share ACCEPT of the held-out images.
        """
        data, other = load(self.dataset), load(UNKNOWN[self.dataset])
        _, held_out = validation_split(self.recipe, data)
        sets = data.test, other.test, held_out, other.train.split(HELD_OUT, seed=0)[1]
        all_scores = [model.scores(images.all_pixels).cpu() for images in sets]
        found = []
        for name, score in scores_of(model).items():
            known, unknown_, known_held_out, unknown_held_out = map(score, all_scores)
            threshold = threshold_accepting(known_held_out, ACCEPT)
            found.append(
                {
                    "score": name,
                    "auroc": auroc(known, unknown_),
                    "validation_auroc": auroc(known_held_out, unknown_held_out),
                    "accepted": (known >= threshold).double().mean().item(),
                    "rejected": (unknown_ < threshold).double().mean().item(),
                }
            )
        return {"strange": UNKNOWN[self.dataset], "scores": found}


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
    means = ("validation_auroc", "accepted", "rejected", "accuracy")
    return [
        {
            **about,
            "seeds": len(mine),
            **percent(mine, "auroc"),
            **{name: percent(mine, name)["mean"] for name in means},
        }
        for about, mine in grouped(scores, "dataset", "strange", "method", "score")
    ]


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per method and score."""
    return [
        [
            f"{dataset_title(cell['dataset'])}, {dataset_title(cell['strange'])}",
            method_titles()[cell["method"]],
            cell["score"],
            ours(cell),
            *(f"{cell[key]:.2f}" for key in ("validation_auroc", "accepted", "rejected")),
        ]
        for cell in sorted(cells, key=lambda cell: (dataset_rank(cell["dataset"]), cell["method"] == "backprop"))
    ]


COLUMNS = (
    "known, unknown data set", "method", "score", "AUROC", "AUROC on validation images", "known accepted", "unknown rejected"
)  # fmt: skip
TABLE = ResultTable(RejectionJob, summary, ("dataset", "method", "score"), COLUMNS, rows)
