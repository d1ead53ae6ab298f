"""The paper's formulas, as pure functions on tensors.

Shapes: B anchors, C classes, K references of a class, e embedding values. Losses are means over the batch.
Distances are squared and Euclidean throughout, as Section IV.A defines d; a scale multiplies them wherever they enter
an exponential or a margin, because a squared distance over hundreds of dimensions is far too large for either as it stands.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def goodness(activity: Tensor) -> Tensor:
    """Eq. 1: the sum of squares of each row, (B, units) → (B,)."""
    return activity.square().sum(dim=1)


def goodness_loss(positive: Tensor, negative: Tensor, threshold: float) -> Tensor:
    """Eq. 2, Forward-Forward's loss, from the goodness of positive and of negative rows, (B,) each."""
    return 0.5 * (functional.softplus(threshold - positive) + functional.softplus(negative - threshold)).mean()


def squared_distances(anchors: Tensor, references: Tensor) -> Tensor:
    """d(a, b) = ‖a − b‖² of every anchor to every reference, (B, e) and (R, e) → (B, R).

    Written as ‖a‖² + ‖b‖² − 2 a·b: one matrix product, and no (B, R, e) tensor in either direction.
    """
    to_references = torch.addmm(references.square().sum(dim=1), anchors, references.T, alpha=-2)
    return to_references + anchors.square().sum(dim=1, keepdim=True)


def paired_squared_distances(anchors: Tensor, others: Tensor) -> Tensor:
    """d(a, b) = ‖a − b‖² of every anchor to its own N others, (B, e) and (B, N, e) → (B, N)."""
    return (anchors.unsqueeze(1) - others).square().sum(dim=2)


def soft_minimum(distances: Tensor, scale: float) -> Tensor:
    """The distance to a class that has K references, (…, K) → (…): −log(mean(exp(−scale · d))) / scale.

    It lies between the smallest distance and the mean one, and for K = 1 it is the distance itself.
    """
    if distances.shape[-1] == 1:
        return distances.squeeze(-1)
    log_mean = torch.logsumexp(-scale * distances, dim=-1) - math.log(distances.shape[-1])
    return log_mean / -scale


def triplet_loss(to_positive: Tensor, to_negative: Tensor, margin: float, scale: float = 1.0) -> Tensor:
    """Eq. 3, the triplet margin loss, from the anchors' distances, (B,) each."""
    return functional.relu(scale * (to_positive - to_negative) + margin).mean()


def tuplet_loss(distances: Tensor, positive: Tensor, scale: float = 1.0, label_smoothing: float = 0.0) -> Tensor:
    """Eq. 4, the (N+1)-tuplet loss. `distances` (B, N), one column of which, `positive` (B,), is the positive's.

    log(1 + Σ exp(d⁺ − d⁻)) is the cross entropy of softmax(−d), which does not overflow however large d is.
    """
    return functional.cross_entropy(-scale * distances, positive, label_smoothing=label_smoothing)
