"""SymBa: Forward-Forward without a threshold."""

from typing import ClassVar

from torch import Tensor

from faustnet.errors import require
from faustnet.losses import goodness, symmetric_loss
from faustnet.methods.goodness import GoodnessMethod
from faustnet.methods.local import LocalMethod
from faustnet.nn.network import Network


class SymBa(GoodnessMethod, LocalMethod):
    """Lee and Song (2023): the loss compares the goodness of an image with its correct label and with a wrong label. It
    depends on their difference only, so there is no threshold. The goodness is the mean of the squared activations.

    Options:
        sharpness: Factor of the difference; α in the publication.
        label_length: Norm of the label vector, relative to the norm of the image.
    """

    name: ClassVar[str] = "symba"
    title: ClassVar[str] = "SymBa"
    summary: ClassVar[str] = "raise the goodness with the correct label above the goodness with a wrong one"

    def __init__(self, network: Network, classes: int, *, sharpness: float = 4.0, label_length: float = 0.5):
        super().__init__(network, classes, label_length=label_length)
        require(sharpness > 0, f"sharpness must be positive, got {sharpness}.")
        self.sharpness = sharpness

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        positive, negative = (goodness(embedding) / embedding.shape[-1]).chunk(2, dim=-1)
        return symmetric_loss(positive, negative, self.sharpness)

    def scores(self, x: Tensor) -> Tensor:
        return self.goodness_by_label(x)
