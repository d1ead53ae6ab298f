"""Accuracy as classes come over time: a recipe of the family best/ is trained on some of the classes of its data set, and
the other classes are added in steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.data import DataSet
from faustnet.errors import require
from faustnet.methods.backprop import Backprop
from faustnet.report.comparison import t_half
from faustnet.report.figures import drawing, save
from faustnet.report.incremental import draw_incremental
from faustnet.reproduce.best import FAMILY, SomeClassesJob, best_names, interval_of, original, with_interval
from faustnet.reproduce.dispatch import reproduce
from faustnet.reproduce.growth import VARIANTS, backprop_steps, faust_steps
from faustnet.reproduce.jobs import Load, check_known, check_seeds
from faustnet.reproduce.results import Cells, ResultTable, grouped, mean_and_std
from faustnet.reproduce.workers import Workers
from faustnet.runs.model import Model
from faustnet.runs.recipes import shipped_recipes

SHARES = ("all", "old", "new")  # of the test images: of all classes so far, of the first ones, of those added since
POINT = ("of", "dataset", "first", "step", "variant", "classes")


@dataclass(frozen=True)
class IncrementalJob(SomeClassesJob):
    """One recipe, trained on the first classes; the others come in steps."""

    table = "incremental"
    name: str  # DATASET/NAME
    first: int
    step: int
    seed: int

    def data(self, load: Load) -> DataSet:
        data = load(self.recipe.dataset)
        most = len(data.class_names)
        require(self.first < most, f"--first must be below {most} for {data.name}, got {self.first}.")
        return data.only(self.order(data)[: self.first])

    def measure(self, model: Model, load: Load) -> dict[str, Any]:
        """Return the accuracy after every step, for each variant."""
        data = load(self.recipe.dataset)
        order = self.order(data)
        whole = data.with_classes((*model.class_names, *order[self.first :]))
        counts = [*range(self.first, len(order), self.step), len(order)]
        steps = backprop_steps if isinstance(model.method, Backprop) else faust_steps
        return {"steps": list(steps(model, whole, counts, self.seed))}

    def __str__(self) -> str:
        return f"best/{self.name}, {self.first} classes and steps of {self.step}, seed {self.seed}"


def incremental_jobs(name: str, first: int, step: int, seeds: int) -> list[IncrementalJob]:
    """Return jobs for a recipe and its backprop twin, seed by seed."""
    check_seeds(seeds)
    check_known("recipe", [name], best_names())
    require(f"{FAMILY}{name}-backprop" in shipped_recipes(), f"--base must be a recipe with a backprop twin, got {name}.")
    require(first >= 2, f"--first must be at least 2, got {first}.")
    require(step >= 1, f"--step must be at least 1, got {step}.")
    return [IncrementalJob(arm, first, step, seed) for seed in range(seeds) for arm in (name, f"{name}-backprop")]


def draw_steps(jobs: Sequence[IncrementalJob], out: Path, workers: Workers) -> list[Path]:
    """Train what is missing, write OUT/incremental.json and .md, and draw the curves of these jobs."""
    with drawing():
        cells = reproduce(TABLE, jobs, out, workers)
        return save(draw_incremental(cells, VARIANTS), out / "figures", "incremental")


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per variant and number of classes: test accuracies in %, means with 95 % intervals over the seeds. The
    cells of FAUST also have the differences to backprop, with their intervals."""
    points = [{**result, **point, "of": original(result["name"])} for result in results for point in result["steps"]]
    found = [
        {**about, "seeds": len(mine), **{share: _interval([one[share] for one in mine]) for share in SHARES}}
        for about, mine in grouped(points, *POINT)
    ]
    others = ("of", "first", "step", "classes")
    twins = {tuple(cell[key] for key in others): cell for cell in found if cell["variant"] == "backprop"}
    for cell in found:
        twin = twins.get(tuple(cell[key] for key in others))
        if twin is not None and twin is not cell:
            cell["difference"] = {share: _difference(cell, twin, share) for share in SHARES}
    order = list(VARIANTS)
    return sorted(found, key=lambda cell: (*TABLE.key(cell), order.index(cell["variant"]), cell["classes"]))


def _interval(shares: list[float | None]) -> dict[str, float | None] | None:
    """Return the mean of shares in %, their standard deviation, and half the length of the 95 % interval of the mean; None
    if there are no such images."""
    known = [100 * share for share in shares if share is not None]
    if not known:
        return None
    found = mean_and_std(known)
    half = t_half(known)
    return {**found, "interval": None if half is None else round(half, 3)}


def _difference(cell: dict[str, Any], twin: dict[str, Any], share: str) -> dict[str, float | None] | None:
    """Return the difference of two means, and half the length of its 95 % interval; None if there are no such images."""
    mine, its = cell[share], twin[share]
    if mine is None or its is None:
        return None
    half = interval_of({**mine, "seeds": cell["seeds"]}, {**its, "seeds": twin["seeds"]})
    return {"mean": round(mine["mean"] - its["mean"], 3), "interval": None if half is None else round(half, 3)}


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per variant and number of classes."""
    return [
        [
            f"{cell['of']}, {VARIANTS[cell['variant']]}",
            str(cell["classes"]),
            *(shown(cell[share]) for share in SHARES),
            difference(cell),
        ]
        for cell in cells
    ]


def difference(cell: dict[str, Any]) -> str:
    """Return the difference to backprop among all classes so far, with its 95 % interval."""
    found = cell.get("difference", {}).get("all")
    return "–" if found is None else with_interval(found["mean"], found["interval"])


def shown(share: dict[str, float | None] | None) -> str:
    if share is None:
        return "–"
    return f"{share['mean']:.2f}" + ("" if share["interval"] is None else f" ± {share['interval']:.2f}")


COLUMNS = ("recipe, variant", "classes", "all classes", "first classes", "added classes", "difference to backprop")
TABLE = ResultTable(IncrementalJob, summary, ("of", "first", "step"), COLUMNS, rows)
