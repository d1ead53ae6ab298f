"""Predicted classes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from faustnet.errors import FaustnetError
from faustnet.nn.search import Decisions

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
