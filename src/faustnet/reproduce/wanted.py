"""Which runs make up the paper's comparison, and where the result of each is kept."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from faustnet.data import DATASETS, DataSet
from faustnet.errors import FaustnetError, require, unknown
from faustnet.methods import METHODS
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, recipe_from, shipped_recipe, shipped_recipes

FAMILIES = ("paper", "tuned")
NETWORKS = ("3x500", "4x800")
MOST_SEEDS = 1000


class Job(Protocol):
    """A run that is wanted: what it takes, what it is, and where its result and, until there is one, the run are kept."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def facts(self) -> dict[str, Any]: ...

    def file(self, out: Path) -> Path: ...
    def folder(self, out: Path) -> Path: ...


@runtime_checkable
class Study(Job, Protocol):
    """A run that may be trained on a part of its data set, and of which more is measured. `load` gives data sets by name."""

    def data(self, load: Callable[[str], DataSet]) -> DataSet: ...
    def measured(self, model: Model, load: Callable[[str], DataSet]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Wanted:
    """One run: a cell of the table, and a seed."""

    family: str  # of recipes
    method: str
    dataset: str
    network: str  # LAYERSxUNITS
    seed: int

    def __post_init__(self) -> None:
        for what, name, known in (
            ("family of recipes", self.family, FAMILIES),
            ("method", self.method, METHODS),
            ("data set with such recipes", self.dataset, DATASETS),
        ):
            if name not in known:
                raise unknown(what, name, known)
        if not re.fullmatch(r"[1-9]\d?x[1-9]\d{0,4}", self.network):
            raise FaustnetError(f"A network is given as its layers and their units, like 3x500, not {self.network!r}.")
        if self.recipe_name not in shipped_recipes():
            others = ", ".join(with_recipes([self.family], [self.dataset]))
            raise FaustnetError(
                f"{self.method} has no {self.family} recipe, so it is not in this table: choose among {others}."
            )

    @property
    def recipe_name(self) -> str:
        return f"tuned/{self.dataset}/{self.method}" if self.family == "tuned" else f"paper/{self.method}"

    @property
    def recipe(self) -> Recipe:
        layers, units = map(int, self.network.split("x"))
        table = shipped_recipe(self.recipe_name)
        network = {**table.get("network", {}), "widths": [units] * layers}
        return recipe_from({**table, "dataset": self.dataset, "network": network, "seed": self.seed})

    @property
    def facts(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("method", "dataset", "network", "family", "seed")}

    def file(self, out: Path) -> Path:
        """Its result."""
        return out / "table1" / self.family / f"{self.dataset}-{self.network}-{self.method}-{self.seed}.json"

    def folder(self, out: Path) -> Path:
        """Its run, until there is a result."""
        return self.file(out).with_suffix(".run")

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, {self.network}, {self.family}, seed {self.seed}"


def check_seeds(seeds: int) -> None:
    require(1 <= seeds <= MOST_SEEDS, f"A table takes from one seed to {MOST_SEEDS}, not {seeds}.")


def on_validation(recipe: Recipe) -> Recipe:
    """Measured once, at the end, on training images that are held out: a number, or of digits, which are few, a share."""
    held_out = 0.2 if recipe.dataset == "digits" else 5000
    return recipe_from({"training": {"validation": held_out, "evaluate_every": recipe.training.epochs}}, recipe)


def with_recipes(families: list[str], datasets: list[str]) -> list[str]:
    """The methods that can be in the table."""
    shipped = set(shipped_recipes())
    needed = {"paper": ["paper/{}"], "tuned": [f"tuned/{dataset}/{{}}" for dataset in datasets if dataset in DATASETS]}
    names = [name for family in families for name in needed.get(family, [])]
    return [method for method in METHODS if all(name.format(method) in shipped for name in names)]


def all_wanted(
    families: list[str], methods: list[str] | None, datasets: list[str], networks: list[str], seeds: int
) -> list[Wanted]:
    """Every combination, by default of all methods that have such recipes. Seed by seed, so that a whole table is there
    early and grows more certain."""
    check_seeds(seeds)
    if methods is None:
        methods = with_recipes(families, datasets)
    every = product(families, range(seeds), datasets, networks, methods)
    return list(
        dict.fromkeys(Wanted(family, method, dataset, network, seed) for family, seed, dataset, network, method in every)
    )
