"""Accuracy by the number of classes: a recipe of the family best/ and its twins on some of the classes of their data set."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.data import DataSet
from faustnet.errors import require
from faustnet.report.figures import draw_class_counts, drawing, save
from faustnet.report.table1 import ours
from faustnet.reproduce.best import LOCAL, ROLES, BestJob, SomeClassesJob, best_jobs, difference, original, role_of
from faustnet.reproduce.dispatch import reproduce
from faustnet.reproduce.jobs import Load
from faustnet.reproduce.results import Cells, ResultTable, grouped, is_done, percent, read_result
from faustnet.reproduce.worker import cached_data
from faustnet.reproduce.workers import Workers
from faustnet.system.files import write_whole

POINT = ("name", "dataset", "method", "count")


@dataclass(frozen=True)
class ClassCountJob(SomeClassesJob):
    """One recipe on the first `count` classes, so that those of a smaller number are among those of a larger one."""

    table = "class-counts"
    name: str  # DATASET/NAME
    count: int
    seed: int

    def data(self, load: Load) -> DataSet:
        data = load(self.recipe.dataset)
        most = len(data.class_names)
        require(self.count <= most, f"--counts must be at most {most} for {self.recipe.dataset}, got {self.count}.")
        return data.only(self.order(data)[: self.count])

    def __str__(self) -> str:
        return f"best/{self.name} on {self.count} classes, seed {self.seed}"


def class_count_jobs(name: str, counts: list[int], seeds: int) -> list[ClassCountJob]:
    """Return jobs for a recipe and its twins, seed by seed."""
    for count in counts:
        require(count >= 2, f"--counts must be at least 2, got {count}.")
    arms = best_jobs([name], seeds, twins=True)
    return list(dict.fromkeys(ClassCountJob(arm.name, count, arm.seed) for arm in arms for count in counts))


def draw_counts(jobs: list[ClassCountJob], out: Path, workers: Workers) -> list[Path]:
    """Train what is missing, write OUT/class-counts.json and .md, and draw the points of these jobs."""
    with drawing():
        reuse_best(jobs, out, lambda name: cached_data(name, workers.data_dir))
        points = {TABLE.key(point): point for point in reproduce(TABLE, jobs, out, workers)}
        order = dict.fromkeys(TABLE.key(job.facts) for job in jobs)
        return save(draw_class_counts([points[key] for key in order]), out / "figures", "class-counts")


def reuse_best(jobs: list[ClassCountJob], out: Path, load: Load) -> None:
    """Copy the results of `faustnet reproduce best` in the folder for the jobs with all classes, which are the same runs."""
    for job in jobs:
        best = BestJob(job.name, job.seed)
        there = not is_done(job, out) and is_done(best, out)
        if there and job.count == len(load(job.recipe.dataset).class_names):
            text = json.dumps({**job.facts, **read_result(best.file(out))}, indent=1)
            job.file(out).parent.mkdir(parents=True, exist_ok=True)
            write_whole(job.file(out), f"{text}\n".encode())


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per recipe and number of classes: test accuracy in %, mean and standard deviation over the seeds."""
    order = sorted(results, key=lambda one: (original(one["name"]), one["count"], one["name"]))
    return [
        {**about, "of": original(about["name"]), "role": role_of(about["name"]), "seeds": len(found), **percent(found)}
        for about, found in grouped(order, *POINT)
    ]


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per recipe and number of classes: its accuracy, its twins', the differences, and the numbers of
    seeds."""
    found = {(cell["of"], cell["count"], cell["role"]): cell for cell in cells}
    lines = []
    for (name, count, role), cell in found.items():
        if role == LOCAL:
            twins = [found.get((name, count, other)) for other in ROLES.values()]
            compared = [("–", "–") if twin is None else (ours(twin), difference(cell, twin)) for twin in twins]
            seeds = " / ".join(str(arm["seeds"]) for arm in (cell, *twins) if arm is not None)
            lines.append([name, str(count), ours(cell), *(text for pair in compared for text in pair), seeds])
    return lines


COLUMNS = (
    "recipe", "classes", "local", "backprop", "local − backprop", "deep supervision", "local − deep supervision",
    "seeds",
)  # fmt: skip
TABLE = ResultTable(ClassCountJob, summary, POINT, COLUMNS, rows)
