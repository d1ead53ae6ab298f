"""The search space of equal tuning, and its sampler: every arm of a comparison gets the same draws."""

import random
from typing import Any

from faustnet.runs.recipes import Recipe, changed

ARMS = {"": None, "-backprop": "backprop", "-deep-supervision": "deep-supervision"}  # methods; None for the recipe's own


def draws(name: str, recipe: Recipe, count: int) -> list[dict[str, Any]]:
    """Draw settings for a recipe. They depend on the name of the study and on nothing else that is random."""
    generator = random.Random(name)
    return [_drawn(generator, recipe) for _ in range(count)]


def _drawn(generator: random.Random, recipe: Recipe) -> dict[str, Any]:
    mixes = generator.random() < 0.5
    return {
        "optimiser.learning_rate": _rounded(recipe.optimiser.learning_rate * 2 ** generator.uniform(-2, 2)),
        "optimiser.weight_decay": _rounded(10 ** generator.uniform(-2.5, -0.5)),
        "network.dropout": _rounded(generator.uniform(0, 0.4)),
        "options.label_smoothing": _rounded(generator.uniform(0, 0.2)),
        "options.mixup": _rounded(generator.uniform(0.1, 0.4)) if mixes else 0.0,
        "data.cutout": generator.choice([0, 4, 8, 12]),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def arm(recipe: Recipe, method: str | None) -> Recipe:
    """Return the recipe of one arm: the same in everything, with those options that its method has."""
    if method is None:
        return recipe
    one_voter = {"prediction.weights": []} if method == "backprop" else {}
    return changed(recipe, {"method": method, **one_voter})
