"""Objectives: weighted sums of loss terms for methods whose anchors share their references."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from faustnet.errors import FaustnetError, require
from faustnet.losses.checks import check_labels, check_tuplet_options
from faustnet.losses.formulas import exact, goodness, marginal_contrastive_loss, similarity_matching_loss
from faustnet.losses.gradients import scaled_by_layer
from faustnet.losses.projected import projected_tuplet_loss
from faustnet.losses.shared_references import class_targets, loss_of_products
from faustnet.system.customised import is_customised
from faustnet.system.devices import has_triton


class Term(nn.Module, ABC):
    """Base class of the terms of an objective. A term has a weight, and no trainable parameters."""

    def __init__(self, weight: float = 1.0):
        super().__init__()
        require(0 <= weight < math.inf, f"The weight of {type(self).__name__} must be 0 or more, got {weight}.")
        self.weight = weight

    def enter_epoch(self, share: float) -> None:
        """Prepare for an epoch; `share` goes from 0 in the first epoch to 1 in the last. Change tensors in place: a
        recorded CUDA graph keeps their addresses."""

    @abstractmethod
    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        """Return the loss of each layer, without the weight.

        Args:
            embedding: Embeddings of the anchors, then of K references of each class. (…, B + C · K, e)
            anchors: The part of `embedding` with the anchors. (…, B, e)
            labels: Classes of the anchors. (…, B)
            shares: With MixUp, the `shares` that the anchors were `mixed` with, (B,); otherwise None.
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
        """Return the loss of each layer. The arguments are those of `Term.forward`. (…, B + C · K, e), (…, B), (B,) → (…)"""
        anchors = embedding[..., : labels.shape[-1], :]  # once, so that its gradients are added up in one place
        total: Tensor | None = None
        for term in self.terms:
            losses = term(embedding, anchors, labels, shares)
            losses = losses if term.weight == 1 else term.weight * losses
            total = losses if total is None else total + losses
        assert total is not None
        return total

    @property
    def takes_projection(self) -> bool:
        """Whether `projected` computes the loss: the only term is a `ReferenceTuplet`, and a call would run no hooks."""
        if type(self) is not Objective or [type(term) for term in self.terms] != [ReferenceTuplet]:
            return False
        return not is_customised(self) and not is_customised(self.terms[0])

    def projected(
        self,
        activation: Tensor,
        projection: Tensor,
        labels: Tensor,
        shares: Tensor | None = None,
        references: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of layers whose embeddings are a linear map of activations, by `projected_tuplet_loss`, which
        describes the arguments. (…, B + C · K, w), (…, e, w), (…, B), (B,) → (…)"""
        (term,) = self.terms
        assert isinstance(term, ReferenceTuplet)
        losses = term.projected(activation, projection, labels, shares, references)
        return losses if term.weight == 1 else term.weight * losses


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
        require(final_scale >= 0, f"final_scale must be above 0, or 0 for a constant scale, got {final_scale}.")
        check_tuplet_options(scale, label_smoothing)
        self.classes, self.label_smoothing = classes, label_smoothing
        self.scale, self.last_scale, self.constant = scale, final_scale or scale, not final_scale
        self.register_buffer("current_scale", torch.tensor(scale), persistent=False)

    def enter_epoch(self, share: float) -> None:
        if not self.constant:
            self.current_scale.copy_(torch.tensor(self.scale ** (1 - share) * self.last_scale**share))

    @property
    def _scale(self) -> float | Tensor:
        return self.scale if self.constant else self.current_scale

    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        return reference_tuplet_loss(embedding, labels, self.classes, self._scale, self.label_smoothing, shares)

    def projected(
        self, activation: Tensor, projection: Tensor, labels: Tensor, shares: Tensor | None, references: Tensor | None
    ) -> Tensor:
        """Return the loss of embeddings that are a linear map of activations, without the weight."""
        smoothing = self.label_smoothing
        return projected_tuplet_loss(
            activation, projection, labels, self.classes, self._scale, smoothing, shares, references=references
        )


class BatchTuplet(ReferenceTuplet):
    """Tuplet loss of the distances from each anchor to the references of the classes in the batch (`batch_tuplet_loss`).
    After the anchors, the embeddings contain K references of the class of each anchor. The scale changes in the same way."""

    def __init__(self, scale: float, final_scale: float = 0.0, label_smoothing: float = 0.0, *, weight: float = 1.0):
        super().__init__(1, scale, final_scale, label_smoothing, weight=weight)

    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        return batch_tuplet_loss(embedding, labels, self._scale, self.label_smoothing, shares)


class Contrastive(Term):
    """Supervised contrastive loss of the anchors (`marginal_contrastive_loss` with a margin of 0). With MixUp, an anchor has
    the label with the larger share."""

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


def reference_tuplet_loss(
    embedding: Tensor,
    labels: Tensor,
    classes: int,
    scale: float | Tensor,
    label_smoothing: float = 0.0,
    shares: Tensor | None = None,
) -> Tensor:
    """Eq. 4 with the same references for all anchors: `tuplet_loss` of the `soft_minimum` of `squared_distances`.

    The gradient is computed together with the loss, with half as many operations as autograd would need. It cannot be
    differentiated again. (…, B + C · K, e), (…, B) → (…)

    Args:
        embedding: Embeddings of the B anchors, then of the K references of each class, in the order of the classes.
        labels: Classes of the anchors.
        classes: Number of classes.
        scale: Factor of the squared distances. A tensor, (), gets no gradient.
        label_smoothing: Label smoothing of the cross entropy.
        shares: With MixUp, the `shares` that the anchors were `mixed` with; their targets are mixed in the same way.
    """
    batch = labels.shape[-1] if labels.dim() else 1
    references = embedding.shape[-2] - batch
    if classes < 1 or references < 1 or references % classes:
        raise FaustnetError(
            f"embedding must have B + classes · K rows for B labels, with K at least 1, got {embedding.shape[-2]} rows for "
            f"{batch} labels and classes={classes}."
        )
    check_labels(labels, torch.Size((*embedding.shape[:-2], batch)), classes)
    check_tuplet_options(scale, label_smoothing)
    return _ReferenceTuplet.apply(embedding, labels, classes, scale, label_smoothing, shares)


def batch_tuplet_loss(
    embedding: Tensor,
    labels: Tensor,
    scale: float | Tensor,
    label_smoothing: float = 0.0,
    shares: Tensor | None = None,
) -> Tensor:
    """`reference_tuplet_loss` with only the classes in the batch. (…, B + B · K, e), (…, B) → (…)

    The cost does not depend on the number of classes. If several anchors have the same class, the references of the first
    one are used.

    Args:
        embedding: Embeddings of the B anchors, then of K references of the class of each anchor.
        labels: Classes of the anchors.
        scale: Factor of the squared distances. A tensor, (), gets no gradient.
        label_smoothing: Label smoothing of the cross entropy, over the classes in the batch.
        shares: With MixUp, the `shares` that the anchors were `mixed` with; their targets are mixed in the same way.
    """
    batch = labels.shape[-1] if labels.dim() else 1
    references = embedding.shape[-2] - batch
    if references < batch or references % batch:
        raise FaustnetError(
            f"embedding must have B + B · K rows for B labels, with K at least 1, got {embedding.shape[-2]} rows for "
            f"{batch} labels."
        )
    check_labels(labels, torch.Size((*embedding.shape[:-2], batch)))
    check_tuplet_options(scale, label_smoothing)
    return _ReferenceTuplet.apply(embedding, labels, None, scale, label_smoothing, shares)


class _ReferenceTuplet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding: Tensor, labels: Tensor, *settings: Any) -> Tensor:
        loss, by_embedding = _reference_tuplet(embedding, labels, *settings)
        ctx.save_for_backward(by_embedding)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        (by_embedding,) = ctx.saved_tensors
        return scaled_by_layer(by_embedding, by_loss), None, None, None, None, None


def _reference_tuplet(
    embedding: Tensor,
    labels: Tensor,
    classes: int | None,
    scale: float | Tensor,
    label_smoothing: float,
    shares: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of the anchors, (…), and its gradient by the embedding, (…, B + C · K, e).

    If `classes` is None, the C = B classes are those of the anchors.
    """
    batch = labels.shape[-1]
    columns = classes or batch  # references of a class, side by side
    count = (embedding.shape[-2] - batch) // columns
    in_kernel = count == 1 and shares is None and embedding.dtype != torch.float64 and has_triton(embedding.device)
    if in_kernel and not isinstance(scale, Tensor):
        from faustnet.nn.kernels import MOST_REFERENCES, reference_tuplet

        if columns <= MOST_REFERENCES:
            return reference_tuplet(embedding, labels, scale, label_smoothing, in_batch=classes is None)
    anchors, references = exact(embedding).split([batch, columns * count], dim=-2)
    targets = class_targets(labels, classes, shares, label_smoothing, anchors.dtype)
    loss, by_products = loss_of_products(torch.matmul(anchors, references.mT), goodness(references), *targets, scale)
    by_references = by_products.mT @ anchors
    by_references.addcmul_(by_products.sum(dim=-2).unsqueeze(-1), references, value=-1)
    return loss, torch.cat([by_products @ references, by_references], dim=-2).to(embedding.dtype)
