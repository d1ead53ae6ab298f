"""Trainings on arrays, with the parameters of `FaustClassifier`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from faustnet.data import Images
from faustnet.errors import FaustnetError, about_arguments
from faustnet.methods import some_positions
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed, recipe_from
from faustnet.training.evaluation import all_scores

LARGEST_BATCH = 256  # for batch_size "auto"
MEASURED = 2000  # training samples from which the sharpness of probabilities is computed


class BadInput(FaustnetError, ValueError):
    """Invalid input, as the ValueError that scikit-learn expects."""


@contextmanager
def speaking_of_arguments() -> Iterator[None]:
    """Raise errors about a recipe as errors about arguments."""
    try:
        yield
    except FaustnetError as error:
        raise BadInput(about_arguments(str(error))) from None


def array_recipe(parameters: Mapping[str, Any], samples: int, smallest: int | None) -> Recipe:
    """Return the recipe of a training with this number of samples, and with at most `smallest` representatives."""
    batch_size = parameters["batch_size"]
    table = {
        "dataset": "arrays",
        "seed": parameters["seed"],
        "options": {
            "choice": "k-means",
            **{key: parameters[key] for key in ("representatives", "scale", "label_smoothing")},
        },
        "network": {key: parameters[key] for key in ("widths", "embedding", "dropout")},
        "optimiser": {"name": "adamw", **{key: parameters[key] for key in ("learning_rate", "weight_decay")}},
        "training": {
            "epochs": parameters["epochs"],
            "batch_size": _batch_size(samples) if batch_size == "auto" else batch_size,
            "evaluate_every": parameters["epochs"],
        },
    }
    with speaking_of_arguments():
        asked = recipe_from(table)
    representatives = asked.options["representatives"]
    fitting = {
        "options.representatives": representatives if smallest is None else min(representatives, smallest),
        "training.batch_size": min(asked.training.batch_size, samples),
    }
    return changed(asked, fitting)


def _batch_size(samples: int) -> int:
    """Return about twice the square root of the number of samples, such that few samples are left over."""
    batches = max(1, round(samples / min(LARGEST_BATCH, 2 * samples**0.5)))
    return samples // batches


def sharpness(model: Model, images: Images) -> float:
    """Return the factor that turns summed scores into log-odds; `FaustClassifier.predict_proba` explains it."""
    if len(model.class_names) == 1:
        return 1.0
    source = model.source(images)
    some = model.source(images.take(some_positions(source, MEASURED)))
    nearest = -all_scores(model.method, some).topk(2, dim=2).values  # (layers, n, 2)
    return float(model.recipe.options["scale"] * nearest.sum(dim=2).mean() / len(nearest))
