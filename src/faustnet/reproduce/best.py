"""The strongest recipes, each FAUST recipe next to its backprop twin: same network, data, optimiser and epochs."""

import statistics
from dataclasses import dataclass
from typing import Any

from faustnet.errors import require, unknown
from faustnet.report.paper import dataset_rank
from faustnet.report.table1 import ours, signed
from faustnet.reproduce.jobs import Job, check_known, check_seeds
from faustnet.reproduce.results import Cells, ResultTable, grouped, percent
from faustnet.runs.recipes import Recipe, recipe_from, shipped_recipe, shipped_recipes

FAMILY, TWIN = "best/", "-backprop"


@dataclass(frozen=True)
class BestJob(Job):
    """One of the strongest recipes, or the twin of one, with one seed."""

    table = "best"
    name: str  # DATASET/NAME
    seed: int

    def __post_init__(self) -> None:
        if FAMILY + self.name not in shipped_recipes():
            raise unknown("recipe", self.name, best_names())

    @property
    def recipe(self) -> Recipe:
        return recipe_from({**shipped_recipe(FAMILY + self.name), "seed": self.seed})

    @property
    def facts(self) -> dict[str, Any]:
        recipe = self.recipe
        return {"name": self.name, "dataset": recipe.dataset, "method": recipe.method, "seed": self.seed}

    def __str__(self) -> str:
        return f"{FAMILY}{self.name}, seed {self.seed}"


def best_names() -> list[str]:
    """Return the names of the recipes, without twins."""
    names = [name.removeprefix(FAMILY) for name in shipped_recipes() if name.startswith(FAMILY)]
    return [name for name in names if not name.endswith(TWIN)]


def best_jobs(names: list[str] | None, seeds: int, *, twins: bool) -> list[BestJob]:
    """Return jobs for these recipes, by default all but those for digits, and for their twins, seed by seed."""
    check_seeds(seeds)
    if names is None:
        names = [name for name in best_names() if not name.startswith("digits/")]
    check_known("recipe", names, best_names())
    require(bool(names), "--names must contain at least one recipe, such as digits/mlp, got none.")
    shipped = shipped_recipes()
    pairs = [[name, name + TWIN] if twins and FAMILY + name + TWIN in shipped else [name] for name in names]
    return list(dict.fromkeys(BestJob(name, seed) for seed in range(seeds) for pair in pairs for name in pair))


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per recipe: test accuracy in %, mean and standard deviation over the seeds."""
    return [
        {
            **about,
            "twin": about["name"].endswith(TWIN),
            "of": about["name"].removesuffix(TWIN),
            "seeds": len(found),
            **percent(found),
            "parameters": found[0]["parameters"],
            "trunk_parameters": max(result.get("trunk_parameters", 0) for result in found) or None,
            "seconds": round(statistics.mean(result["seconds"] for result in found), 1),
            "epochs": found[0]["epochs"],
        }
        for about, found in grouped(results, "name", "dataset", "method")
    ]


def in_order(cells: Cells) -> Cells:
    """Return the cells by data set, then by name."""
    return sorted(cells, key=lambda cell: (dataset_rank(cell["dataset"]), cell["name"]))


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per recipe: its accuracy, its twin's, and the parameters and seconds of both."""
    twins = {cell["of"]: cell for cell in cells if cell["twin"]}
    return [_row(cell, twins.get(cell["name"])) for cell in in_order(cells) if not cell["twin"]]


def _row(cell: dict[str, Any], twin: dict[str, Any] | None) -> list[str]:
    both = [cell] if twin is None else [cell, twin]
    return [
        cell["name"],
        ours(cell),
        "–" if twin is None else ours(twin),
        "–" if twin is None else signed(cell["mean"] - twin["mean"]),
        "–" if cell["trunk_parameters"] is None else f"{cell['trunk_parameters']:,}",
        " / ".join(f"{one['parameters']:,}" for one in both),
        " / ".join(f"{one['seconds']:.0f}" for one in both),
    ]


COLUMNS = ("recipe", "local", "backprop twin", "difference", "trunk parameters", "parameters", "seconds")
TABLE = ResultTable(BestJob, summary, ("name",), COLUMNS, rows)
