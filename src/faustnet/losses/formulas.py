"""Loss functions and distances of the methods, as pure functions on tensors.

Shapes: B anchors, C classes, K references per class, e embedding values. Leading dimensions (…) are layers that are
computed together and independently of each other. Every loss is a mean over the batch.

Distances are squared Euclidean distances, as in Section IV.A of the paper. `scale` multiplies them before an exponential
or a margin, because a squared distance over hundreds of dimensions is too large for either.

Arguments are checked by shape and type. The range of `labels` is checked on the CPU only, because reading values from a
GPU would wait for it: there, a label out of range gives NaN or a CUDA device-side assertion.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from faustnet.errors import FaustnetError, require
from faustnet.losses.checks import check_floating, check_labels, check_margin, check_pairs, check_tuplet_options
from faustnet.losses.gradients import scaled_by_layer
from faustnet.system.devices import has_triton

SMALLEST_LENGTH = 1e-12  # of a row that is divided by its length, as in torch
POLAR_EPSILON = 1e-6  # added to the goodness of each half, so that the odds of a row without activity are 1
NEVER_IGNORED = torch.iinfo(torch.int64).min  # PyTorch's default, -100, would give a loss of 0


def goodness(activity: Tensor) -> Tensor:
    """Eq. 1: return the sum of squares of each row. (…, B, units) → (…, B)"""
    return exact(activity, "activity").square().sum(dim=-1)


def goodness_loss(positive: Tensor, negative: Tensor, threshold: float) -> Tensor:
    """Eq. 2: Forward-Forward loss of the goodness of positive and negative rows. (…, B) each → (…)"""
    check_pairs(positive, negative)
    return 0.5 * (functional.softplus(threshold - positive) + functional.softplus(negative - threshold)).mean(dim=-1)


def symmetric_loss(positive: Tensor, negative: Tensor, sharpness: float) -> Tensor:
    """SymBa loss, log(1 + exp(−sharpness · (G⁺ − G⁻))), of the goodness of pairs of rows. (…, B) each → (…)"""
    check_pairs(positive, negative)
    return functional.softplus(-sharpness * (positive - negative)).mean(dim=-1)


def polar_log_odds(activity: Tensor) -> Tensor:
    """SFFA: return log(G⁺ / G⁻) of each row, where G⁺ is the mean square of the first half of the units and G⁻ that of the
    second half. Its sigmoid is the probability G⁺ / (G⁺ + G⁻) that the label is correct. (…, B, units) → (…, B)"""
    units = activity.shape[-1]
    require(units >= 2 and units % 2 == 0, f"activity must have an even number of units, at least 2, got {units}.")
    squares = exact(activity, "activity").square().unflatten(-1, (2, -1)).mean(dim=-1)
    positive, negative = (squares + POLAR_EPSILON).log().unbind(dim=-1)
    return positive - negative


def goodness_by_group(activity: Tensor, classes: int, channels: int) -> Tensor:
    """CwC goodness: for each class, return the mean square over all pixels of the channels that belong to the class.

    The channels of a pixel are adjacent in `activity` and divided evenly among the classes, in the order of the classes.
    (…, B, pixels · channels) → (…, B, C)
    """
    values = activity.shape[-1]
    if classes < 1 or channels < 1 or channels % classes:
        raise FaustnetError(f"channels must be a multiple of classes, got {channels} channels and {classes} classes.")
    if values % channels:
        raise FaustnetError(f"The last dimension of activity must be a multiple of channels ({channels}), got {values}.")
    return exact(activity, "activity").square().unflatten(-1, (-1, classes, channels // classes)).mean(dim=(-3, -1))


def competitive_loss(by_class: Tensor, labels: Tensor) -> Tensor:
    """CwC and Mono-Forward loss, −log(exp(G_y) / Σ exp(G_c)), of the goodness of each class. (…, B, C), (…, B) → (…)"""
    return tuplet_loss(-by_class, labels)


def marginal_contrastive_loss(embedding: Tensor, labels: Tensor, margin: float | Tensor, temperature: float) -> Tensor:
    """FFCM loss: the supervised contrastive loss, with a margin added to the cosines of pairs of the same class.

    Let c be the cosine of two rows, and s = min(c + margin, 1) if they have the same label, otherwise s = c. For two rows of
    the same class, the loss is −log(exp(s / temperature) / Σ exp(s / temperature)), where the sum is over all other rows.
    The loss of a row is the mean over the n other rows of its class, minus log(n), its smallest possible value. If n is 0,
    the loss is 0.

    `margin` is a number, or a tensor with one margin per layer. The gradient cannot be differentiated again.
    (…, B, e), (…, B), () or (…) → (…)
    """
    check_labels(labels, embedding.shape[:-1])
    require(temperature > 0, f"temperature must be above 0, got {temperature}.")
    check_margin(margin, embedding.shape[:-2])
    check_floating(embedding, "embedding")
    in_kernel = embedding.dtype != torch.float64 and has_triton(embedding.device)
    return _Contrastive.apply(embedding if in_kernel else exact(embedding), labels, margin, temperature, in_kernel)


class _Contrastive(torch.autograd.Function):
    """The loss and its gradient, computed together: by two kernels, or with a third of the operations that autograd would
    need."""

    @staticmethod
    def forward(
        ctx: Any, embedding: Tensor, labels: Tensor, margin: float | Tensor, temperature: float, in_kernel: bool
    ) -> Tensor:
        if in_kernel:
            from faustnet.nn.kernels import marginal_contrastive

            losses, by_embedding = marginal_contrastive(embedding, labels, margin, temperature)
        else:
            losses, by_embedding = _contrastive(embedding, labels, margin, temperature)
        ctx.save_for_backward(by_embedding)
        ctx.dtype = embedding.dtype
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        (by_embedding,) = ctx.saved_tensors
        return scaled_by_layer(by_embedding, by_loss, ctx.dtype), None, None, None, None


def _contrastive(embedding: Tensor, labels: Tensor, margin: float | Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the loss (…) and its gradient by the embedding (…, B, e).

    With p = softmax(s / temperature) over the other rows, and w = 1 / n for the n rows of the same class, otherwise 0, the
    loss of a row is −Σ w log p − log n, and its gradient by s is (p − w) / temperature.
    """
    batch = embedding.shape[-2]
    if isinstance(margin, Tensor):
        margin = margin[..., None, None]
    lengths = torch.linalg.vector_norm(embedding, dim=-1, keepdim=True).clamp_min_(SMALLEST_LENGTH)
    rows = embedding / lengths
    alike = (labels.unsqueeze(-1) == labels.unsqueeze(-2)).to(rows.dtype)
    alike.diagonal(dim1=-2, dim2=-1).zero_()
    count = alike.sum(dim=-1, keepdim=True)
    others = count.clamp_min(1)
    weights = alike / others
    cosines = torch.matmul(rows, rows.mT)
    similarity, follows = cosines, None
    if isinstance(margin, Tensor) or margin:
        closer = cosines + margin
        follows = (alike == 0) | (closer <= 1)  # elsewhere, a change of the cosine changes nothing
        similarity = torch.where(alike > 0, closer.clamp_max(1), cosines)
    logits = similarity / temperature
    logits.diagonal(dim1=-2, dim2=-1).fill_(torch.finfo(logits.dtype).min / 4)  # finite: its share is 0, and 0 times it is 0
    log_shares = logits.log_softmax(dim=-1)
    losses = -((log_shares * weights).sum(dim=-1) + others.squeeze(-1).log()).mean(dim=-1)
    by_cosines = (log_shares.exp_() * (count > 0) - weights).div_(batch * temperature)
    if follows is not None:
        by_cosines = by_cosines * follows
    by_rows = torch.matmul(by_cosines + by_cosines.mT, rows)
    along = (by_rows * rows).sum(dim=-1, keepdim=True)
    return losses, (by_rows - along * rows).div_(lengths)


def similarity_matching_loss(embedding: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
    """Mean squared difference between the cosines of all pairs of rows and the cosines of their one-hot labels.

    This is the `centred_similarity_loss` without subtracting means. If the rows were `mixed` with `shares`, the labels are
    mixed in the same way. (…, B, e), (…, B), (B,) → (…)
    """
    check_labels(labels, embedding.shape[:-1])
    rows = functional.normalize(exact(embedding), dim=-1)
    alike = (labels.unsqueeze(-1) == labels.unsqueeze(-2)).to(rows.dtype)  # the products of one-hot labels
    products = mixed(mixed(alike, shares).mT, shares)
    lengths = products.diagonal(dim1=-2, dim2=-1).sqrt()
    targets = products / (lengths.unsqueeze(-1) * lengths.unsqueeze(-2))
    return (torch.matmul(rows, rows.mT) - targets).square().mean(dim=(-2, -1))


def centred_similarity_loss(embedding: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Similarity matching loss of Nøkland and Eidnes (2019): the mean squared difference between the cosines of all pairs of
    rows and the cosines of their one-hot labels, where the mean of each row and of each one-hot label is subtracted first.

    The cosine of the labels is then 1 for rows of the same class, and −1 / (C − 1) otherwise. (…, B, e), (…, B) → (…)
    """
    check_labels(labels, embedding.shape[:-1], classes)
    values = exact(embedding)
    rows = functional.normalize(values - values.mean(dim=-1, keepdim=True), dim=-1)
    alike = (labels.unsqueeze(-1) == labels.unsqueeze(-2)).to(rows.dtype)
    of_others = -1 / max(classes - 1, 1)
    targets = alike * (1 - of_others) + of_others
    return (torch.matmul(rows, rows.mT) - targets).square().mean(dim=(-2, -1))


def squared_distances(anchors: Tensor, references: Tensor) -> Tensor:
    """Return d(a, b) = ‖a − b‖² for every anchor and every reference. (…, B, e), (…, R, e) → (…, B, R)

    Computed as ‖a‖² + ‖b‖² − 2 a·b: one matrix product, and no (B, R, e) tensor in the forward or backward pass. Rounding
    can make this negative for close pairs: the value is then set to 0, and the gradient stays 2 (a − b).
    """
    anchors, references = exact(anchors, "anchors"), exact(references, "references")
    products = torch.matmul(anchors, (-2 * references).mT)
    lengths, others = goodness(anchors).unsqueeze(-1), references.square().sum(dim=-1).unsqueeze(-2)
    if not products.requires_grad:  # in place, which is faster for many references
        return products.add_(others).add_(lengths).clamp_min_(0)
    distances = others + products + lengths
    distances.detach().clamp_min_(0)  # in place and outside the graph: the gradient does not see it
    return distances


def paired_squared_distances(anchors: Tensor, others: Tensor) -> Tensor:
    """Return d(a, b) = ‖a − b‖² for every anchor and each of its own N rows. (…, B, e), (…, B, N, e) → (…, B, N)"""
    return (exact(anchors, "anchors").unsqueeze(-2) - exact(others, "others")).square().sum(dim=-1)


def soft_minimum(distances: Tensor, scale: float) -> Tensor:
    """Combine the distances to the K references of a class: −log(mean(exp(−scale · d))) / scale. (…, K) → (…)

    The result lies between the smallest distance and the mean distance. For K = 1 it is the distance itself.
    """
    if distances.shape[-1] == 1:
        return distances.squeeze(-1)
    log_mean = torch.logsumexp(-scale * distances, dim=-1) - math.log(distances.shape[-1])
    return log_mean / -scale


def triplet_loss(to_positive: Tensor, to_negative: Tensor, margin: float, scale: float = 1.0) -> Tensor:
    """Eq. 3: triplet margin loss of the distances from each anchor to its positive and its negative. (…, B) each → (…)"""
    check_pairs(to_positive, to_negative)
    return functional.relu(scale * (to_positive - to_negative) + margin).mean(dim=-1)


def tuplet_loss(distances: Tensor, labels: Tensor, scale: float = 1.0, label_smoothing: float = 0.0) -> Tensor:
    """Eq. 4: (N+1)-tuplet loss. `labels` is the column of `distances` that contains the distance to the positive.

    It is computed as the cross entropy of softmax(−scale · d), which equals log(1 + Σ exp(scale · (d⁺ − d⁻))) and does not
    overflow. (…, B, N + 1), (…, B) → (…)
    """
    check_floating(distances, "distances")
    check_labels(labels, distances.shape[:-1], distances.shape[-1])
    check_tuplet_options(scale, label_smoothing)
    losses = functional.cross_entropy(
        (-scale * distances).flatten(0, -2),
        labels.flatten().long(),
        ignore_index=NEVER_IGNORED,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    return losses.view(labels.shape).mean(dim=-1)


def mixed(rows: Tensor, shares: Tensor | None) -> Tensor:
    """MixUp: mix each row with the next one, share · row + (1 − share) · next. The last row is mixed with the first.

    Without shares, return the rows unchanged. (…, B, d), (B,) → (…, B, d)
    """
    if shares is None:
        return rows
    if shares.shape != rows.shape[-2:-1]:
        raise FaustnetError(f"shares must have shape ({rows.shape[-2]},), one for each row, got {tuple(shares.shape)}.")
    return torch.lerp(rows.roll(-1, dims=-2), rows, shares.to(rows.dtype).unsqueeze(-1))


def exact(tensor: Tensor, name: str = "embedding") -> Tensor:
    """Return the tensor in float32 or float64: distances are differences of large numbers and need that precision."""
    check_floating(tensor, name)
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
