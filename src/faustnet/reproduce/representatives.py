"""Accuracy by the kind and the number of references of a class: random images, medoids of k-means, learned prototypes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.errors import require
from faustnet.report.figures import draw_choices, drawing, save
from faustnet.reproduce.dispatch import reproduce
from faustnet.reproduce.jobs import Job, Table1Job
from faustnet.reproduce.results import Cells, ResultTable, grouped, mean_and_std
from faustnet.reproduce.workers import Workers
from faustnet.runs.recipes import Recipe, changed

SEEDS = 3  # of every other point
KINDS = ("random", "k-means", "prototype")
POINT = ("dataset", "network", "kind", "count")


@dataclass(frozen=True)
class RepresentativesJob(Job):
    """One kind and number of references per class, with one seed, which determines the references and the weights."""

    table = "representatives"
    dataset: str
    network: str
    kind: str
    count: int
    seed: int

    @property
    def recipe(self) -> Recipe:
        """The tuned recipe of FAUST-representative, with other references."""
        tuned = Table1Job("tuned", "faust-representative", self.dataset, self.network, self.seed).recipe
        if self.kind == "prototype":
            return changed(tuned, {"method": "faust-prototype", "options.prototypes": self.count})
        return changed(tuned, {"options.choice": self.kind, "options.representatives": self.count})

    def __str__(self) -> str:
        return f"{self.count} × {self.kind} on {self.dataset}, {self.network}, seed {self.seed}"


def representatives_jobs(datasets: list[str], network: str, draws: int, counts: list[int]) -> list[RepresentativesJob]:
    """Return `draws` random choices of a single image, then jobs for every kind and number."""
    jobs = [RepresentativesJob(dataset, network, "random", 1, seed) for dataset in datasets for seed in range(draws)]
    jobs += [
        RepresentativesJob(dataset, network, kind, count, seed)
        for seed in range(min(draws, SEEDS))
        for dataset in datasets
        for count in counts
        for kind in KINDS
    ]
    for job in jobs:
        require(job.count >= 1, f"--counts must be at least 1, got {job.count}.")
        job.recipe  # noqa: B018 - raises an error for an unknown data set or network
    return list(dict.fromkeys(jobs))


def draw_representatives(jobs: list[RepresentativesJob], out: Path, workers: Workers) -> list[Path]:
    """Train what is missing, write OUT/representatives.json and draw the points of these jobs."""
    with drawing():
        points = reproduce(TABLE, jobs, out, workers)
        found = {TABLE.key(point): point for point in points}
        order = dict.fromkeys(TABLE.key(job.facts) for job in jobs)
        return save(draw_choices([found[key] for key in order]), out / "figures", "representatives")


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per data set, network, kind and number: test accuracies in %, their mean and standard deviation."""
    order = sorted(results, key=lambda one: (one["dataset"], one["network"], KINDS.index(one["kind"]), one["count"]))
    cells = []
    for about, mine in grouped(order, *POINT):
        accuracies = [round(100 * one["test_accuracy"], 3) for one in mine]
        cells.append({**about, **mean_and_std(accuracies), "accuracies": accuracies})
    return cells


TABLE = ResultTable(RepresentativesJob, summary, POINT, texts=lambda cells: {})
