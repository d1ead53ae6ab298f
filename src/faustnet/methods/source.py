"""What a method knows of its training data."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from faustnet.nn.structure import Structure, map_tensors

IMAGES_AT_ONCE = 1024  # when all training images are processed


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


def over_all(train: Source, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to all training images, some at a time. (b, …) → (b, d) gives (n, d)"""
    everything = torch.arange(len(train.labels), device=train.labels.device)
    return torch.cat([function(train.plain(chunk)) for chunk in everything.split(IMAGES_AT_ONCE)])


def some_positions(train: Source, most: int) -> Tensor:
    """Return equally spaced positions of at most this many training images. → (≤ most,)"""
    count = len(train.labels)
    return torch.arange(0, count, -(-count // most), device=train.labels.device)


def join_rows(*parts: Structure) -> Structure:
    """Concatenate the rows of images, or of what a layer passes on. (b_i, …) → (Σ b_i, …)"""
    return map_tensors(lambda *tensors: torch.cat(tensors), *parts)
