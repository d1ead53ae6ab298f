"""The objective of FAUST methods whose anchors share their references: a weighted sum of loss terms."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from faustnet.errors import require
from faustnet.losses import marginal_contrastive_loss, reference_tuplet_loss, similarity_matching_loss
from faustnet.methods.base import check_label_smoothing


class Term(nn.Module, ABC):
    """One term of an objective, with its weight. Subclass it to add a term; a term has no parameters to train."""

    def __init__(self, weight: float = 1.0):
        super().__init__()
        require(0 <= weight < math.inf, f"The weight of {type(self).__name__} must be 0 or more, got {weight}.")
        self.weight = weight

    def enter_epoch(self, share: float) -> None:
        """Prepare for an epoch; `share` goes from 0 in the first epoch to 1 in the last. Change tensors in place: a
        recorded CUDA graph reads them where they were."""

    @abstractmethod
    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        """Return the loss of each layer, without the weight.

        `embedding` contains all rows: the anchors, then K references of each class. `anchors` is the part of it with the
        anchors, and `labels` are their classes. If the anchors are `losses.mixed`, `shares` says how.
        (…, B + C · K, e), (…, B, e), (…, B), (B,) → (…)
        """


class Objective(nn.Module):
    """Sum of weighted terms, in the order given. Terms with weight 0 are not computed."""

    def __init__(self, terms: Iterable[Term]):
        super().__init__()
        self.terms = cast("list[Term]", nn.ModuleList(term for term in terms if term.weight))
        require(len(self.terms) > 0, "terms must contain at least one term with a weight above 0, got none.")

    def enter_epoch(self, share: float) -> None:
        """Prepare every term for an epoch; `share` goes from 0 in the first epoch to 1 in the last."""
        for term in self.terms:
            term.enter_epoch(share)

    def forward(self, embedding: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        """Return the loss of each layer, from the anchors and then K references of each class.

        If the anchors were `losses.mixed`, `shares` are their shares. (…, B + C · K, e), (…, B), (B,) → (…)
        """
        anchors = embedding[..., : labels.shape[-1], :]  # once, so that its gradients are added up in one place
        total: Tensor | None = None
        for term in self.terms:
            losses = term(embedding, anchors, labels, shares)
            losses = losses if term.weight == 1 else term.weight * losses
            total = losses if total is None else total + losses
        assert total is not None
        return total


class ReferenceTuplet(Term):
    """Tuplet loss of the distances from each anchor to the references of all classes (`reference_tuplet_loss`).

    The scale of the distances changes geometrically from `scale` in the first epoch to `final_scale` in the last. If
    `final_scale` is 0, the scale is constant.
    """

    current_scale: Tensor  # (): the scale of this epoch, if it changes

    def __init__(
        self, classes: int, scale: float, final_scale: float = 0.0, label_smoothing: float = 0.0, *, weight: float = 1.0
    ):
        super().__init__(weight)
        require(scale > 0, f"scale must be above 0, got {scale}.")
        require(final_scale >= 0, f"final_scale must be above 0, or 0 for a constant scale, got {final_scale}.")
        check_label_smoothing(label_smoothing)
        self.classes, self.label_smoothing = classes, label_smoothing
        self.scale, self.last_scale, self.constant = scale, final_scale or scale, not final_scale
        self.register_buffer("current_scale", torch.tensor(scale), persistent=False)

    def enter_epoch(self, share: float) -> None:
        if not self.constant:
            self.current_scale.copy_(torch.tensor(self.scale ** (1 - share) * self.last_scale**share))

    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        scale = self.scale if self.constant else self.current_scale
        return reference_tuplet_loss(embedding, labels, self.classes, scale, self.label_smoothing, shares)


class Contrastive(Term):
    """Supervised contrastive loss of the anchors (`marginal_contrastive_loss` with a margin of 0). A mixed anchor has the
    label of its larger share."""

    def __init__(self, weight: float, temperature: float):
        super().__init__(weight)
        require(temperature > 0, f"temperature must be above 0, got {temperature}.")
        self.temperature = temperature

    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        return marginal_contrastive_loss(anchors, labels, 0.0, self.temperature)


class SimilarityMatching(Term):
    """Similarity matching loss of the anchors (`similarity_matching_loss`)."""

    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        return similarity_matching_loss(anchors, labels, shares)
