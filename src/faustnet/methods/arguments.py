"""Checks of what users give to a method."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from faustnet.data.sources import as_tensor, converted
from faustnet.errors import FaustnetError, require
from faustnet.nn.network import Network


def check_network(network: Network, classes: int) -> None:
    """Refuse other things than a network and a number of classes."""
    require(
        isinstance(network, Network),
        f"network must be a faustnet.Network, got {type(network).__name__}: make one with Network(blocks, example=…).",
    )
    require(isinstance(classes, int) and classes >= 1, f"classes must be a whole number of at least 1, got {classes!r}.")


def all_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinite. One sum tells it, unless the sum itself overflows."""
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def checked_batch(x: Any, shape: torch.Size, example: Tensor, *, wait: bool = True) -> Tensor:
    """Return samples of this shape, such as an array, with the type and the device of an example. (B, …)

    Without `wait`, values on a GPU are not checked, because that would wait for the GPU.
    """
    x = as_tensor(x)
    require(
        x.dim() == len(shape) + 1 and x.shape[1:] == shape,
        f"x must be a batch of inputs like the network's example, (B, {', '.join(map(str, shape))}), got {tuple(x.shape)}.",
    )
    require(
        not x.is_floating_point() or (x.is_cuda and not wait) or all_finite(x),
        "x must contain finite values only, got NaN or infinity: replace them.",
    )
    if x.is_cuda and not wait:
        return x.to(example)
    return converted(x, example.dtype, "x").to(example.device)


def layer_numbers(layers: Sequence[int] | None, count: int, method: str) -> Sequence[int]:
    """Return the numbers of layers, from 1 to `count`, that are asked for: all of them for None."""
    if layers is None:
        return range(1, count + 1)
    numbers = list(layers) if isinstance(layers, Sequence) else []
    if not numbers or not set(numbers) <= set(range(1, count + 1)) or len(set(numbers)) < len(numbers):
        raise FaustnetError(f"layers must be one or more different numbers from 1 to {count} for {method}, got {layers!r}.")
    return layers
