"""Jobs: the runs behind a table or a figure, each with its recipe and the place of its result."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
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
PAPER_DATASETS = ("mnist", "fashion-mnist", "cifar10")

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
        if self.method not in methods_with_recipes(self.family, self.dataset):
            others = ", ".join(methods_with_recipes(self.family, self.dataset))
            raise FaustnetError(
                f"There is no {self.family} recipe for {self.method} ({self.recipe_name}): use --recipes {DEFAULT} for "
                f"default settings, or choose --methods from {others}."
            )

    @property
    def recipe_name(self) -> str:
        return recipe_name(self.family, self.method, self.dataset)

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


def check_shipped(name: str) -> None:
    """Refuse a study whose recipe does not come with the package."""
    require(
        name in shipped_recipes(),
        f"This version has no recipe {name!r}, which the study needs: choose other methods or data sets.",
    )


def on_validation(recipe: Recipe) -> Recipe:
    """Return a recipe that holds out training images and evaluates on them once, after the last epoch.

    5,000 images are held out, or 20% of the small data set digits, or 10% of texts without a validation file.
    """
    held_out = 0.2 if recipe.dataset == "digits" else 0.1 if recipe.dataset in TEXT_SETS else 5000
    return recipe_from({"training": {"validation": held_out, "evaluate_every": recipe.training.epochs}}, recipe)


def methods_with_recipes(family: str, dataset: str) -> list[str]:
    """Return the methods that have a recipe of this family for a data set."""
    if family == DEFAULT:
        return list(METHODS)
    shipped = set(shipped_recipes())
    return [method for method in METHODS if recipe_name(family, method, dataset) in shipped]


def recipe_name(family: str, method: str, dataset: str) -> str:
    return f"tuned/{dataset}/{method}" if family == "tuned" else f"{family}/{method}"


def default_datasets(family: str) -> list[str]:
    """Return the data sets of table 1: those of the paper, and for tuned recipes all others that have them, except
    digits."""
    more = [name for name in DATASETS if name not in (*PAPER_DATASETS, "digits") and methods_with_recipes("tuned", name)]
    return [*PAPER_DATASETS, *(more if family == "tuned" else [])]


def table1_jobs(
    families: list[str], methods: list[str] | None, datasets: list[str] | None, networks: list[str], seeds: int
) -> list[Table1Job]:
    """Return every combination; `methods` defaults to all methods with such recipes, `datasets` to those of the table.

    All cells with one seed come before the next seed, so that a complete table is there early.
    """
    check_seeds(seeds)
    check_known("family of recipes", families, FAMILIES)
    jobs: list[Table1Job] = []
    for family, seed in product(families, range(seeds)):
        for dataset, network in product(default_datasets(family) if datasets is None else datasets, networks):
            chosen = _methods_for(family, dataset, network) if methods is None else methods
            jobs += [Table1Job(family, method, dataset, network, seed) for method in chosen]
    for method, network in dict.fromkeys((job.method, job.network) for job in jobs if job.family == DEFAULT):
        if error := _default_error(method, network):
            raise FaustnetError(f"{method} cannot be trained with default settings and --networks {network}. {error}")
    return list(dict.fromkeys(jobs))


def _methods_for(family: str, dataset: str, network: str) -> list[str]:
    """Return all methods that can be trained with the recipes of a family."""
    check_known("data set", [dataset], DATASETS)
    found = methods_with_recipes(family, dataset)
    require(bool(found), f"There are no {family} recipes for {dataset}: use --recipes {DEFAULT} for default settings.")
    return found if family != DEFAULT else [method for method in found if not _default_error(method, network)]


def _default_error(method: str, network: str) -> str:
    """Return why a method cannot be built with default settings, or nothing if it can."""
    recipe = Table1Job(DEFAULT, method, "digits", network, 0).recipe
    try:
        with torch.device("meta"):
            build(method, (1, 8, 8), 10, recipe.network, recipe.options)
    except FaustnetError as error:
        return str(error)
    return ""
