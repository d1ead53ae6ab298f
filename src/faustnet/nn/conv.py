"""Convolutional layers: a block of convolutions, and a head that maps its output to the embedding.

Rows are flat, as everywhere in the package. The first layer receives images channel by channel. Between layers, rows are
pixel by pixel with all channels of a pixel together (`torch.channels_last`), so no layer has to rearrange its input.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.nn.layers import EmbeddingLayer, Layer
from faustnet.nn.modules import BatchNorm, CastModule, Linear

Shape = tuple[int, int, int]  # (channels, height, width)
HEAD_SIDE = 8  # maximum height and width of the feature maps that a head convolves


def shape_after(shape: Shape, channels: int, pool: bool) -> Shape:
    """Return the shape of a convolutional layer's activation."""
    _, height, width = shape
    return (channels, height // 2, width // 2) if pool else (channels, height, width)


class Convolution(CastModule, nn.Conv2d):
    """3×3 convolution with padding 1 and without a bias."""

    def __init__(self, inputs: int, outputs: int, groups: int = 1):
        super().__init__(inputs, outputs, kernel_size=3, padding=1, bias=False, groups=groups)

    def forward(self, maps: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, outputs, h, w)"""
        weight = self.cast(self.weight)
        return functional.conv2d(maps.to(weight.dtype), weight, padding=1, groups=self.groups)


class ConvNorm(nn.Module):
    """Convolution, 2×2 max-pooling if `pool`, and batch norm."""

    def __init__(self, inputs: int, outputs: int, *, pool: bool = False):
        super().__init__()
        self.convolution, self.norm, self.pool = Convolution(inputs, outputs), BatchNorm(outputs), pool

    def forward(self, maps: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, outputs, h, w), or half of h and w"""
        maps = self.convolution(maps)
        return self.norm(functional.max_pool2d(maps, 2) if self.pool else maps)


class ConvHead(nn.Module):
    """Average-pool feature maps to at most 8×8, apply two convolutions, and average over the pixels. With `width` 0, only
    average over the pixels."""

    def __init__(self, channels: int, side: tuple[int, int], width: int):
        super().__init__()
        self.side = (min(side[0], HEAD_SIDE), min(side[1], HEAD_SIDE))
        self.first = ConvNorm(channels, width) if width else None
        self.second = ConvNorm(width, width) if width else None
        self.values = width or channels

    def forward(self, maps: Tensor) -> Tensor:
        """(R, channels, h, w) → (R, values)"""
        if self.first is not None and self.second is not None:
            maps = functional.relu(self.first(average_pool(maps, self.side)), inplace=True)
            maps = functional.relu(self.second(maps), inplace=True)
        return maps.permute(0, 2, 3, 1).mean(dim=(1, 2))  # in the order of memory


class ConvLayer(EmbeddingLayer):
    """Activation: convolution, max-pooling if `pool`, batch norm, ReLU; if `residual`, followed by a residual connection
    around two convolutions with batch norm, and ReLU. Embedding: a head and a linear projection of the activation.

    With `embedding` 0 the output of the head is the embedding; without a head, the activation is.
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
        made = None if head is None else ConvHead(channels, after[1:], head)
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
        maps = functional.relu(self.entrance(maps_from_rows(rows, self.shape, self.first)), inplace=True)
        if self.inner is not None and self.outer is not None:
            change = self.outer(functional.relu(self.inner(maps), inplace=True))
            maps = functional.relu(change + maps, inplace=True)
        activation = rows_from_maps(maps)
        embedding = activation if self.head is None else self.head(maps)
        if self.projection is not None:
            embedding = self.projection(embedding)
        return activation, self.append_prototypes(self.scale_length(embedding))


class GoodnessConvLayer(Layer):
    """Convolution, max-pooling if `pool`, ReLU, with batch norm before them if `norm_first` and after them otherwise. The
    output is both the activation and the embedding, for losses of the goodness."""

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
        maps = maps_from_rows(rows, self.shape, self.first)
        maps = self.convolution(self.norm(maps) if self.norm_first else maps)
        maps = functional.relu(functional.max_pool2d(maps, 2) if self.pool else maps, inplace=True)
        activity = rows_from_maps(maps if self.norm_first else self.norm(maps))
        return activity, activity


def maps_from_rows(rows: Tensor, shape: Shape, first: bool) -> Tensor:
    """Return rows as feature maps in `torch.channels_last` format, which only the `first` layer's input has to be copied
    for. (R, inputs) → (R, channels, h, w)"""
    channels, height, width = shape
    if first:
        return rows.view(-1, channels, height, width).contiguous(memory_format=torch.channels_last)
    return rows.view(-1, height, width, channels).permute(0, 3, 1, 2)


def rows_from_maps(maps: Tensor) -> Tensor:
    """Flatten feature maps, pixel by pixel. (R, channels, h, w) → (R, h · w · channels)"""
    return maps.permute(0, 2, 3, 1).flatten(1)


def average_pool(maps: Tensor, side: tuple[int, int]) -> Tensor:
    """Average over blocks, which overlap if h or w is no multiple of `side`. (R, channels, h, w) → (R, channels, *side)"""
    height, width = maps.shape[2:]
    if (height, width) == side:
        return maps
    equal = not (height % side[0] or width % side[1])
    return block_means(maps, side) if equal and maps.is_cuda else functional.adaptive_avg_pool2d(maps, side)


def block_means(maps: Tensor, side: tuple[int, int]) -> Tensor:
    """Average over equal blocks: several times as fast as torch's pooling on a GPU. The gradient has the memory format of
    the feature maps. (R, channels, h, w) → (R, channels, *side)"""
    pixels = maps.permute(0, 2, 3, 1)
    return pixels.unflatten(1, (side[0], -1)).unflatten(3, (side[1], -1)).mean(dim=(2, 4)).permute(0, 3, 1, 2)
