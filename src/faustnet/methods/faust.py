"""FAUST: every layer embeds its rows and is trained to put images near what stands for their class."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.errors import require
from faustnet.losses import mixed, paired_squared_distances, triplet_loss, tuplet_loss
from faustnet.losses.objective import Contrastive, Objective, ReferenceTuplet, SimilarityMatching
from faustnet.methods.base import LocalMethod, Method
from faustnet.methods.mixup import MixUp, check_label_smoothing
from faustnet.methods.source import CHUNK, Source, join_rows
from faustnet.nn.layers import EmbeddingLayer
from faustnet.nn.network import Network, NetworkSettings, Shape, embedding_network
from faustnet.nn.references import (
    ClassIndex,
    References,
    choose_representatives,
    margin,
    named_representatives,
    reference_scores,
    repeated,
)
from faustnet.system.devices import check_memory

CHOICES = ("random", "k-means")


class Faust(Method):
    """What all variants share: the layers, and prediction by the distance to each class's references (Eq. 5)."""

    def __init__(self, network: Network, classes: int, *, count: int, scale: float):
        super().__init__(network, classes)
        require(scale > 0, f"The scale of the distance must be positive, not {scale}.")
        self.scale = scale
        self.references = References(classes, count, network.embedding_sizes)

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        return embedding_network(shape, settings)

    def scores(self, x: Tensor) -> Tensor:
        layers = zip(self.network.embeddings(x), self.references, strict=True)
        return torch.stack([reference_scores(embedding, references, self.scale) for embedding, references in layers])

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        """What comes after which tensors of the state if there is one class more, with these references in each layer and
        these images, scaled. (n, …), (K, e_i) → (1, K, e_i), and what else there is for each class"""
        return {f"references.layer_{i}": own.unsqueeze(0) for i, own in enumerate(references)}

    def check_rejection(self) -> None:
        """Refuse if the distance to the nearest reference does not tell unknown images from known ones."""

    @property
    def count(self) -> int:
        """References of a class."""
        return next(iter(self.references)).shape[1]

    @property
    def multiplications(self) -> list[int]:
        """That each layer takes for one image: its own and those of its references."""
        layers = zip(self.network, self.references, strict=True)
        return [layer.multiplications + references.numel() for layer, references in layers]

    @torch.no_grad()
    def predict_early(self, x: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        """The class of each image by the first layers, as soon as the `margin` of their mean, each by its weight, reaches
        the threshold, and how many layers that took. Nobody leaves before a layer that counts. Later layers see only the
        images that are left. (B, …) → (B,), (B,)"""
        self.check_ready()
        sides = torch.stack([x, x.flip(-1)]) if self.prediction.mirror else x.unsqueeze(0)
        left = torch.arange(len(x), device=x.device)
        votes, counted = x.new_zeros(len(x), self.classes), 0.0
        classes, used = torch.zeros_like(left), torch.zeros_like(left)
        layers = zip(self.network, self.references, self.weights, strict=True)
        for number, (layer, references, weight) in enumerate(layers, start=1):
            activation, embedding = layer(sides.flatten(0, 1).flatten(1))
            scores = reference_scores(embedding, references, self.scale).unflatten(0, sides.shape[:2])
            votes, counted = votes + weight * scores.mean(dim=0), counted + weight
            sure = margin(votes / counted) >= threshold  # 0 / 0 is not
            if number == len(self.network):
                sure = torch.ones_like(sure)
            classes[left[sure]], used[left[sure]] = votes[sure].argmax(dim=1), number
            sides, left, votes = activation.unflatten(0, sides.shape[:2])[:, ~sure], left[~sure], votes[~sure]
            if not len(left):
                break
        return classes, used


class FaustShared(Faust):
    """All anchors of a batch are compared with the same references."""

    def __init__(self, network: Network, classes: int, *, count: int, scale: float, objective: Objective):
        super().__init__(network, classes, count=count, scale=scale)
        self.objective = objective

    def enter_epoch(self, share: float) -> None:
        self.objective.enter_epoch(share)


class FaustRepresentative(FaustShared, LocalMethod):
    """Section IV.C: a few fixed training images stand for each class, in every batch and in prediction.

    They pass through the layers together with the batch, B + C·K rows, and the gradient flows through their embeddings
    as it does through the anchors'; without that the loss diverges. `chosen` names them by their positions in the
    training set, less what is held out for validation; otherwise there are `representatives` of each class: by `choice`
    "random" ones, which the seed draws, or "k-means", the middles of as many clusters of a class's images, for one the
    medoid.

    From epoch to epoch the scale of the distances goes by equal ratios from `scale` to `final_scale`, or with 0 stays.
    `contrast` is the weight of a second term, the supervised contrastive loss of the batch's own embeddings at that
    `temperature`; `matching` that of another, which brings the cosines of the batch's embeddings to those of its labels.
    `mixup` is the α of MixUp: images of a batch are blended in pairs, and so are their labels, but that to the contrast a
    blend is of the class of its larger share.
    """

    name: ClassVar[str] = "faust-representative"
    title: ClassVar[str] = "FAUST-representative tuplet"
    summary: ClassVar[str] = "tuplet loss of each image's distances to one fixed image (or K) of every class"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        representatives: int = 1,
        chosen: Sequence[int] = (),
        choice: str = "random",
        scale: float = 0.02,
        final_scale: float = 0.0,
        label_smoothing: float = 0.0,
        contrast: float = 0.0,
        temperature: float = 0.1,
        matching: float = 0.0,
        mixup: float = 0.0,
    ):
        require(representatives >= 1, f"A class needs at least one representative, not {representatives}.")
        require(choice in CHOICES, f"Representatives are chosen by {' or '.join(CHOICES)}, not {choice!r}.")
        check_memory(classes * representatives * network[0].inputs)
        tuplet = ReferenceTuplet(classes, scale, final_scale, label_smoothing)
        objective = Objective([tuplet, Contrastive(contrast, temperature), SimilarityMatching(matching)])
        super().__init__(network, classes, count=representatives, scale=tuplet.last_scale, objective=objective)
        self.chosen, self.choice = tuple(chosen), choice
        self.mixing = MixUp(mixup)
        self.register_buffer("images", torch.zeros(classes * representatives, network[0].inputs))

    images: Tensor  # the representatives themselves, scaled, class by class: (C · K, d)

    def start(self, train: Source) -> None:
        if self.chosen:
            positions = named_representatives(self.chosen, train.labels, train.class_names, self.count)
        else:
            index = ClassIndex(train.labels, self.classes)
            rows = None if self.choice == "random" else lambda own: train.plain(own.to(train.labels.device)).flatten(1)
            positions = choose_representatives(index, train.class_names, self.count, rows)
        self.positions = positions.to(train.labels.device)
        self.images.copy_(train.plain(self.positions).flatten(1))
        self.feed_from(train)

    def feed_from(self, train: Source) -> None:
        self.compared = train.plain(self.positions)

    @property
    def blends_images(self) -> bool:
        return self.mixing.on

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return join_rows([mixed(x.flatten(1), self.mixing.own(len(x))), self.compared])

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return self.objective(embedding, y, self.mixing.own(y.shape[-1]))

    def finish(self, train: Source) -> None:
        self.references.set(self.network.embeddings(self.images))

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        images = repeated(examples.flatten(1), self.count)
        return {**super().new_class(examples, references), "images": images}


class FaustPrototype(FaustShared, LocalMethod):
    """Learned vectors stand for each class, `prototypes` of them in every layer's own embedding space, instead of images.

    The other options are as for representatives.
    """

    name: ClassVar[str] = "faust-prototype"
    title: ClassVar[str] = "FAUST-prototype"
    summary: ClassVar[str] = "tuplet loss of each image's distances to one learned vector (or K) of every class"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        prototypes: int = 1,
        scale: float = 0.02,
        final_scale: float = 0.0,
        label_smoothing: float = 0.0,
        contrast: float = 0.0,
        temperature: float = 0.1,
        matching: float = 0.0,
        mixup: float = 0.0,
    ):
        require(prototypes >= 1, f"A class needs at least one prototype, not {prototypes}.")
        check_memory(classes * prototypes * sum(network.embedding_sizes))
        tuplet = ReferenceTuplet(classes, scale, final_scale, label_smoothing)
        objective = Objective([tuplet, Contrastive(contrast, temperature), SimilarityMatching(matching)])
        super().__init__(network, classes, count=prototypes, scale=tuplet.last_scale, objective=objective)
        for layer in self._layers:
            layer.add_prototypes(classes * prototypes)
        self.mixing = MixUp(mixup)  # last, so that the prototypes are the same with and without

    @property
    def _layers(self) -> list[EmbeddingLayer]:
        return [layer for layer in self.network if isinstance(layer, EmbeddingLayer)]

    @property
    def blends_images(self) -> bool:
        return self.mixing.on

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return mixed(x.flatten(1), self.mixing.own(len(x)))

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return self.objective(embedding, y, self.mixing.own(y.shape[-1]))

    def finish(self, train: Source) -> None:
        self.references.set(layer.references for layer in self._layers)

    def check_rejection(self) -> None:
        """Inputs that barely activate a layer are closest to every prototype, unless all embeddings have one length."""
        require(
            all(layer.unit for layer in self._layers),
            "Prototypes cannot reject images if embeddings have free length: train with network.length=unit.",
        )

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        """Learned vectors may be far shorter than embeddings: what stands for the new class is brought to their length."""
        lengths = [old.norm(dim=-1).mean() for old in self.references]
        alike = [functional.normalize(own, dim=-1) * length for own, length in zip(references, lengths, strict=True)]
        names = [name for name, _ in self.named_parameters() if name.endswith(".prototypes")]
        return {**super().new_class(examples, alike), **dict(zip(names, alike, strict=True))}


class FaustVanilla(Faust, LocalMethod):
    """Section IV.B: each anchor is compared with images drawn for it alone; classes are predicted by centroids.

    A positive is any image of the anchor's class, so once in a while the anchor itself.
    """

    draws: ClassVar[bool] = True

    def __init__(self, network: Network, classes: int, *, scale: float, centroid_images: int):
        super().__init__(network, classes, count=1, scale=scale)
        require(centroid_images >= 1, f"A centroid needs at least one image, not {centroid_images}.")
        self.centroid_images = centroid_images

    def start(self, train: Source) -> None:
        require(self.classes > 1, "There is one class only, so there are no negatives: give images of two classes or more.")
        self.index = ClassIndex(train.labels, self.classes)
        self.index.require_all(train.class_names)
        self.sampled = [self.index.sample(number, self.centroid_images) for number in range(self.classes)]
        self.feed_from(train)

    def feed_from(self, train: Source) -> None:
        self.train_rows = train

    def compared_with(self, drawn: Tensor, x: Tensor) -> Tensor:
        """The batch, then the images at the positions that were drawn for it, (B, N), anchor by anchor."""
        return join_rows([x, self.train_rows.augmented(drawn.flatten())])

    def distances(self, embedding: Tensor, anchors: int) -> Tensor:
        """Each anchor's distances to what was drawn for it. (…, B + B · N, e) → (…, B, N)"""
        rows, others = embedding.split([anchors, embedding.shape[-2] - anchors], dim=-2)
        return paired_squared_distances(rows, others.unflatten(-2, (anchors, -1)))

    def finish(self, train: Source) -> None:
        by_class = [self._mean_embeddings(train, positions) for positions in self.sampled]
        self.references.set(torch.stack(layer) for layer in zip(*by_class, strict=True))

    def _mean_embeddings(self, train: Source, positions: Tensor) -> list[Tensor]:
        """Each layer's mean embedding of some images, (e_i,)."""
        sums: list[Tensor] = []
        for chunk in positions.to(train.labels.device).split(CHUNK):
            embedded = [embedding.sum(dim=0) for embedding in self.network.embeddings(train.plain(chunk))]
            sums = [a + b for a, b in zip(sums, embedded, strict=True)] if sums else embedded
        return [total / len(positions) for total in sums]


class FaustTriplet(FaustVanilla):
    """FAUST-vanilla triplet: one random positive, one random negative of another class. 3·B rows."""

    name: ClassVar[str] = "faust-triplet"
    title: ClassVar[str] = "FAUST-vanilla triplet"
    summary: ClassVar[str] = "triplet margin loss with a random positive and a random negative"

    def __init__(
        self, network: Network, classes: int, *, scale: float = 0.02, margin: float = 1.0, centroid_images: int = 100
    ):
        super().__init__(network, classes, scale=scale, centroid_images=centroid_images)
        require(margin > 0, f"The margin must be positive, not {margin}.")
        self.margin = margin

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        another = (y + torch.randint_like(y, 1, self.classes)) % self.classes
        return self.compared_with(self.index.draw(torch.stack([y, another], dim=1)), x)

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        to_positive, to_negative = self.distances(embedding, y.shape[-1]).unbind(dim=-1)
        return triplet_loss(to_positive, to_negative, self.margin, self.scale)


class FaustTuplet(FaustVanilla):
    """FAUST-vanilla tuplet: a random positive and a random negative of every other class. (C + 1)·B rows."""

    name: ClassVar[str] = "faust-tuplet"
    title: ClassVar[str] = "FAUST-vanilla tuplet"
    summary: ClassVar[str] = "tuplet loss with a random image of every class, drawn anew for each anchor"

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
        return self.compared_with(self.index.draw(every_class), x)

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return tuplet_loss(self.distances(embedding, y.shape[-1]), y, self.scale, self.label_smoothing)
