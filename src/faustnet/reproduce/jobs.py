"""Jobs: the runs behind a table or a figure, each with its recipe and the place of its result."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from faustnet.data import DATASETS, TEXT_SETS, DataSet
from faustnet.errors import FaustnetError, require, unknown
from faustnet.methods import METHODS, build
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, recipe_from, shipped_recipe, shipped_recipes

DEFAULT = "default"
FAMILIES = ("paper", "tuned", DEFAULT)

Load = Callable[[str], DataSet]  # a data set by name


@dataclass(frozen=True)
class Job(ABC):
    """One run to train. Its fields identify it, and are stored in its result."""

    table: ClassVar[str]  # name of its table, and folder of the result in --out

    @property
    @abstractmethod
    def recipe(self) -> Recipe: ...

    @property
    def path(self) -> str:
        """Path of the result, relative to --out and without its suffix."""
        return f"{self.table}/{'-'.join(str(getattr(self, field.name)) for field in fields(self)).replace('/', '-')}"

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of the result that say which job it belongs to."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_result(cls, result: dict[str, Any]) -> Self:
        """Return the job that a result belongs to."""
        return cls(**{field.name: result[field.name] for field in fields(cls)})

    def file(self, out: Path) -> Path:
        """Return the path of the result."""
        return out / f"{self.path}.json"

    def folder(self, out: Path) -> Path:
        """Return the run folder, which exists until there is a result."""
        return out / f"{self.path}.run"

    def data(self, load: Load) -> DataSet:
        """Return the data set to train on."""
        return load(self.recipe.dataset)

    def measure(self, model: Model, load: Load) -> dict[str, Any]:
        """Return further measurements of the trained model, for the result."""
        return {}


@dataclass(frozen=True)
class Table1Job(Job):
    """One cell of table 1, with one seed."""

    table = "table1"
    family: str  # of recipes
    method: str
    dataset: str
    network: str  # LAYERSxUNITS
    seed: int

    def __post_init__(self) -> None:
        check_known("family of recipes", [self.family], FAMILIES)
        check_known("method", [self.method], METHODS)
        check_known("data set", [self.dataset], DATASETS)
        if not re.fullmatch(r"[1-9]\d?x[1-9]\d{0,4}", self.network):
            raise FaustnetError(f"A network must be LAYERSxUNITS, such as 3x500, got {self.network!r}.")
        if self.family != DEFAULT and self.recipe_name not in shipped_recipes():
            others = ", ".join(methods_with_recipes([self.family], [self.dataset]))
            raise FaustnetError(
                f"There is no {self.family} recipe for {self.method} ({self.recipe_name}): use --recipes {DEFAULT} for "
                f"default settings, or choose --methods from {others}."
            )

    @property
    def recipe_name(self) -> str:
        return f"tuned/{self.dataset}/{self.method}" if self.family == "tuned" else f"{self.family}/{self.method}"

    @property
    def recipe(self) -> Recipe:
        layers, units = map(int, self.network.split("x"))
        table: dict[str, Any] = shipped_recipe(self.recipe_name) if self.family != DEFAULT else {"method": self.method}
        network = {**table.get("network", {}), "widths": [units] * layers}
        return recipe_from({**table, "dataset": self.dataset, "network": network, "seed": self.seed})

    @property
    def path(self) -> str:
        return f"{self.table}/{self.family}/{self.dataset}-{self.network}-{self.method}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, {self.network}, {self.family}, seed {self.seed}"


def check_seeds(seeds: int) -> None:
    require(1 <= seeds <= 1000, f"--seeds must be from 1 to 1000, got {seeds}.")


def check_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(what, name, known)


def on_validation(recipe: Recipe) -> Recipe:
    """Return a recipe that holds out training images and evaluates on them once, after the last epoch.

    5,000 images are held out, or 20% of the small data set digits, or 10% of texts without a validation file.
    """
    held_out = 0.2 if recipe.dataset == "digits" else 0.1 if recipe.dataset in TEXT_SETS else 5000
    return recipe_from({"training": {"validation": held_out, "evaluate_every": recipe.training.epochs}}, recipe)


def methods_with_recipes(families: Sequence[str], datasets: Sequence[str]) -> list[str]:
    """Return the methods that have a recipe in every one of these families, for every data set."""
    shipped = set(shipped_recipes())
    needed = {"paper": ["paper/{}"], "tuned": [f"tuned/{dataset}/{{}}" for dataset in datasets if dataset in DATASETS]}
    names = [name for family in families for name in needed.get(family, [])]
    return [method for method in METHODS if all(name.format(method) in shipped for name in names)]


def table1_jobs(
    families: list[str], methods: list[str] | None, datasets: list[str], networks: list[str], seeds: int
) -> list[Table1Job]:
    """Return every combination; `methods` defaults to all methods with such recipes.

    All cells with one seed come before the next seed, so that a complete table is there early.
    """
    check_seeds(seeds)
    if methods is None:
        methods = methods_with_recipes(families, datasets)
        if DEFAULT in families:
            methods = [method for method in methods if not any(_default_error(method, name) for name in networks)]
    every = product(families, range(seeds), datasets, networks, methods)
    jobs = [Table1Job(family, method, dataset, network, seed) for family, seed, dataset, network, method in every]
    for method, network in dict.fromkeys((job.method, job.network) for job in jobs if job.family == DEFAULT):
        if error := _default_error(method, network):
            raise FaustnetError(f"{method} cannot be trained with default settings and --networks {network}. {error}")
    return list(dict.fromkeys(jobs))


def _default_error(method: str, network: str) -> str:
    """Return why a method cannot be built with default settings, or nothing if it can."""
    recipe = Table1Job(DEFAULT, method, "digits", network, 0).recipe
    try:
        with torch.device("meta"):
            build(method, (1, 8, 8), 10, recipe.network, recipe.options)
    except FaustnetError as error:
        return str(error)
    return ""
