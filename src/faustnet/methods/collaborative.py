"""Collaborative Forward-Forward: a layer knows how good the others find an image."""

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
    """Lorberbom et al. (2024): a layer's probability that a label is right is σ(‖f‖² + γ − θ), where γ is the goodness of
    the other layers for the same row. γ is a constant to the layer, so that no gradient crosses from one to another, but
    a layer need not repeat what others have found, and goes on where they have failed.

    `collaborators` are all layers, or the "earlier" ones only. All layers are updated at once, from what they computed
    before. `threshold` is θ for each unit of the layers that take part.
    """

    name: ClassVar[str] = "collaborative-ff"
    title: ClassVar[str] = "Collaborative FF"
    summary: ClassVar[str] = "Forward-Forward where a layer counts the goodness of the others as well"

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
        require(threshold > 0, f"The threshold must be positive, not {threshold}.")
        require(collaborators in COLLABORATORS, f"Collaborators are {' or '.join(COLLABORATORS)}, not {collaborators!r}.")
        self.threshold = threshold
        self.earlier = collaborators == "earlier"

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        own = torch.stack([goodness(embedding) for embedding in self.network.embeddings(self.rows(x, y))])  # (layers, 2 · B)
        units, known = list(accumulate(self.network.embedding_sizes)), own.detach().cumsum(0)
        if not self.earlier:
            units, known = units[-1:] * len(units), known[-1].expand_as(own)
        together = own + (known - own.detach())
        pairs = zip(together, units, strict=True)
        yield torch.stack([self._loss(rows, self.threshold * count) for rows, count in pairs])

    @staticmethod
    def _loss(rows: Tensor, threshold: float) -> Tensor:
        positive, negative = rows.chunk(2)
        return goodness_loss(positive, negative, threshold)

    def scores(self, x: Tensor) -> Tensor:
        return self.goodness_by_label(x)
