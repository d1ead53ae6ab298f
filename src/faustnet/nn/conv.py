"""Convolutional layers: a block of convolutions, and a head of its own that makes an embedding of what comes out.

Rows are flat here as everywhere. Between blocks all channels of a pixel lie together, pixel after pixel, as convolutions
on a GPU like them, so that nothing is moved on the way; the first block takes images as they come, channel after channel.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.nn.layers import EmbeddingLayer, Layer
from faustnet.nn.modules import BatchNorm, CastModule, Linear

Shape = tuple[int, int, int]  # (channels, height, width)
HEAD_SIDE = 8  # pixels at most along a side of what a head works on


def shape_after(shape: Shape, channels: int, pool: bool) -> Shape:
    """Of what a convolutional layer passes on."""
    _, height, width = shape
    return (channels, height // 2, width // 2) if pool else (channels, height, width)


class Convolution(CastModule, nn.Conv2d):
    """3×3, from and to pictures of the same size, without a bias. The channels may be in `groups`, of which each is made of
    the one in its place alone."""

    def __init__(self, inputs: int, outputs: int, groups: int = 1):
        super().__init__(inputs, outputs, kernel_size=3, padding=1, bias=False, groups=groups)

    def forward(self, pictures: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, outputs, h, w)"""
        weight = self.cast(self.weight)
        return functional.conv2d(pictures.to(weight.dtype), weight, padding=1, groups=self.groups)


class ConvNorm(nn.Module):
    """A convolution, its pictures halved by max-pooling if `pool`, and batch norm."""

    def __init__(self, inputs: int, outputs: int, *, pool: bool = False):
        super().__init__()
        self.convolution, self.norm, self.pool = Convolution(inputs, outputs), BatchNorm(outputs), pool

    def forward(self, pictures: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, outputs, h, w), or half of h and w"""
        pictures = self.convolution(pictures)
        return self.norm(functional.max_pool2d(pictures, 2) if self.pool else pictures)


class Head(nn.Module):
    """From a block's pictures to a row: shrunk to a few pixels, two convolutions, and the mean over what is left. Without
    `width` the mean alone."""

    def __init__(self, channels: int, side: tuple[int, int], width: int):
        super().__init__()
        self.side = (min(side[0], HEAD_SIDE), min(side[1], HEAD_SIDE))
        self.first = ConvNorm(channels, width) if width else None
        self.second = ConvNorm(width, width) if width else None
        self.values = width or channels

    def forward(self, pictures: Tensor) -> Tensor:
        """(R, channels, h, w) → (R, values)"""
        if self.first is not None and self.second is not None:
            pictures = functional.relu(self.first(shrunk(pictures, self.side)), inplace=True)
            pictures = functional.relu(self.second(pictures), inplace=True)
        return pictures.permute(0, 2, 3, 1).mean(dim=(1, 2))  # in the order of memory


class ConvLayer(EmbeddingLayer):
    """Convolution, max-pooling if `pool`, batch norm, ReLU → activation. If `residual`, two more convolutions with batch
    norm are added to that before a second ReLU. A `head` and a linear projection make the embedding.

    Without a projection (`embedding` 0) what the head makes serves as the embedding, and without a head the activation.
    """

    def __init__(
        self,
        shape: Shape,
        channels: int,
        embedding: int,
        *,
        pool: bool,
        residual: bool,
        head: int | None,
        first: bool,
        dropout: float,
        length: str,
    ):
        after = shape_after(shape, channels, pool)
        outputs = math.prod(after)
        made = None if head is None else Head(channels, after[1:], head)
        size = embedding or (outputs if made is None else made.values)
        super().__init__(math.prod(shape), outputs, size, dropout=dropout, length=length)
        self.shape, self.first, self.residual = shape, first, residual
        self.output_shape = after
        self.entrance = ConvNorm(shape[0], channels, pool=pool)
        self.inner = ConvNorm(channels, channels) if residual else None
        self.outer = ConvNorm(channels, channels) if residual else None
        self.head = made
        self.projection = Linear(made.values if made else outputs, embedding, bias=False) if embedding else None

    @property
    def peak_values(self) -> int:
        return self.output_shape[0] * self.shape[1] * self.shape[2]

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        pictures = functional.relu(self.entrance(as_pictures(rows, self.shape, self.first)), inplace=True)
        if self.inner is not None and self.outer is not None:
            change = self.outer(functional.relu(self.inner(pictures), inplace=True))
            pictures = functional.relu(change + pictures, inplace=True)
        activation = as_rows(pictures)
        embedding = activation if self.head is None else self.head(pictures)
        if self.projection is not None:
            embedding = self.projection(embedding)
        return activation, self.append_prototypes(self.scale_length(embedding))


class GoodnessConvLayer(Layer):
    """Convolution, max-pooling if `pool`, ReLU, with batch norm before all that if `norm_first`, and after it if not. What
    comes out is both the activation and the embedding, for losses that look at how active a layer is."""

    def __init__(
        self, shape: Shape, channels: int, *, pool: bool, groups: int, norm_first: bool, first: bool, dropout: float
    ):
        after = shape_after(shape, channels, pool)
        super().__init__(math.prod(shape), math.prod(after), math.prod(after), dropout)
        self.shape, self.first, self.pool, self.norm_first = shape, first, pool, norm_first
        self.output_shape = after
        self.convolution = Convolution(shape[0], channels, groups)
        self.norm = BatchNorm(shape[0] if norm_first else channels)

    @property
    def peak_values(self) -> int:
        return self.output_shape[0] * self.shape[1] * self.shape[2]

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        pictures = as_pictures(rows, self.shape, self.first)
        pictures = self.convolution(self.norm(pictures) if self.norm_first else pictures)
        pictures = functional.relu(functional.max_pool2d(pictures, 2) if self.pool else pictures, inplace=True)
        activity = as_rows(pictures if self.norm_first else self.norm(pictures))
        return activity, activity


def as_pictures(rows: Tensor, shape: Shape, first: bool) -> Tensor:
    """(R, inputs) → (R, channels, h, w), the channels of a pixel side by side in memory, as only the first layer does not
    receive them."""
    channels, height, width = shape
    if first:
        return rows.view(-1, channels, height, width).contiguous(memory_format=torch.channels_last)
    return rows.view(-1, height, width, channels).permute(0, 3, 1, 2)


def as_rows(pictures: Tensor) -> Tensor:
    """(R, channels, h, w) → (R, h · w · channels), pixel after pixel"""
    return pictures.permute(0, 2, 3, 1).flatten(1)


def shrunk(pictures: Tensor, side: tuple[int, int]) -> Tensor:
    """Means over squares, which overlap where they cannot be equal. (R, channels, h, w) → (R, channels, *side)"""
    height, width = pictures.shape[2:]
    if (height, width) == side:
        return pictures
    equal = not (height % side[0] or width % side[1])
    return means_of_squares(pictures, side) if equal and pictures.is_cuda else functional.adaptive_avg_pool2d(pictures, side)


def means_of_squares(pictures: Tensor, side: tuple[int, int]) -> Tensor:
    """Over equal ones: on a GPU several times as fast as torch's pooling. All is done in the order of memory, so that
    gradients come to lie there as the pictures do. (R, channels, h, w) → (R, channels, *side)"""
    pixels = pictures.permute(0, 2, 3, 1)
    return pixels.unflatten(1, (side[0], -1)).unflatten(3, (side[1], -1)).mean(dim=(2, 4)).permute(0, 3, 1, 2)
