"""What tuplet losses with references that all anchors share have in common: targets of the classes, and the loss as a
function of the products of anchors and references."""

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.losses.formulas import mixed

NEVER = -1e30  # exponent of a reference that is not compared; infinity times a target of 0 would be NaN


def class_targets(
    labels: Tensor, classes: int | None, shares: Tensor | None, label_smoothing: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return the target of every class for each anchor, and which classes are compared; None: all. If `classes` is None,
    there is one column for each anchor, and of the columns of one class, the first is compared.
    (…, B) → (…, B, C), (…, C)"""
    if classes is not None:
        own = labels.new_zeros(*labels.shape, classes, dtype=dtype).scatter_(-1, labels.long().unsqueeze(-1), 1)
        target = mixed(own, shares)
        return target * (1 - label_smoothing) + label_smoothing / classes if label_smoothing else target, None
    same = labels.unsqueeze(-1) == labels.unsqueeze(-2)
    compared = ~same.tril(-1).any(dim=-1)
    target = mixed((same & compared.unsqueeze(-2)).to(dtype), shares)
    if label_smoothing:
        even = (compared / compared.sum(dim=-1, keepdim=True)).to(dtype)
        target = target * (1 - label_smoothing) + label_smoothing * even.unsqueeze(-2)
    return target, compared


def loss_of_products(
    products: Tensor, lengths: Tensor, target: Tensor, compared: Tensor | None, scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of the anchors, (…), and its gradient by their products with the references, (…, B, C · K).

    With z = −scale · d and p = softmax(z) over all C · K references, the loss of an anchor is −Σ t_c log Σ_{k in c} p_ck
    for the targets t, and its gradient by z is (p_c − t_c) times the share of the reference in p_c = Σ_{k in c} p_ck. ‖a‖²
    of the anchor is the same in all of its distances, so it cancels in p and is left out of z.

    Args:
        products: Of the anchors and the references. (…, B, C · K)
        lengths: Squared lengths of the references. (…, C · K)
        target: Target of each class. (…, B, C)
        compared: Which classes are compared; None: all. (…, C)
        scale: Factor of the squared distances.
    """
    batch, columns = target.shape[-2:]
    count = products.shape[-1] // columns
    z = (products - lengths.unsqueeze(-2) / 2).mul_(2 * scale)
    if compared is not None:
        z = z.masked_fill(~compared.repeat_interleave(count, dim=-1).unsqueeze(-2), NEVER)
    if count == 1:
        log_p = functional.log_softmax(z, dim=-1)
        by_z = log_p.exp().sub_(target)
    else:
        each = z.unflatten(-1, (columns, count))
        sums = each.logsumexp(dim=-1)
        log_p = functional.log_softmax(sums, dim=-1)
        by_z = (each - sums.unsqueeze(-1)).exp_().mul_(log_p.exp().sub_(target).unsqueeze(-1)).flatten(-2)
    return (log_p * target).sum(dim=(-2, -1)) / -batch, by_z.mul_(2 * scale / batch)
