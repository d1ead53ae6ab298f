"""FAUST-vanilla: each anchor is compared with training images that are drawn for it alone."""

from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import paired_squared_distances, triplet_loss, tuplet_loss
from faustnet.methods.faust import Faust
from faustnet.methods.local import LocalMethod
from faustnet.methods.mixup import check_label_smoothing
from faustnet.methods.source import Source, in_parts, join_rows
from faustnet.methods.stepping import not_prepared
from faustnet.nn.network import Network
from faustnet.nn.references import ClassIndex


class FaustVanilla(Faust, LocalMethod):
    """Base class of the methods of Section IV.B. The reference of a class in prediction is its centroid: the mean embedding
    of `centroid_images` training images.

    A positive is any image of the anchor's class, possibly the anchor itself.
    """

    draws: ClassVar[bool] = True

    def __init__(self, network: Network, classes: int, *, scale: float, centroid_images: int):
        super().__init__(network, classes, count=1, scale=scale)
        require(centroid_images >= 1, f"centroid_images must be at least 1, got {centroid_images}.")
        self.centroid_images = centroid_images
        self.index: ClassIndex | None = None

    def start(self, train: Source) -> None:
        require(
            self.classes > 1,
            f"{self.name} needs data with at least 2 classes, because it trains with images of other classes, got 1.",
        )
        self.index = index = ClassIndex(train.labels, self.classes)
        index.require_all(train.class_names)
        self.sampled = [index.sample(number, self.centroid_images) for number in range(self.classes)]
        self.feed_from(train)

    @property
    def class_index(self) -> ClassIndex:
        """The training images of each class."""
        if self.index is None:
            raise not_prepared(self)
        return self.index

    def feed_from(self, train: Source) -> None:
        self.train_rows = train

    def rows_with(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the anchors, then the images at the positions drawn for each of them, anchor by anchor.
        (B, …), (B, N) → (B + B · N, …)"""
        return join_rows(x, self.train_rows.augmented(drawn.flatten()))

    def distances(self, embedding: Tensor, anchors: int) -> Tensor:
        """Return the squared distance of each anchor to each image drawn for it. (…, B + B · N, e) → (…, B, N)"""
        rows, others = embedding.split([anchors, embedding.shape[-2] - anchors], dim=-2)
        return paired_squared_distances(rows, others.unflatten(-2, (anchors, -1)))

    def finish(self, train: Source) -> None:
        by_class = [self._mean_embeddings(train, positions) for positions in self.sampled]
        self.references.set(torch.stack(layer) for layer in zip(*by_class, strict=True))

    def _mean_embeddings(self, train: Source, positions: Tensor) -> list[Tensor]:
        """Return the mean embedding of these images in each layer, (e_i,)."""
        sums: list[Tensor] = []
        for chunk in in_parts(positions.to(train.labels.device), self.network):
            embedded = [embedding.sum(dim=0) for embedding in self.network.embeddings(train.plain(chunk))]
            sums = [a + b for a, b in zip(sums, embedded, strict=True)] if sums else embedded
        return [total / len(positions) for total in sums]


class FaustTriplet(FaustVanilla):
    """FAUST-vanilla triplet: each image of a batch is compared with a random image of its class and a random image of
    another class. A batch of B images has 3·B rows.

    Options:
        scale: Factor of the squared distances in the loss.
        margin: Margin of the triplet loss.
        centroid_images: Number of training images per class whose mean embedding is the reference in prediction.
    """

    name: ClassVar[str] = "faust-triplet"
    title: ClassVar[str] = "FAUST-vanilla triplet"
    summary: ClassVar[str] = "triplet margin loss with a random positive and a random negative"

    def __init__(
        self, network: Network, classes: int, *, scale: float = 0.02, margin: float = 1.0, centroid_images: int = 100
    ):
        super().__init__(network, classes, scale=scale, centroid_images=centroid_images)
        require(margin > 0, f"margin must be positive, got {margin}.")
        self.margin = margin

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        another = (y + torch.randint_like(y, 1, self.classes)) % self.classes
        return self.rows_with(x, self.class_index.draw(torch.stack([y, another], dim=1)))

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        to_positive, to_negative = self.distances(embedding, y.shape[-1]).unbind(dim=-1)
        return triplet_loss(to_positive, to_negative, self.margin, self.scale)


class FaustTuplet(FaustVanilla):
    """FAUST-vanilla tuplet: each image of a batch is compared with a random image of every class. A batch of B images has
    (C + 1)·B rows.

    Options:
        scale: Factor of the squared distances in the loss.
        label_smoothing: Label smoothing of the tuplet loss.
        centroid_images: Number of training images per class whose mean embedding is the reference in prediction.
    """

    name: ClassVar[str] = "faust-tuplet"
    title: ClassVar[str] = "FAUST-vanilla tuplet"
    summary: ClassVar[str] = "tuplet loss with a random image of every class, drawn separately for each anchor"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        scale: float = 0.02,
        label_smoothing: float = 0.0,
        centroid_images: int = 100,
    ):
        super().__init__(network, classes, scale=scale, centroid_images=centroid_images)
        check_label_smoothing(label_smoothing)
        self.label_smoothing = label_smoothing

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        every_class = torch.arange(self.classes, device=y.device).expand(len(y), -1)
        return self.rows_with(x, self.class_index.draw(every_class))

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return tuplet_loss(self.distances(embedding, y.shape[-1]), y, self.scale, self.label_smoothing)
