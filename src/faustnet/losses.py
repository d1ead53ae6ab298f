"""The paper's formulas, as pure functions on tensors.

Shapes: B anchors, C classes, K references of a class, e embedding values. Dimensions before those are layers that are
computed at once, each by itself. Losses are means over the batch.
Distances are squared and Euclidean throughout, as Section IV.A defines d; a scale multiplies them wherever they enter
an exponential or a margin, because a squared distance over hundreds of dimensions is far too large for either as it stands.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.system.devices import has_triton


def goodness(activity: Tensor) -> Tensor:
    """Eq. 1: the sum of squares of each row, (…, B, units) → (…, B)."""
    return exact(activity).square().sum(dim=-1)


def goodness_loss(positive: Tensor, negative: Tensor, threshold: float) -> Tensor:
    """Eq. 2, Forward-Forward's loss, from the goodness of positive and of negative rows, (…, B) each → (…)."""
    return 0.5 * (functional.softplus(threshold - positive) + functional.softplus(negative - threshold)).mean(dim=-1)


def symmetric_loss(positive: Tensor, negative: Tensor, sharpness: float) -> Tensor:
    """SymBa's loss, log(1 + exp(−α (G⁺ − G⁻))), from the goodness of pairs of rows, (…, B) each → (…)."""
    return functional.softplus(-sharpness * (positive - negative)).mean(dim=-1)


def goodness_by_group(activity: Tensor, classes: int, channels: int) -> Tensor:
    """CwC's goodness: of each class the mean of squares over all pixels of its share of the channels, the first class's
    first. (…, B, pixels · channels), the channels of a pixel together → (…, B, C)"""
    return exact(activity).square().unflatten(-1, (-1, classes, channels // classes)).mean(dim=(-3, -1))


def competitive_loss(by_class: Tensor, labels: Tensor) -> Tensor:
    """CwC's loss, −log(exp(G_y) / Σ exp(G_c)), from each class's goodness. (…, B, C), (…, B) → (…)"""
    return tuplet_loss(-by_class, labels)


def marginal_contrastive_loss(embedding: Tensor, labels: Tensor, margin: Tensor, temperature: float) -> Tensor:
    """FFCM's loss: the supervised contrastive one, where pairs of one class count as closer by a margin.

    With s the cosine of two rows, or min(s + margin, 1) if they are of one class, a row's loss is the mean over the others
    of its class of −log(exp(s / temperature) / Σ exp(s / temperature)), where the sum is over all other rows, less the
    least that this can be, the logarithm of how many those others are. A row that has none counts as nought.
    (…, B, e), (…, B), (…) → (…)
    """
    rows = functional.normalize(exact(embedding), dim=-1)
    itself = torch.eye(rows.shape[-2], dtype=torch.bool, device=rows.device)
    alike = (labels.unsqueeze(-1) == labels.unsqueeze(-2)) & ~itself
    cosines = torch.matmul(rows, rows.mT)
    closer = (cosines + margin[..., None, None]).clamp_max(1)
    logits = (torch.where(alike, closer, cosines) / temperature).masked_fill(itself, -math.inf)
    log_shares = logits - logits.logsumexp(dim=-1, keepdim=True)
    total = torch.where(alike, log_shares, 0).sum(dim=-1)
    others = alike.sum(dim=-1).clamp_min(1)
    return -(total / others + others.log()).mean(dim=-1)


def similarity_matching_loss(embedding: Tensor, labels: Tensor, own: Tensor | None = None) -> Tensor:
    """The mean squared difference between the cosines of a batch's rows, each with each, and those of their one-hot labels,
    or if the rows were `mixed` by these shares of labels mixed alike. (…, B, e), (…, B), (B,) → (…)

    Nøkland and Eidnes' (2019) similarity matching loss; they take each row's mean away first, here rows are as they are.
    """
    rows = functional.normalize(exact(embedding), dim=-1)
    alike = (labels.unsqueeze(-1) == labels.unsqueeze(-2)).to(rows.dtype)  # the products of one-hot labels
    products = mixed(mixed(alike, own).mT, own)
    lengths = products.diagonal(dim1=-2, dim2=-1).sqrt()
    targets = products / (lengths.unsqueeze(-1) * lengths.unsqueeze(-2))
    return (torch.matmul(rows, rows.mT) - targets).square().mean(dim=(-2, -1))


def squared_distances(anchors: Tensor, references: Tensor) -> Tensor:
    """d(a, b) = ‖a − b‖² of every anchor to every reference, (…, B, e) and (…, R, e) → (…, B, R).

    Written as ‖a‖² + ‖b‖² − 2 a·b: one matrix product, and no (B, R, e) tensor in either direction.
    """
    anchors, references = exact(anchors), exact(references)
    products = torch.matmul(anchors, references.mT)
    return torch.sub(references.square().sum(dim=-1).unsqueeze(-2), products, alpha=2) + goodness(anchors).unsqueeze(-1)


def paired_squared_distances(anchors: Tensor, others: Tensor) -> Tensor:
    """d(a, b) = ‖a − b‖² of every anchor to its own N others, (…, B, e) and (…, B, N, e) → (…, B, N)."""
    return (exact(anchors).unsqueeze(-2) - exact(others)).square().sum(dim=-1)


def soft_minimum(distances: Tensor, scale: float) -> Tensor:
    """The distance to a class that has K references, (…, K) → (…): −log(mean(exp(−scale · d))) / scale.

    It lies between the smallest distance and the mean one, and for K = 1 it is the distance itself.
    """
    if distances.shape[-1] == 1:
        return distances.squeeze(-1)
    log_mean = torch.logsumexp(-scale * distances, dim=-1) - math.log(distances.shape[-1])
    return log_mean / -scale


def triplet_loss(to_positive: Tensor, to_negative: Tensor, margin: float, scale: float = 1.0) -> Tensor:
    """Eq. 3, the triplet margin loss, from the anchors' distances, (…, B) each → (…)."""
    return functional.relu(scale * (to_positive - to_negative) + margin).mean(dim=-1)


def tuplet_loss(distances: Tensor, positive: Tensor, scale: float = 1.0, label_smoothing: float = 0.0) -> Tensor:
    """Eq. 4, the (N+1)-tuplet loss. `distances` (…, B, N), one column of which, `positive` (…, B), is the positive's.

    log(1 + Σ exp(d⁺ − d⁻)) is the cross entropy of softmax(−d), which does not overflow however large d is.
    """
    logits, labels = (-scale * distances).flatten(0, -2), positive.flatten()
    losses = functional.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="none")
    return losses.view(positive.shape).mean(dim=-1)


def mixed(rows: Tensor, own: Tensor | None) -> Tensor:
    """Each row with the next one: own · row + (1 − own) · next, by its own share; the last row's next is the first. With no
    shares the rows as they are. (…, B, d), (B,) → (…, B, d)"""
    return rows if own is None else torch.lerp(rows.roll(-1, dims=-2), rows, own.to(rows.dtype).unsqueeze(-1))


def reference_tuplet_loss(
    embedding: Tensor,
    positive: Tensor,
    classes: int,
    scale: float | Tensor,
    label_smoothing: float = 0.0,
    own: Tensor | None = None,
) -> Tensor:
    """Eq. 4 where all anchors share their references: `tuplet_loss` of the `soft_minimum` of `squared_distances`.

    (…, B + C · K, e), anchors first, then the references class by class, and (…, B) → (…). If the anchors were `mixed` by
    these shares, so are their targets. The scale may be a tensor, (), which gets no gradient. The gradient is written out,
    because small operations are what a loss costs: this takes half as many, and on a GPU with a plain scale two.
    """
    return _ReferenceTuplet.apply(embedding, positive, classes, scale, label_smoothing, own)


class _ReferenceTuplet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding: Tensor, positive: Tensor, *settings: Any) -> Tensor:
        losses, by_embedding = _reference_tuplet(embedding, positive, *settings)
        ctx.save_for_backward(by_embedding)
        return losses.mean(dim=-1)

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        (by_embedding,) = ctx.saved_tensors
        return by_embedding * by_loss[..., None, None].to(by_embedding.dtype), None, None, None, None, None


def _reference_tuplet(
    embedding: Tensor,
    positive: Tensor,
    classes: int,
    scale: float | Tensor,
    label_smoothing: float,
    own: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Each anchor's loss, (…, B), and the gradient of their mean by the embeddings, (…, B + C · K, e).

    With z = −scale · d and p = softmax(z) over all C · K references, an anchor's loss is −Σ t_c log Σ_{k in c} p_ck for
    the target shares t, and its gradient by z is p − t · (p within its class). The anchor's own ‖a‖² is the same in all
    of its distances, so it cancels in p and is left out of z.
    """
    batch = positive.shape[-1]
    count = (embedding.shape[-2] - batch) // classes
    in_kernel = count == 1 and own is None and embedding.dtype != torch.float64 and has_triton(embedding.device)
    if in_kernel and not isinstance(scale, Tensor):
        from faustnet.nn.kernels import MOST_REFERENCES, reference_tuplet

        if classes <= MOST_REFERENCES:
            return reference_tuplet(embedding, positive, scale, label_smoothing)
    anchors, references = exact(embedding).split([batch, classes * count], dim=-2)
    products = torch.matmul(anchors, references.mT)
    log_p = functional.log_softmax((products - goodness(references).unsqueeze(-2) / 2) * (2 * scale), dim=-1)
    target = mixed((positive.unsqueeze(-1) == torch.arange(classes, device=log_p.device)).to(log_p.dtype), own)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    by_class, shares = log_p, target
    if count > 1:
        each = log_p.unflatten(-1, (classes, count))
        by_class = each.logsumexp(dim=-1)
        shares = (target.unsqueeze(-1) * (each - by_class.unsqueeze(-1)).exp()).flatten(-2)
    by_products = log_p.exp().sub_(shares).mul_(2 * scale / batch)
    by_references = by_products.mT @ anchors
    by_references.addcmul_(by_products.sum(dim=-2).unsqueeze(-1), references, value=-1)
    by_embedding = torch.cat([by_products @ references, by_references], dim=-2)
    return -(by_class * target).sum(dim=-1), by_embedding.to(embedding.dtype)


def exact(embedding: Tensor) -> Tensor:
    """In float32 at least: layers may have been multiplied in less, but distances are differences of large numbers."""
    return embedding.to(torch.promote_types(embedding.dtype, torch.float32))
