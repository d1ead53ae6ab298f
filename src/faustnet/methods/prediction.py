"""Settings of predictions."""

import math
from dataclasses import dataclass

from faustnet.errors import FaustnetError

LAYERS = ("all", "last")


@dataclass(frozen=True)
class PredictionSettings:
    """How scores become a prediction.

    A voter is a part of a method that scores every class; in most methods, each layer is one.

    Args:
        mirror: Whether to average the scores of an image and its mirror image (two forward passes).
        layers: "all" sums the scores of all voters, "last" uses only those of the last one.
        weights: Weight of each voter in the sum; empty for equal weights.
    """

    mirror: bool = False
    layers: str = "all"
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.layers not in LAYERS:
            raise FaustnetError(f"prediction.layers must be {' or '.join(LAYERS)}, got {self.layers!r}.")
        if not all(0 <= weight < math.inf for weight in self.weights) or (self.weights and not any(self.weights)):
            raise FaustnetError(
                f"prediction.weights must be 0 or more and not all 0, got {list(self.weights)}: "
                "leave it out for equal weights."
            )
        if self.weights and self.layers != "all":
            raise FaustnetError(
                f"prediction.layers must be all if prediction.weights is set, got {self.layers!r}: leave out one of them."
            )
