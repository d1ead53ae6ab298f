"""FAUST: every layer learns to map an image close to a reference for its class. The base classes, and representatives."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from faustnet._deprecated import moved_names
from faustnet.errors import require
from faustnet.losses.objective import BatchTuplet, Contrastive, Objective, ReferenceTuplet, SimilarityMatching
from faustnet.methods.arguments import check_network
from faustnet.methods.base import Method
from faustnet.methods.mixup import MixUp, check_label_smoothing
from faustnet.methods.shared_loss import SharedReferenceLoss
from faustnet.methods.source import Source, join_rows
from faustnet.methods.stepping import not_prepared
from faustnet.nn.architectures import NetworkSettings, Shape, embedding_network
from faustnet.nn.network import Network
from faustnet.nn.references import (
    ClassIndex,
    References,
    choose_representatives,
    named_representatives,
    reference_scores,
    repeat_rows,
    score_margin,
)
from faustnet.nn.search import MANY, Decisions, nearest_classes
from faustnet.nn.structure import Structure, select_rows
from faustnet.system.devices import check_memory

CHOICES = ("random", "k-means")
CLASSES_PER_STEP = ("all", "batch")


class Faust(Method):
    """Base class of the FAUST methods: their layers, and prediction by the distance to the references of each class (Eq. 5).
    `scale` multiplies the squared distances."""

    def __init__(self, network: Network, classes: int, *, count: int, scale: float):
        super().__init__(network, classes)
        require(scale > 0, f"scale must be positive, got {scale}.")
        self.scale = scale
        self.references = References(classes, count, network.embedding_sizes, network.embedding_dtypes)

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        return embedding_network(shape, settings)

    def scores(self, x: Tensor) -> Tensor:
        layers = zip(self.network.embeddings(x), self.references, strict=True)
        return torch.stack([reference_scores(embedding, references, self.scale) for embedding, references in layers])

    def decide(self, x: Tensor, weights: Sequence[float]) -> Decisions:
        """Many references are compared in pieces, because the scores of all classes may need much memory."""
        if self.classes * self.count < MANY or type(self).scores is not Faust.scores:
            return super().decide(x, weights)
        self.check_ready()
        views = [x, x.flip(-1)] if self.prediction.mirror else [x]
        embeddings = [torch.cat(sides) for sides in zip(*map(self.network.embeddings, views), strict=True)]
        return nearest_classes(embeddings, self.references.with_squares(), weights, self.scale, len(views))

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return what a new class adds to each tensor of the `state_dict`, by the names of the tensors.

        `examples` are scaled images of the class, (n, …); `references` are its references in each layer, (K, e_i).
        """
        return {f"references.layer_{i}": own.unsqueeze(0) for i, own in enumerate(references)}

    def updated_class(self, number: int, present: int, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the rows of a class with other references in the tensors of the `state_dict`, by the names of the tensors.

        `examples` are further scaled images of the class, (n, …), besides the `present` ones that the method already has;
        `references` are as for `new_class`.
        """
        return {f"references.layer_{i}": own.unsqueeze(0) for i, own in enumerate(references)}

    def blended(self, learned: Tensor, mean: Tensor, share: float) -> Tensor:
        """Move the learned references of a class in one layer towards the mean embedding of its examples.
        (K, e), (1, e) → (K, e)"""
        return torch.lerp(learned, mean.expand_as(learned), share)

    @property
    def new_lengths(self) -> list[float] | None:
        """Length that the references of a new class are scaled to in each layer; None if they are not scaled."""
        return None

    def check_rejection(self) -> None:
        """Refuse if the distance to the nearest reference does not tell unknown images from known ones."""

    @property
    def count(self) -> int:
        """Number of references per class."""
        return next(iter(self.references)).shape[1]

    @property
    def multiplications(self) -> list[int]:
        """Number of multiplications of each layer for one image, including the distances to its references."""
        layers = zip(self.network.multiplications, self.references, strict=True)
        return [count + references.numel() for count, references in layers]

    @torch.no_grad()
    def predict_early(self, x: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        """Predict each image with early exit, and return the classes and the numbers of layers used. (B, …) → (B,), (B,)

        An image exits after the first layer where the mean score of the layers so far, by their weights, has a
        `score_margin` of at least `threshold`. No early exit before a layer with non-zero weight.
        """
        self.check_ready()
        sides = 2 if self.prediction.mirror else 1
        rows: Structure = torch.cat([x, x.flip(-1)]) if self.prediction.mirror else x
        remaining = torch.arange(len(x), device=x.device)
        total, weights = next(iter(self.references)).new_zeros(len(x), self.classes), 0.0
        classes, used = torch.zeros_like(remaining), torch.zeros_like(remaining)
        layers = zip(self.network, self.references, self.weights, strict=True)
        for number, (layer, references, weight) in enumerate(layers, start=1):
            rows, embedding = layer(rows)
            scores = reference_scores(embedding, references, self.scale).unflatten(0, (sides, -1))
            total, weights = total + weight * scores.mean(dim=0), weights + weight
            exits = score_margin(total / weights) >= threshold  # 0 / 0 is NaN, which is not
            if number == len(self.network):
                exits = torch.ones_like(exits)
            classes[remaining[exits]], used[remaining[exits]] = total[exits].argmax(dim=1), number
            rows = select_rows(rows, (~exits).repeat(sides))
            remaining, total = remaining[~exits], total[~exits]
            if not len(remaining):
                break
        return classes, used


class FaustSharedReferences(Faust):
    """Base class of the FAUST methods whose anchors share their references; see `FaustRepresentative` for the options. The
    scale of distances may change while training; prediction uses the last one."""

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        count: int,
        scale: float,
        final_scale: float,
        label_smoothing: float,
        contrast: float,
        temperature: float,
        matching: float,
        in_batch: bool = False,
    ):
        for name, value in (("scale", scale), ("temperature", temperature)):
            require(value > 0, f"{name} must be positive, got {value}.")
        for name, value in (("final_scale", final_scale), ("contrast", contrast), ("matching", matching)):
            require(value >= 0, f"{name} must be 0 (off) or more, got {value}.")
        check_label_smoothing(label_smoothing)
        super().__init__(network, classes, count=count, scale=final_scale or scale)
        tuplet = (
            BatchTuplet(scale, final_scale, label_smoothing)
            if in_batch
            else ReferenceTuplet(classes, scale, final_scale, label_smoothing)
        )
        self.objective = Objective([tuplet, Contrastive(contrast, temperature), SimilarityMatching(matching)])

    @classmethod
    def unused_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        return {} if options.get("contrast", 1.0) else {"temperature": "contrast"}

    def enter_epoch(self, progress: float) -> None:
        self.objective.enter_epoch(progress)


class RepresentativeMethod(FaustSharedReferences):
    """Base class of the methods whose references are embedded training images; see `FaustRepresentative` for the options."""

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        representatives: int = 1,
        chosen: Sequence[int] = (),
        choice: str = "random",
        representatives_per_step: int = 0,
        classes_per_step: str = "all",
        scale: float = 0.02,
        final_scale: float = 0.0,
        label_smoothing: float = 0.0,
        contrast: float = 0.0,
        temperature: float = 0.1,
        matching: float = 0.0,
        mixup: float = 0.0,
    ):
        require(representatives >= 1, f"representatives must be at least 1, got {representatives}.")
        require(choice in CHOICES, f"choice must be {' or '.join(CHOICES)}, got {choice!r}.")
        require(
            0 <= representatives_per_step <= representatives,
            f"representatives_per_step must be from 1 to representatives ({representatives}), or 0 for all of them, got "
            f"{representatives_per_step}.",
        )
        require(
            classes_per_step in CLASSES_PER_STEP,
            f"classes_per_step must be {' or '.join(CLASSES_PER_STEP)}, got {classes_per_step!r}.",
        )
        require(
            choice == "random" or not network.takes_ids,
            f"choice must be random for token ids and other whole numbers, because their distances have no meaning, "
            f"got {choice!r}: leave it out.",
        )
        check_network(network, classes)
        check_memory(classes * representatives * network.example.numel())
        super().__init__(
            network,
            classes,
            count=representatives,
            scale=scale,
            final_scale=final_scale,
            label_smoothing=label_smoothing,
            contrast=contrast,
            temperature=temperature,
            matching=matching,
            in_batch=classes_per_step == "batch",
        )
        self.chosen, self.choice = tuple(chosen), choice
        self.representatives_per_step, self.classes_per_step = representatives_per_step, classes_per_step
        self.mixing = MixUp(mixup, network)
        self.register_buffer("images", network.example.new_zeros(classes * representatives, *network.example.shape[1:]))

    @classmethod
    def unused_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        return super().unused_options(options) | ({"choice": "chosen"} if options.get("chosen") else {})

    images: Tensor  # the representatives, scaled, class by class: (C · K, …)
    compared: Tensor | None = None  # what passes through the layers in their place: (C · K, …)

    def start(self, train: Source) -> None:
        if self.chosen:
            positions = named_representatives(self.chosen, train.labels, train.class_names, self.count)
        else:
            index = ClassIndex(train.labels, self.classes)
            rows = None if self.choice == "random" else lambda own: train.plain(own.to(train.labels.device)).flatten(1)
            positions = choose_representatives(index, train.class_names, self.count, rows)
        self.positions = positions.to(train.labels.device)
        self.images.copy_(train.plain(self.positions))
        self.feed_from(train)

    def feed_from(self, train: Source) -> None:
        self.compared = train.plain(self.positions)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the anchors, mixed if MixUp is on, then the representatives, or some of them. (B, …) → (B + C · K, …)"""
        return join_rows(self.mixing.blend(x), self._compared_with(y))

    def _compared_with(self, y: Tensor) -> Tensor:
        """Return the representatives that anchors of these classes are compared with. (B,) → (C · K, …)"""
        if self.compared is None:
            raise not_prepared(self)
        if self.classes_per_step == "all" and not self.representatives_per_step:
            return self.compared
        classes = y if self.classes_per_step == "batch" else torch.arange(self.classes, device=y.device)
        within = torch.arange(self.count, device=y.device).expand(len(classes), -1)
        if self.representatives_per_step:
            within = torch.rand(within.shape, device=y.device).argsort(dim=1)[:, : self.representatives_per_step]
        return select_rows(self.compared, (classes.unsqueeze(1) * self.count + within).flatten())

    def finish(self, train: Source) -> None:
        self.references.set(self.network.embeddings(self.images))

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        images = repeat_rows(examples, self.count)
        return {**super().new_class(examples, references), "images": images}

    def updated_class(self, number: int, present: int, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        own = self.images[number * self.count :][:present]
        images = repeat_rows(torch.cat([own, examples.to(own)])[: self.count], self.count)
        return {**super().updated_class(number, present, examples, references), "images": images}


class FaustRepresentative(RepresentativeMethod, SharedReferenceLoss):
    """Section IV.C of the paper: the references of each class are K fixed training images, its representatives, in
    training and in prediction.

    They pass through the layers together with each batch, which then has B + C·K rows. The gradient flows through their
    embeddings too; otherwise the loss diverges.

    Options:
        representatives: Number of representatives per class (K).
        chosen: Positions of the representatives in the training set (without the validation images), instead of `choice`.
        choice: How representatives are chosen: "random", which depends on the seed; or "k-means", which clusters the images
            of each class and takes the image closest to each cluster centre.
        representatives_per_step: Number of representatives of each class that are drawn at random for each step of
            training; 0 for all of them. Prediction always uses all of them.
        classes_per_step: Classes whose representatives are used in a step: "all"; or "batch", those of the images in the
            batch, so that a step costs the same with any number of classes. A batch then has B + B·K rows.
        scale: Factor of the squared distances in the loss.
        final_scale: Scale in the last epoch; it changes geometrically over the epochs. 0: constant scale.
        label_smoothing: Label smoothing of the tuplet loss.
        contrast: Weight of an additional supervised contrastive loss.
        temperature: Temperature of the contrastive loss.
        matching: Weight of an additional similarity matching loss, which fits the cosine similarities of the embeddings in
            a batch to those of their one-hot labels.
        mixup: α of MixUp, which mixes pairs of images and their labels; 0 for no MixUp. The contrastive loss then uses the
            label with the larger share.
    """

    name: ClassVar[str] = "faust-representative"
    title: ClassVar[str] = "FAUST-representative tuplet"
    summary: ClassVar[str] = "tuplet loss of the distances to K fixed training images of every class (K = 1 by default)"

    @property
    def references_per_step(self) -> int:
        return self.classes * (self.representatives_per_step or self.count)


__getattr__ = moved_names(__name__)
