"""FAUST with centroids that are updated while training."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.methods.faust import FaustSharedReferences
from faustnet.methods.source import Source
from faustnet.nn.modules import one_hot
from faustnet.nn.network import Network
from faustnet.nn.references import ClassIndex, updated_centroids

FIRST_IMAGES = 16  # images per class that the initial centroids are computed from


class FaustCentroid(FaustSharedReferences):
    """The reference of each class is its centroid, in training and in prediction: the running mean of its embeddings in
    each layer.

    The initial centroid is the mean of a few training images. Every batch that contains the class updates it. Distances are
    measured to the updated centroids, so the gradient also flows through the embeddings that updated them.

    The other options are described under faust-representative.

    Options:
        momentum: Weight of the old centroid in an update. It is smaller in the first batches (bias correction).
    """

    name: ClassVar[str] = "faust-centroid"
    title: ClassVar[str] = "FAUST-centroid"
    summary: ClassVar[str] = "tuplet loss of the distances to the running mean embedding of every class"

    batches: Tensor  # (C,): number of batches with images of each class

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
        require(0 <= momentum < 1, f"momentum must be at least 0 and below 1, got {momentum}.")
        super().__init__(
            network,
            classes,
            count=1,
            scale=scale,
            final_scale=final_scale,
            label_smoothing=label_smoothing,
            contrast=contrast,
            temperature=temperature,
            matching=matching,
        )
        self.momentum = momentum
        self.register_buffer("batches", torch.zeros(classes))

    def start(self, train: Source) -> None:
        index = ClassIndex(train.labels, self.classes)
        index.require_all(train.class_names)
        first = torch.cat([index.sample(number, FIRST_IMAGES) for number in range(self.classes)]).to(train.labels.device)
        with torch.no_grad():
            self.batches.zero_()
            for _ in self._updated(train.plain(first), train.labels[first]):
                pass

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Yield one loss per layer, (1,); its graph spans that layer only."""
        for rows in self._updated(x, y):
            yield self.objective(rows, y).unsqueeze(0)

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        return {**super().new_class(examples, references), "batches": self.batches.new_zeros(1)}

    def _updated(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Update the centroids with a batch, and yield its embeddings and then the centroids, layer by layer.
        (B, …), (B,) → (B + C, e_i)"""
        self.batches += one_hot(y, self.classes).amax(dim=0)
        shares = (1 - self.momentum) / (1 - self.momentum ** self.batches.clamp_min(1))
        for embedding, old in zip(self.network.embeddings(x), self.references, strict=True):  # (B, e), (C, 1, e)
            embedding = embedding.to(old.dtype)
            centroids = updated_centroids(old.squeeze(-2), embedding, y, shares)
            old.copy_(centroids.detach().unsqueeze(-2))
            yield torch.cat([embedding, centroids], dim=-2)
