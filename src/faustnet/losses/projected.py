"""The tuplet loss of embeddings that are a linear map of activations, without computing them."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from faustnet.errors import FaustnetError
from faustnet.losses.checks import check_labels, check_tuplet_options
from faustnet.losses.formulas import exact, goodness
from faustnet.losses.gradients import scaled_by_layer
from faustnet.losses.shared_references import class_targets, loss_of_products

WORTHWHILE = 2**24  # multiplications that take a CPU about as long as the additional operations of `projected_tuplet_loss`


def projected_tuplet_loss(
    activation: Tensor,
    projection: Tensor,
    labels: Tensor,
    classes: int,
    scale: float | Tensor,
    label_smoothing: float = 0.0,
    shares: Tensor | None = None,
    *,
    references: Tensor | None = None,
) -> Tensor:
    """`reference_tuplet_loss` of embeddings that are a linear map of activations, without computing those of the anchors.

    The length of an anchor's embedding cancels in Eq. 4, so the loss depends on an anchor a with embedding P·a only by the
    products (P·a)·r = a·(Pᵀ·r) with the references r. With few references these are far fewer multiplications than P·a. The
    result and the gradients are the same up to rounding. (…, B + C · K, w), (…, e, w), (…, B) → (…)

    Args:
        activation: What the linear map is applied to: the B anchors, then the K references of each class, in the order of
            the classes. Only the B anchors if `references` are given.
        projection: Weight P of the linear map, which has no bias.
        labels: Classes of the anchors.
        classes: Number of classes.
        scale: Factor of the squared distances. A tensor, (), gets no gradient.
        label_smoothing: Label smoothing of the cross entropy.
        shares: With MixUp, the `shares` that the anchors were `mixed` with; their targets are mixed in the same way.
        references: Embeddings of the K references of each class, if they are no embeddings of activations. (…, C · K, e)
    """
    batch = labels.shape[-1] if labels.dim() else 1
    rows = activation.shape[-2] - batch if references is None else references.shape[-2]
    if classes < 1 or rows < 1 or rows % classes:
        raise FaustnetError(
            "activation must have B + classes · K rows for B labels, or references classes · K rows, with K at least 1, got "
            f"{rows} rows of references for classes={classes}."
        )
    if references is not None and activation.shape[-2] != batch:
        raise FaustnetError(
            f"activation must have one row for each of the {batch} labels if references are given, got "
            f"{activation.shape[-2]} rows."
        )
    check_labels(labels, torch.Size((*activation.shape[:-2], batch)), classes)
    check_tuplet_options(scale, label_smoothing)
    return _ProjectedTuplet.apply(activation, projection, references, labels, classes, scale, label_smoothing, shares)


def projection_saves(anchors: int, references: int, projection: Tensor) -> bool:
    """Return whether `projected_tuplet_loss` is faster on a CPU than the linear map to embeddings and
    `reference_tuplet_loss`: whether it saves enough multiplications to make up for more operations. (e, w)"""
    size, width = projection.shape
    return 3 * width * (anchors * size - references * (anchors + size)) > WORTHWHILE


class _ProjectedTuplet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, activation: Tensor, projection: Tensor, references: Tensor | None, labels: Tensor, *settings: Any
    ) -> Tensor:
        with torch.autocast(activation.device.type, enabled=False):
            loss, *gradients = _projected_tuplet(activation, projection, references, labels, *settings)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        found = [None if gradient is None else scaled_by_layer(gradient, by_loss) for gradient in ctx.saved_tensors]
        return *found, None, None, None, None, None


def _projected_tuplet(
    activation: Tensor,
    projection: Tensor,
    references: Tensor | None,
    labels: Tensor,
    classes: int,
    scale: float | Tensor,
    label_smoothing: float,
    shares: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the mean loss of the anchors, (…), and its gradients by the activation, the projection and the references.

    With R = C · K references r = P·a, v = Pᵀ·r, and the gradient g by the products of the anchors with the references, the
    gradient by the anchors is g·v, that by P is rᵀ·(gᵀ·anchors), and that by r is P·(gᵀ·anchors) minus the part from ‖r‖².
    """
    batch = labels.shape[-1]
    anchors, others = exact(activation).split([batch, activation.shape[-2] - batch], dim=-2)
    weight = exact(projection)
    vectors = others @ weight.mT if references is None else exact(references)  # (…, R, e)
    across = vectors @ weight  # (…, R, w)
    targets = class_targets(labels, classes, shares, label_smoothing, anchors.dtype)
    products = torch.matmul(across, anchors.mT).mT  # three times as fast as in the other order
    loss, by_products = loss_of_products(products, goodness(vectors), *targets, scale)
    by_across = by_products.mT @ anchors  # (…, R, w)
    by_vectors = by_across @ weight.mT
    by_vectors.addcmul_(by_products.sum(dim=-2).unsqueeze(-1), vectors, value=-1)
    by_activation = weight.new_empty(activation.shape)
    by_anchors, by_others = by_activation.split([batch, others.shape[-2]], dim=-2)
    torch.matmul(by_products, across, out=by_anchors)
    if references is not None:
        by_projection = vectors.mT @ by_across
        by_references = by_vectors.to(references.dtype)
    else:
        torch.matmul(by_vectors, weight, out=by_others)
        by_projection = torch.cat([vectors, by_vectors], dim=-2).mT @ torch.cat([by_across, others], dim=-2)
        by_references = None
    return loss, by_activation.to(activation.dtype), by_projection.to(projection.dtype), by_references
