"""The search space of equal tuning, and its sampler: every arm of a comparison gets the same draws."""

import random
from collections.abc import Sequence
from typing import Any

from faustnet.runs.recipes import Recipe, changed

ARMS = {"": None, "-backprop": "backprop", "-deep-supervision": "deep-supervision"}  # methods; None for the recipe's own
SETTINGS = 6  # that are drawn
CUTOUTS = (0, 4, 8, 12)  # pixels


def draws(name: str, recipe: Recipe, count: int) -> list[dict[str, Any]]:
    """Draw settings for a recipe. They depend on the name of the study and on nothing else that is random.

    The range of each setting is divided into `count` parts of the same size, and each part is drawn from once (Latin
    hypercube sampling).
    """
    generator = random.Random(name)
    parts = [generator.sample(range(count), count) for _ in range(SETTINGS)]
    return [_settings(recipe, [(part + generator.random()) / count for part in each]) for each in zip(*parts, strict=True)]


def _settings(recipe: Recipe, shares: Sequence[float]) -> dict[str, Any]:
    """Return the settings at these places in their ranges, each from 0 to 1."""
    rate, decay, dropout, smoothing, mixup, cutout = shares
    return {
        "optimiser.learning_rate": _rounded(recipe.optimiser.learning_rate * 2 ** (4 * rate - 2)),
        "optimiser.weight_decay": _rounded(10 ** (2 * decay - 2.5)),
        "network.dropout": _rounded(0.4 * dropout),
        "options.label_smoothing": _rounded(0.2 * smoothing),
        "options.mixup": _rounded(0.1 + 0.6 * (mixup - 0.5)) if mixup >= 0.5 else 0.0,
        "data.cutout": CUTOUTS[int(len(CUTOUTS) * cutout)],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def arm(recipe: Recipe, method: str | None) -> Recipe:
    """Return the recipe of one arm: the same in everything, with those options that its method has."""
    if method is None:
        return recipe
    one_voter = {"prediction.weights": []} if method == "backprop" else {}
    return changed(recipe, {"method": method, **one_voter})
