"""The strongest recipes, each FAUST recipe next to its twins: the same network, data, optimiser and epochs except
for what was tuned, trained by backprop, and by backprop with a loss in every layer (deep supervision)."""

import random
import statistics
from dataclasses import dataclass
from typing import Any

from faustnet.data import DataSet
from faustnet.errors import require, unknown
from faustnet.report.comparison import welch_half
from faustnet.report.paper import dataset_rank
from faustnet.report.table1 import ours, signed
from faustnet.reproduce.jobs import Job, check_known, check_seeds
from faustnet.reproduce.results import Cells, ResultTable, grouped, percent
from faustnet.runs.recipes import Recipe, choice_of_recipe, recipe_from, shipped_recipe, shipped_recipes

FAMILY = "best/"
ROLES = {"-backprop": "backprop", "-deep-supervision": "deep-supervision"}  # of twins, by the end of their names
LOCAL = "local"  # role of all others


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


class SomeClassesJob(Job):
    """One of the strongest recipes, or the twin of one, on some of the classes of its data set. The seed determines the
    order of the classes, and the weights."""

    name: str  # DATASET/NAME
    seed: int

    @property
    def recipe(self) -> Recipe:
        return BestJob(self.name, self.seed).recipe

    @property
    def facts(self) -> dict[str, Any]:
        return {**BestJob(self.name, self.seed).facts, **super().facts}

    def order(self, data: DataSet) -> list[str]:
        """Return the names of all classes in the order of this seed."""
        names = list(data.class_names)
        random.Random(self.seed).shuffle(names)
        return names


def best_names() -> list[str]:
    """Return the names of the recipes, without twins."""
    names = [name.removeprefix(FAMILY) for name in shipped_recipes() if name.startswith(FAMILY)]
    return [name for name in names if role_of(name) == LOCAL]


def role_of(name: str) -> str:
    """Return the role of a recipe in its comparison."""
    return next((role for ending, role in ROLES.items() if name.endswith(ending)), LOCAL)


def original(name: str) -> str:
    """Return the name of the recipe that a twin belongs to, or the name itself."""
    for ending in ROLES:
        name = name.removesuffix(ending)
    return name


def best_jobs(names: list[str] | None, seeds: int, *, twins: bool) -> list[BestJob]:
    """Return jobs for these recipes, by default all but those for digits, and for their twins, seed by seed."""
    check_seeds(seeds)
    if names is None:
        names = [name for name in best_names() if not name.startswith("digits/")]
    check_known("recipe", names, best_names())
    require(bool(names), "--names must contain at least one recipe, such as digits/mlp, got none.")
    shipped = shipped_recipes()
    endings = ("", *ROLES) if twins else ("",)
    wanted = [name + ending for name in names for ending in endings if FAMILY + name + ending in shipped]
    return list(dict.fromkeys(BestJob(name, seed) for seed in range(seeds) for name in wanted))


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per recipe: test accuracy in %, mean and standard deviation over the seeds."""
    return [
        {
            **about,
            "of": original(about["name"]),
            "role": role_of(about["name"]),
            **_choice(about["name"]),
            "seeds": len(found),
            **percent(found),
            "parameters": found[0]["parameters"],
            "trunk_parameters": max(result.get("trunk_parameters", 0) for result in found) or None,
            "seconds": round(statistics.mean(result["seconds"] for result in found), 1),
            "epochs": found[0]["epochs"],
        }
        for about, found in grouped(results, "name", "dataset", "method")
    ]


def _choice(name: str) -> dict[str, Any]:
    """Return what was tuned, and in how many trials."""
    return choice_of_recipe(name) or {"tuning": None, "trials": 0}


def in_order(cells: Cells) -> Cells:
    """Return the cells by data set, then by name."""
    return sorted(cells, key=lambda cell: (dataset_rank(cell["dataset"]), cell["name"]))


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per recipe: its accuracy and its twins', and the parameters and seconds of all."""
    twins = {(cell["of"], cell["role"]): cell for cell in cells if cell["role"] != LOCAL}
    return [
        _row(cell, [twins.get((cell["name"], role)) for role in ROLES.values()])
        for cell in in_order(cells)
        if cell["role"] == LOCAL
    ]


def _row(cell: dict[str, Any], twins: list[dict[str, Any] | None]) -> list[str]:
    all_arms = [cell, *(twin for twin in twins if twin is not None)]
    compared = [text for twin in twins for text in (("–", "–") if twin is None else (ours(twin), difference(cell, twin)))]
    return [
        cell["name"],
        ours(cell),
        *compared,
        " / ".join(str(one["trials"]) for one in all_arms) + (f", {cell['tuning']}" if len(all_arms) > 1 else ""),
        "–" if cell["trunk_parameters"] is None else f"{cell['trunk_parameters']:,}",
        " / ".join(f"{one['parameters']:,}" for one in all_arms),
        " / ".join(f"{one['seconds']:.0f}" for one in all_arms),
    ]


def difference(cell: dict[str, Any], twin: dict[str, Any]) -> str:
    """Return the difference of two means with its 95 % interval, if there is one. An interval that includes zero has a ○."""
    return with_interval(cell["mean"] - twin["mean"], interval_of(cell, twin))


def interval_of(cell: dict[str, Any], twin: dict[str, Any]) -> float | None:
    """Return half the length of the 95 % interval of the difference of two means. It is None if a group has a single run,
    or if the runs of both groups do not differ."""
    if cell["std"] is None or twin["std"] is None:
        return None
    return welch_half((cell["std"] ** 2, cell["seeds"]), (twin["std"] ** 2, twin["seeds"]))


def with_interval(found: float, half: float | None) -> str:
    """Return a difference with half the length of its interval. An interval that includes zero has a ○."""
    if half is None:
        return signed(found)
    return f"{signed(found)} ± {half:.2f}{' ○' if abs(found) <= half else ''}"


COLUMNS = (
    "recipe", "local", "backprop", "local − backprop", "deep supervision", "local − deep supervision",
    "trials", "trunk parameters", "parameters", "seconds",
)  # fmt: skip
TABLE = ResultTable(BestJob, summary, ("name",), COLUMNS, rows)
