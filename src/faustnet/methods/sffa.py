"""SFFA: Forward-Forward with a positive and a negative half of units in every layer."""

from typing import ClassVar

from torch import Tensor

from faustnet.errors import require
from faustnet.losses import goodness_loss, polar_log_odds
from faustnet.methods.goodness import GoodnessMethod
from faustnet.methods.local import LocalMethod
from faustnet.nn.architectures import NetworkSettings, Shape
from faustnet.nn.network import Network


class SFFA(GoodnessMethod, LocalMethod):
    """Terres-Escudero et al. (2024), symmetric Forward-Forward: the first half of the units of a layer is positive, the
    second half is negative. A layer's probability that a label is correct is p = G⁺ / (G⁺ + G⁻), where G is the mean of the
    squared activations of a half. The loss is the binary cross entropy of p, for images with their correct label and with a
    wrong label. There is no threshold.

    Layers, labels and wrong labels are those of forward-forward. For prediction, the score of a class is p in a forward pass
    with its label.

    Options:
        label_length: Norm of the label vector, relative to the norm of the image.
    """

    name: ClassVar[str] = "sffa"
    title: ClassVar[str] = "SFFA"
    summary: ClassVar[str] = "raise a positive half of the units with the correct label, a negative half with a wrong one"

    def __init__(self, network: Network, classes: int, *, label_length: float = 0.5):
        super().__init__(network, classes, label_length=label_length)
        sizes = network.embedding_sizes
        require(
            not any(size % 2 for size in sizes),
            f"network must have an even number of units in every layer, because half of them are positive, got {sizes}.",
        )

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        require(
            not any(width % 2 for width in settings.widths),
            f"network.widths must be even for {cls.name}, because half of the units of a layer are positive, got "
            f"{list(settings.widths)}.",
        )
        return super().make_network(shape, classes, settings)

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        positive, negative = polar_log_odds(embedding).chunk(2, dim=-1)
        return goodness_loss(positive, negative, 0.0)  # the binary cross entropy of σ(log odds)

    def scores(self, x: Tensor) -> Tensor:
        return self.goodness_by_label(x, lambda activity: polar_log_odds(activity).sigmoid())
