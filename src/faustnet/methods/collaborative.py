"""Collaborative Forward-Forward: the loss of a layer includes the goodness of the other layers."""

from collections.abc import Iterator
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import goodness, goodness_loss
from faustnet.methods.goodness import GoodnessMethod
from faustnet.nn.network import Network

COLLABORATORS = ("all", "earlier")


class CollaborativeFF(GoodnessMethod):
    """Lorberbom et al. (2024): a layer's probability that a label is correct is σ(‖f‖² + γ − θ), where γ is the sum of the
    goodness of the other layers for the same image and label. A layer can therefore concentrate on images that the others
    get wrong. γ is detached, so no gradient crosses a layer boundary. All layers are updated together, after the forward
    pass.

    Options:
        threshold: θ divided by the number of units of all layers in the sum.
        label_length: Norm of the label vector, relative to the norm of the image.
        collaborators: Layers in γ: "all" other layers, or only the "earlier" ones.
    """

    name: ClassVar[str] = "collaborative-ff"
    title: ClassVar[str] = "Collaborative FF"
    summary: ClassVar[str] = "Forward-Forward with the goodness of the other layers added to each layer's own"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        threshold: float = 1.0,
        label_length: float = 0.5,
        collaborators: str = "all",
    ):
        super().__init__(network, classes, label_length=label_length)
        require(threshold > 0, f"threshold must be positive, got {threshold}.")
        require(
            collaborators in COLLABORATORS,
            f"collaborators must be {' or '.join(COLLABORATORS)}, got {collaborators!r}.",
        )
        self.threshold = threshold
        self.earlier = collaborators == "earlier"

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        own = torch.stack([goodness(embedding) for embedding in self.network.embeddings(self.rows(x, y))])  # (layers, 2 · B)
        units, summed = list(accumulate(self.network.embedding_sizes)), own.detach().cumsum(0)
        if not self.earlier:
            units, summed = units[-1:] * len(units), summed[-1].expand_as(own)
        together = own + (summed - own.detach())
        pairs = zip(together, units, strict=True)
        yield torch.stack([self._loss(rows, self.threshold * count) for rows, count in pairs])

    @staticmethod
    def _loss(rows: Tensor, threshold: float) -> Tensor:
        positive, negative = rows.chunk(2)
        return goodness_loss(positive, negative, threshold)

    def scores(self, x: Tensor) -> Tensor:
        return self.goodness_by_label(x)
