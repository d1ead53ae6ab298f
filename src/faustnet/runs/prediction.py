"""Predicted classes."""

from dataclasses import dataclass

UNKNOWN = "unknown"  # class name of a rejected image


@dataclass(frozen=True)
class Prediction:
    """Predicted class of one image."""

    class_name: str  # "unknown" if the image was rejected
    score: float  # of the best class, summed over the voters
    votes: list[str]  # the class that each voter alone would predict


@dataclass(frozen=True)
class EarlyPrediction:
    """Class of one image that was predicted with early exit."""

    class_name: str
    layers: int  # number of layers that were computed
