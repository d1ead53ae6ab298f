"""Checks of the arguments of loss functions. Nothing here waits for a GPU."""

from numbers import Real

import torch
from torch import Tensor

from faustnet.errors import FaustnetError


def check_floating(tensor: Tensor, name: str) -> None:
    if not tensor.is_floating_point():
        raise FaustnetError(f"{name} must be floating-point, got {tensor.dtype}.")


def check_labels(labels: Tensor, shape: torch.Size, classes: int | None = None) -> None:
    """Refuse labels of another shape or type, and those that are not a class number where there are `classes`."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise FaustnetError(f"labels must be integers, got {labels.dtype}.")
    if labels.shape != shape:
        raise FaustnetError(f"labels must have shape {tuple(shape)}, one for each anchor, got {tuple(labels.shape)}.")
    if not shape or not shape[-1]:
        raise FaustnetError(f"labels must contain at least one label, got shape {tuple(shape)}.")
    if classes is not None and labels.device.type not in ("cuda", "meta"):
        check_range(labels, classes)


def check_range(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no class number. Reads values, so it is not called on a GPU."""
    least, most = (int(bound) for bound in torch.aminmax(labels))
    if least < 0 or most >= classes:
        wrong = least if least < 0 else most
        raise FaustnetError(f"labels must be from 0 to {classes - 1} ({classes} classes), got {wrong}.")


def check_pairs(positive: Tensor, negative: Tensor) -> None:
    if positive.shape != negative.shape:
        shapes = f"{tuple(positive.shape)} and {tuple(negative.shape)}"
        raise FaustnetError(f"positive and negative must have the same shape, got {shapes}.")
    if not positive.shape or not positive.shape[-1]:
        raise FaustnetError(f"positive and negative must contain at least one value, got shape {tuple(positive.shape)}.")


def check_margin(margin: float | Tensor, layers: torch.Size) -> None:
    if isinstance(margin, Tensor) and margin.shape not in (torch.Size(()), layers):
        given = f"shape {tuple(margin.shape)}"
    elif not isinstance(margin, Tensor | Real):
        given = repr(margin)
    else:
        return
    raise FaustnetError(f"margin must be a number or a tensor of shape {tuple(layers)}, got {given}.")


def check_tuplet_options(scale: float | Tensor, label_smoothing: float) -> None:
    if not isinstance(scale, Tensor) and not scale > 0:
        raise FaustnetError(f"scale must be above 0, got {scale}.")
    if not 0 <= label_smoothing < 1:
        raise FaustnetError(f"label_smoothing must be at least 0 and below 1, got {label_smoothing}.")
