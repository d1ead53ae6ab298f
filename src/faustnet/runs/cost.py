"""Evaluations with the cost of a prediction."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from faustnet.data import ImageSource
from faustnet.training.evaluation import Evaluation, seconds_per_image

if TYPE_CHECKING:
    from faustnet.runs.model import Model


def with_cost(
    model: "Model", evaluation: Evaluation, source: ImageSource, layers: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return an evaluation by these layers, and the cost of a prediction, which is measured on these images, as values for
    JSON."""
    weights = model.method.weights
    return {
        "voters": model.method.voters,
        "layers": None if layers is None else list(layers),
        "weights": None if set(weights) == {1.0} else list(weights),
        **asdict(evaluation),
        "class_names": model.class_names,
        "seconds_per_image": seconds_per_image(model.method, source),
    }
