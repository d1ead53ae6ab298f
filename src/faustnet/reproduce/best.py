"""The strongest recipes, FAUST's each beside its twin: the same network, data, optimiser and epochs, trained by backprop."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.errors import require, unknown
from faustnet.report.comparisons import PAIR_COLUMNS, markdown, pair_rows
from faustnet.reproduce.results import ResultTable, mean_and_std
from faustnet.reproduce.wanted import check_seeds
from faustnet.reproduce.work import Lines, reproduced
from faustnet.reproduce.workers import Workers
from faustnet.runs.recipes import Recipe, recipe_from, shipped_recipe, shipped_recipes

FAMILY, TWIN = "best/", "-backprop"


@dataclass(frozen=True)
class Best:
    """One run: one of the strongest recipes, or the twin of one, and a seed."""

    name: str  # DATASET/NAME
    seed: int

    def __post_init__(self) -> None:
        if FAMILY + self.name not in shipped_recipes():
            raise unknown("recipe among the best called", self.name, best_names())

    @property
    def recipe(self) -> Recipe:
        return recipe_from({**shipped_recipe(FAMILY + self.name), "seed": self.seed})

    @property
    def facts(self) -> dict[str, Any]:
        recipe = self.recipe
        return {"name": self.name, "dataset": recipe.dataset, "method": recipe.method, "seed": self.seed}

    def file(self, out: Path) -> Path:
        return out / "best" / f"{self.name.replace('/', '-')}-{self.seed}.json"

    def folder(self, out: Path) -> Path:
        return self.file(out).with_suffix(".run")

    def __str__(self) -> str:
        return f"{FAMILY}{self.name}, seed {self.seed}"


def best_names() -> list[str]:
    """The recipes, without twins."""
    names = [name.removeprefix(FAMILY) for name in shipped_recipes() if name.startswith(FAMILY)]
    return [name for name in names if not name.endswith(TWIN)]


def all_best(names: list[str] | None, seeds: int, *, twins: bool) -> list[Best]:
    """These recipes, by default all but those of digits, and their twins. Seed by seed, so that every row is there early
    and grows more certain."""
    check_seeds(seeds)
    if names is None:
        names = [name for name in best_names() if not name.startswith("digits/")]
    for name in names:
        if name not in best_names():
            raise unknown("recipe among the best called", name, best_names())
    require(bool(names), "There is nothing to train: name a recipe, e.g. --names digits/mlp.")
    shipped = shipped_recipes()
    pairs = [[name, name + TWIN] if twins and FAMILY + name + TWIN in shipped else [name] for name in names]
    return list(dict.fromkeys(Best(name, seed) for seed in range(seeds) for pair in pairs for name in pair))


def reproduce_best(
    wanted: list[Best], out: Path, workers: Workers, say: Callable[[object, str], None]
) -> list[dict[str, Any]]:
    """OUT/best.json and .md. → the cells of what was asked for"""
    cells = reproduced(TABLE, wanted, out, workers, Lines(out, say))
    asked = {one.name for one in wanted}
    return [cell for cell in cells if cell["name"] in asked]


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A cell for each recipe: accuracy in % of the test images, mean and standard deviation over the seeds. A twin says
    whose it is."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_name.setdefault(result["name"], []).append(result)
    return [
        {
            **{key: found[0][key] for key in ("name", "dataset", "method")},
            "twin": name.endswith(TWIN),
            "of": name.removesuffix(TWIN),
            "seeds": len(found),
            **mean_and_std([100 * result["test_accuracy"] for result in found]),
            "parameters": found[0]["parameters"],
            "trunk_parameters": max(result.get("trunk_parameters", 0) for result in found) or None,
            "seconds": round(statistics.mean(result["seconds"] for result in found), 1),
            "epochs": found[0]["epochs"],
        }
        for name, found in by_name.items()
    ]


TABLE = ResultTable(
    "best",
    "best/*.json",
    "a recipe among the best",
    job=lambda result: Best(result["name"], result["seed"]),
    cells=summary,
    texts=lambda cells: {"md": markdown(PAIR_COLUMNS, pair_rows(cells)) + "\n"},
)
