"""Predicted classes."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faustnet.data import Images
from faustnet.errors import FaustnetError, require
from faustnet.nn.search import Decisions
from faustnet.training.evaluation import decide, threshold_accepting

if TYPE_CHECKING:
    from faustnet.runs.model import Model

UNKNOWN = "unknown"  # class name of a rejected image


@dataclass(frozen=True)
class Prediction:
    """Predicted class of one image."""

    class_name: str  # "unknown" if the image was rejected
    score: float  # of the best class, summed over the voters
    votes: list[str]  # the class that each voter alone would predict
    far: bool = False  # from all classes: further than the rejection threshold; never if the model has none


@dataclass(frozen=True)
class EarlyPrediction:
    """Class of one image that was predicted with early exit."""

    class_name: str
    layers: int  # number of layers that were computed


def named_predictions(model: "Model", found: Decisions, *, reject: bool) -> list[Prediction]:
    """Return predictions with the names of the classes of a model, or with "unknown" for rejected images."""
    if reject and model.threshold is None:
        raise FaustnetError(
            "This model has no rejection threshold yet: run 'faustnet calibrate RUN' or call Model.calibrate first."
        )
    far = [False] * len(found.known) if model.threshold is None else (found.known < model.threshold).tolist()
    rows = zip(found.classes.tolist(), found.scores.tolist(), found.alone.T.tolist(), far, strict=True)
    names = model.class_names
    return [
        Prediction(UNKNOWN if reject and is_far else names[number], score, [names[vote] for vote in votes], is_far)
        for number, score, votes, is_far in rows
    ]


def rejection_threshold(model: "Model", images: Images, accept: float) -> float:
    """Return the first-layer score that the fraction `accept` of these images have at least."""
    require(0 < accept <= 1, f"accept must be above 0 and at most 1, got {accept}.")
    require(
        UNKNOWN not in model.class_names,
        f"No class may be named {UNKNOWN!r}, the prediction for rejected images: rename it and train again.",
    )
    near = decide(model.method, model.source(images)).known
    require(len(near) > 0, "pixels must contain at least one image of a class of the model, got none.")
    threshold = threshold_accepting(near, accept)
    require(
        math.isfinite(threshold),
        f"The threshold must be finite, got {threshold}: scale the pixels like the training data of this model.",
    )
    return threshold
