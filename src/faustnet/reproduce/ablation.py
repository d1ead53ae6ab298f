"""Ablation: a strong recipe with one piece changed at a time, measured on validation images."""

import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from faustnet.errors import require
from faustnet.methods import Faust, method_named
from faustnet.nn.layers import PROTOTYPE_SIZE
from faustnet.report.table1 import ours
from faustnet.report.tables import markdown
from faustnet.reproduce.best import BestJob, best_names, interval_of, with_interval
from faustnet.reproduce.jobs import Job, check_known, check_seeds, on_validation
from faustnet.reproduce.results import Cells, ResultTable, grouped, percent
from faustnet.runs.recipes import Recipe, changed, differences, dotted

UNCHANGED = "nothing"


def _times(factor: float, key: str, only_with: str = "") -> Callable[[dict[str, Any]], Any]:
    """Multiply a value of the base, if the key that it depends on is in use."""
    return lambda base: base[key] * factor if base.get(only_with, True) else base[key]


def _references_per_class(base: dict[str, Any]) -> int:
    return base.get("options.representatives") or base.get("options.prototypes", 1)


def _at_length(length: str) -> dict[str, Any]:
    """Change the length of embeddings, and the scale so that initial distances have the same weight."""

    def scale(base: dict[str, Any]) -> float:
        free_square = PROTOTYPE_SIZE**2 * (base["network.embedding"] or base["network.widths"][-1])
        before, after = (free_square if one == "free" else 1.0 for one in (base["network.length"], length))
        return base["options.scale"] * before / after

    return {"network.length": length, "options.scale": scale}


def _norm(name: str) -> Callable[[dict[str, Any]], Any]:
    """Change the normalisation of dense layers; that of convolutional layers is fixed."""
    return lambda base: name if base["network.kind"] == "dense" else base["network.norm"]


# Changes by name, with the new value of each key, which may be a function of the base recipe. Changes that make no
# difference to a recipe, or that set an option its method does not have, are left out. Results store these names.
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    (UNCHANGED, {}),
    ("one representative of each class", {"options.representatives": 1}),
    ("representatives at random", {"options.choice": "random"}),
    ("representatives by k-means (one: the medoid)", {"options.choice": "k-means"}),
    ("learned prototypes", {"method": "faust-prototype", "options.prototypes": _references_per_class}),
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
class AblationJob(Job):
    """One of the best recipes with one change, a number of epochs and a seed."""

    table = "ablation"
    base: str  # DATASET/NAME
    base_epochs: int
    change: str  # its name
    seed: int

    def __post_init__(self) -> None:
        check_known("recipe", [self.base], best_names())
        method = BestJob(self.base, self.seed).recipe.method
        require(
            issubclass(method_named(method), Faust),
            f"--base must be a recipe of a FAUST method, got {self.base}, a recipe of {method}.",
        )
        check_known("change", [self.change], dict(CHANGES))

    @property
    def recipe(self) -> Recipe:
        base = changed(BestJob(self.base, self.seed).recipe, {"training.epochs": self.base_epochs})
        return on_validation(with_change(base, dict(CHANGES)[self.change]))

    @property
    def path(self) -> str:
        name = f"{self.base}-{self.base_epochs}-epochs-{self.change}-{self.seed}"
        return f"{self.table}/{re.sub(r'[^a-z0-9.]+', '-', name.lower())}"

    def __str__(self) -> str:
        return f"{self.base}, {self.base_epochs} epochs, changed: {self.change}, seed {self.seed}"


def with_change(base: Recipe, changes: Mapping[str, Any]) -> Recipe:
    before = dotted(base)
    return changed(base, {key: value(before) if callable(value) else value for key, value in changes.items()})


def ablation_jobs(base: str, seeds: int, epochs: int | None = None) -> list[AblationJob]:
    """Return jobs for the unchanged recipe and for every change that makes a difference to it, seed by seed.

    `epochs` defaults to the recipe's own.
    """
    check_seeds(seeds)
    epochs = BestJob(base, 0).recipe.training.epochs if epochs is None else epochs
    recipe = AblationJob(base, epochs, UNCHANGED, 0).recipe
    names = [UNCHANGED]
    for name, changes in CHANGES:
        options = method_named(changes.get("method", recipe.method)).options()
        known = all(key.removeprefix("options.") in options for key in changes if key.startswith("options."))
        if known and differences(with_change(recipe, changes), recipe):
            names.append(name)
    return [AblationJob(base, epochs, name, seed) for seed in range(seeds) for name in names]


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per base, epochs and change: validation accuracy in %, and the difference to the unchanged base, with
    half the length of its 95 % interval."""
    cells = []
    exact = {}  # means that are not rounded
    for about, found in grouped(results, "base", "base_epochs", "change"):
        base, epochs, change = about.values()
        exact[base, epochs, change] = statistics.fmean(100 * result["validation_accuracy"] for result in found)
        accuracy = percent(found, "validation_accuracy")
        nothing = {"difference": None, "difference_interval": None}
        cells.append({"base": base, "epochs": epochs, "change": change, **accuracy, **nothing, "seeds": len(found)})
    unchanged = {(cell["base"], cell["epochs"]): cell for cell in cells if cell["change"] == UNCHANGED}
    for cell in cells:
        base, epochs, change = (cell[key] for key in ("base", "epochs", "change"))
        whole = unchanged.get((base, epochs))
        if whole is not None:
            cell["difference"] = round(exact[base, epochs, change] - exact[base, epochs, UNCHANGED], 3)
            half = None if cell is whole else interval_of(cell, whole)
            cell["difference_interval"] = half if half is None else round(half, 3)
    order = list(dict(CHANGES))
    return sorted(cells, key=lambda cell: (cell["base"], cell["epochs"], order.index(cell["change"])))


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per change of a base recipe, and one for the unchanged base."""
    return [
        [
            cell["change"],
            ours(cell),
            "–" if cell["difference"] is None else with_interval(cell["difference"], cell.get("difference_interval")),
        ]
        for cell in cells
    ]


def texts(cells: Cells) -> dict[str, str]:
    """Return one Markdown table per base."""
    tables = [
        f"{about['base']}, {about['epochs']} epochs:\n\n{markdown(COLUMNS, rows(mine))}\n"
        for about, mine in grouped(cells, "base", "epochs")
    ]
    return {"md": "\n".join(tables)}


COLUMNS = ("changed", "validation accuracy", "difference")
TABLE = ResultTable(AblationJob, summary, ("base", "epochs"), COLUMNS, rows, texts)
