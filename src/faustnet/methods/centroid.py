"""FAUST with centroids that are kept as running means while training."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses.objective import Contrastive, Objective, ReferenceTuplet, SimilarityMatching
from faustnet.methods.faust import FaustShared
from faustnet.methods.source import Source
from faustnet.nn.network import Network
from faustnet.nn.references import ClassIndex, moved_centroids

FIRST_IMAGES = 16  # of each class, that its centroids begin with


class FaustCentroid(FaustShared):
    """A centroid stands for each class, in training and in prediction: in every layer the running mean of its embeddings.

    It begins with a few training images. When a batch has images of its class, `momentum` of it stays, and less at first,
    so that what it began with never counts more than what came later. Distances are to the centroids with the batch taken
    in, so the gradient flows through the batch's share of them. The other options are as for representatives.
    """

    name: ClassVar[str] = "faust-centroid"
    title: ClassVar[str] = "FAUST-centroid"
    summary: ClassVar[str] = "tuplet loss of each image's distances to the running mean of every class's embeddings"

    batches: Tensor  # (C,): that had each class

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        momentum: float = 0.99,
        scale: float = 0.02,
        final_scale: float = 0.0,
        label_smoothing: float = 0.0,
        contrast: float = 0.0,
        temperature: float = 0.1,
        matching: float = 0.0,
    ):
        require(0 <= momentum < 1, f"The momentum of centroids lies from 0 to below 1, not at {momentum}.")
        tuplet = ReferenceTuplet(classes, scale, final_scale, label_smoothing)
        objective = Objective([tuplet, Contrastive(contrast, temperature), SimilarityMatching(matching)])
        super().__init__(network, classes, count=1, scale=tuplet.last_scale, objective=objective)
        self.momentum = momentum
        self.register_buffer("batches", torch.zeros(classes))

    def start(self, train: Source) -> None:
        index = ClassIndex(train.labels, self.classes)
        index.require_all(train.class_names)
        first = torch.cat([index.sample(number, FIRST_IMAGES) for number in range(self.classes)]).to(train.labels.device)
        with torch.no_grad():
            self.batches.zero_()
            for _ in self._taken_in(train.plain(first), train.labels[first]):
                pass

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """One loss for each layer; the graph behind it spans that layer alone."""
        for rows in self._taken_in(x, y):
            yield self.objective(rows, y).unsqueeze(0)

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        return {**super().new_class(examples, references), "batches": self.batches.new_zeros(1)}

    def _taken_in(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """The centroids take in a batch: of a few layers at a time its embeddings, then the centroids. → (n, B + C, e)"""
        self.batches += (y == torch.arange(self.classes, device=y.device).unsqueeze(1)).any(dim=1)
        shares = (1 - self.momentum) / (1 - self.momentum ** self.batches.clamp_min(1))
        for embedding, kept in zip(self.network.embeddings(x), self.references, strict=True):  # (B, e), (C, 1, e)
            embedding = embedding.to(shares.dtype)
            centroids = moved_centroids(kept.squeeze(-2), embedding, y, shares)
            kept.copy_(centroids.detach().unsqueeze(-2))
            yield torch.cat([embedding, centroids], dim=-2)
