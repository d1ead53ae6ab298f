"""What each piece of a strong recipe gives: the recipe with one piece changed at a time, on validation images."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from faustnet.errors import require, unknown
from faustnet.methods import Faust, method_named
from faustnet.nn.layers import PROTOTYPE_SIZE
from faustnet.report.comparisons import CHANGE_COLUMNS, change_rows, markdown
from faustnet.reproduce.best import Best, best_names
from faustnet.reproduce.results import ResultTable, mean_and_std
from faustnet.reproduce.wanted import check_seeds, on_validation
from faustnet.reproduce.work import Lines, reproduced
from faustnet.reproduce.workers import Workers
from faustnet.runs.recipes import Recipe, changed, differences, dotted

AS_IT_IS = "nothing"


def _times(factor: float, key: str, only_with: str = "") -> Callable[[dict[str, Any]], Any]:
    """A multiple of what the base has, where the key that it depends on is in use."""
    return lambda base: base[key] * factor if base.get(only_with, True) else base[key]


def _count(base: dict[str, Any]) -> int:
    """Of references of a class."""
    return base.get("options.representatives") or base.get("options.prototypes", 1)


def _at_length(length: str) -> dict[str, Any]:
    """Another length of embeddings, with the scale at which distances weigh as much as they did at first."""

    def scale(base: dict[str, Any]) -> float:
        free_square = PROTOTYPE_SIZE**2 * (base["network.embedding"] or base["network.widths"][-1])
        before, after = (free_square if one == "free" else 1.0 for one in (base["network.length"], length))
        return base["options.scale"] * before / after

    return {"network.length": length, "options.scale": scale}


def _norm(name: str) -> Callable[[dict[str, Any]], Any]:
    """Dense layers' norm; convolutional ones have no choice."""
    return lambda base: name if base["network.kind"] == "dense" else base["network.norm"]


# What is changed: words, and the new value of each key, which may depend on all that the base has. A change that leaves
# a recipe as it is, or sets an option that its method has not, is left out.
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    (AS_IT_IS, {}),
    ("one representative of each class", {"options.representatives": 1}),
    ("representatives at random", {"options.choice": "random"}),
    ("representatives by k-means (one: the medoid)", {"options.choice": "k-means"}),
    ("learned prototypes", {"method": "faust-prototype", "options.prototypes": _count}),
    ("centroids that are running means", {"method": "faust-centroid"}),
    ("no contrast", {"options.contrast": 0.0}),
    ("contrast of 0.5", {"options.contrast": lambda base: base["options.contrast"] or 0.5}),
    ("half the contrast's temperature", {"options.temperature": _times(0.5, "options.temperature", "options.contrast")}),
    ("twice the contrast's temperature", {"options.temperature": _times(2, "options.temperature", "options.contrast")}),
    ("no similarity matching", {"options.matching": 0.0}),
    ("similarity matching of 1", {"options.matching": lambda base: base["options.matching"] or 1.0}),
    ("half the scale of distances", {"options.scale": _times(0.5, "options.scale")}),
    ("twice the scale of distances", {"options.scale": _times(2, "options.scale")}),
    ("a scale that grows fivefold", {"options.final_scale": _times(5, "options.scale")}),
    ("embeddings of free length", _at_length("free")),
    ("embeddings of unit length", _at_length("unit")),
    ("embeddings of learned length", _at_length("learned")),
    ("no label smoothing", {"options.label_smoothing": 0.0}),
    ("no MixUp", {"options.mixup": 0.0}),
    ("MixUp of 0.2", {"options.mixup": lambda base: base["options.mixup"] or 0.2}),
    ("AdamW instead of Muon", {"optimiser.name": lambda base: base["optimiser.name"].replace("muon", "adamw")}),
    ("batch norm instead of layer norm", {"network.norm": _norm("batch")}),
    ("layer norm instead of batch norm", {"network.norm": _norm("layer")}),
    ("no dropout", {"network.dropout": 0.0}),
    ("no dropout of the input", {"network.input_dropout": 0.0}),
    ("no cut-out", {"data.cutout": 0}),
    ("no shifts", {"data.crop": 0}),
    ("no mirror images", {"data.flip": False}),
    ("no turning and stretching", {"data.rotation": 0.0, "data.zoom": 0.0}),
    ("no votes on mirror images", {"prediction.mirror": False}),
    (
        "the last layer's vote alone",
        {"prediction.weights": lambda base: (0.0,) * (len(base["network.widths"]) - 1) + (1.0,)},
    ),
    ("half the epochs", {"training.epochs": lambda base: max(1, base["training.epochs"] // 2)}),
    ("a constant learning rate", {"optimiser.decay": "constant"}),
)


@dataclass(frozen=True)
class Ablation:
    """One run: a recipe among the best, for so many epochs, with one piece changed, and a seed."""

    base: str  # DATASET/NAME
    epochs: int
    change: str  # its words
    seed: int

    def __post_init__(self) -> None:
        if self.base not in best_names():
            raise unknown("recipe among the best called", self.base, best_names())
        method = Best(self.base, self.seed).recipe.method
        require(
            issubclass(method_named(method), Faust),
            f"These are pieces of FAUST, and {self.base} trains by {method}: choose another.",
        )
        if self.change not in dict(CHANGES):
            raise unknown("change called", self.change, dict(CHANGES))

    @property
    def recipe(self) -> Recipe:
        """Some of the training images are held out, and measured on once, at the end."""
        base = changed(Best(self.base, self.seed).recipe, {"training.epochs": self.epochs})
        return on_validation(with_change(base, dict(CHANGES)[self.change]))

    @property
    def facts(self) -> dict[str, Any]:
        return {"base": self.base, "base_epochs": self.epochs, "change": self.change, "seed": self.seed}

    def file(self, out: Path) -> Path:
        name = re.sub(r"[^a-z0-9.]+", "-", f"{self.base}-{self.epochs}-epochs-{self.change}-{self.seed}".lower())
        return out / "ablation" / f"{name}.json"

    def folder(self, out: Path) -> Path:
        return self.file(out).with_suffix(".run")

    def __str__(self) -> str:
        return f"{self.base}, {self.epochs} epochs, changed: {self.change}, seed {self.seed}"


def with_change(base: Recipe, changes: Mapping[str, Any]) -> Recipe:
    before = dotted(base)
    return changed(base, {key: value(before) if callable(value) else value for key, value in changes.items()})


def ablations(base: str, seeds: int, epochs: int | None = None) -> list[Ablation]:
    """Every change that makes a difference to this recipe, seed by seed; first of all the recipe as it is. With as many
    epochs as it has, or others, so that all take less time."""
    check_seeds(seeds)
    epochs = Best(base, 0).recipe.training.epochs if epochs is None else epochs
    recipe = Ablation(base, epochs, AS_IT_IS, 0).recipe
    words = [AS_IT_IS]
    for name, changes in CHANGES:
        options = method_named(changes.get("method", recipe.method)).options()
        known = all(key.removeprefix("options.") in options for key in changes if key.startswith("options."))
        if known and differences(with_change(recipe, changes), recipe):
            words.append(name)
    return [Ablation(base, epochs, name, seed) for seed in range(seeds) for name in words]


def reproduce_ablation(
    wanted: list[Ablation], out: Path, workers: Workers, say: Callable[[object, str], None]
) -> list[dict[str, Any]]:
    """OUT/ablation.json and .md. → the cells of what was asked for"""
    cells = reproduced(TABLE, wanted, out, workers, Lines(out, say))
    return [cell for cell in cells if (cell["base"], cell["epochs"]) == (wanted[0].base, wanted[0].epochs)]


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By base, its epochs, and change: accuracy in % of the validation images, mean and standard deviation over the seeds,
    and what that is more than the base's."""
    found: dict[tuple[str, int, str], list[float]] = {}
    for result in results:
        key = (result["base"], result["base_epochs"], result["change"])
        found.setdefault(key, []).append(100 * result["validation_accuracy"])
    order = list(dict(CHANGES))
    cells = []
    for base, epochs, change in sorted(found, key=lambda key: (*key[:2], order.index(key[2]))):
        whole, mine = found.get((base, epochs, AS_IT_IS)), found[base, epochs, change]
        difference = None if whole is None else round(sum(mine) / len(mine) - sum(whole) / len(whole), 3)
        figures = {**mean_and_std(mine), "difference": difference, "seeds": len(mine)}
        cells.append({"base": base, "epochs": epochs, "change": change, **figures})
    return cells


def by_base(cells: list[dict[str, Any]]) -> dict[str, str]:
    """A table for each base."""
    tables = [
        f"{base}, {epochs} epochs:\n\n{markdown(CHANGE_COLUMNS, change_rows(list(mine)))}\n"
        for (base, epochs), mine in groupby(cells, key=lambda cell: (cell["base"], cell["epochs"]))
    ]
    return {"md": "\n".join(tables)}


TABLE = ResultTable(
    "ablation",
    "ablation/*.json",
    "an ablation",
    job=lambda result: Ablation(result["base"], result["base_epochs"], result["change"], result["seed"]),
    cells=summary,
    texts=by_base,
)
