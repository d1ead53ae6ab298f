"""What a method knows of its training data."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from faustnet.nn.network import Network
from faustnet.nn.structure import Structure, map_tensors

IMAGES_AT_ONCE = 1024  # when all training images are processed, at most


class Source(Protocol):
    """Images on the device, indexed by their positions in the training set."""

    @property
    def labels(self) -> Tensor:
        """Classes of all images. (n,)"""
        ...

    @property
    def class_names(self) -> Sequence[str]: ...

    def plain(self, index: Tensor) -> Tensor:
        """Return scaled images. (b,) → (b, …)"""
        ...

    def augmented(self, index: Tensor) -> Tensor:
        """Return scaled images with random augmentation. (b,) → (b, …)"""
        ...


def over_all(train: Source, function: Callable[[Tensor], Tensor], network: Network) -> Tensor:
    """Apply a function that computes a network to all training images, some at a time. (b, …) → (b, d) gives (n, d)"""
    everything = torch.arange(len(train.labels), device=train.labels.device)
    return torch.cat([function(train.plain(chunk)) for chunk in in_parts(everything, network)])


def in_parts(positions: Tensor, network: Network) -> Sequence[Tensor]:
    """Return positions of training images in parts that a network computes at once. (n,)"""
    return positions.split(min(IMAGES_AT_ONCE, network.rows_at_once(positions.device)))


def some_positions(train: Source, most: int) -> Tensor:
    """Return equally spaced positions of at most this many training images. → (≤ most,)"""
    count = len(train.labels)
    return torch.arange(0, count, -(-count // most), device=train.labels.device)


def join_rows(*parts: Structure) -> Structure:
    """Concatenate the rows of images, or of what a layer passes on. (b_i, …) → (Σ b_i, …)"""
    return map_tensors(lambda *tensors: torch.cat(tensors), *parts)
