"""Bodies of dense and convolutional layers."""

from collections.abc import Hashable

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.nn.modules import BatchNorm, ConvNorm, Convolution, Linear, is_plain, max_pool, relu_norm, unit_rms
from faustnet.system.customised import is_customised


class DenseBody(nn.Module):
    """The paper's layer: linear, ReLU, layer norm, or with `batch_norm` linear, batch norm, ReLU. Rows of any shape are
    flattened.

    The layer norm has no gain and offset, because the linear maps after it can learn them.
    """

    batch_settings: Hashable = ()  # what bodies with equal parameters may differ in

    def __init__(self, inputs: int, width: int, *, batch_norm: bool = False):
        super().__init__()
        self.linear = Linear(inputs, width)
        self.norm = BatchNorm(width, relu=True) if batch_norm else None

    def forward(self, rows: Tensor) -> Tensor:
        """(R, …) → (R, width)"""
        if self.norm is None:
            return relu_norm(self.linear, rows.flatten(1))
        return self.norm(self.linear(rows.flatten(1)))


class ReluBody(nn.Module):
    """Linear and ReLU, without a norm. Rows of any shape are flattened."""

    batch_settings: Hashable = ()

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.linear = Linear(inputs, width)

    def forward(self, rows: Tensor) -> Tensor:
        """(R, …) → (R, width)"""
        return functional.relu(self.linear(rows.flatten(1)), inplace=True)


class RmsBody(nn.Module):
    """Forward-Forward's layer: divide each input row by its root mean square, then linear and ReLU. Rows of any shape are
    flattened.

    The division removes the length of the input, and with it the goodness of the previous layer. The length of the output
    is the goodness of this one.
    """

    batch_settings: Hashable = ()

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.linear = Linear(inputs, width)

    def forward(self, rows: Tensor) -> Tensor:
        """(R, …) → (R, width)"""
        return functional.relu(self.linear(unit_rms(rows.flatten(1))))


class ConvBody(nn.Module):
    """Convolution, max-pooling if `pool`, batch norm, ReLU; if `residual`, followed by a residual connection around two
    convolutions with batch norm, and ReLU.

    Feature maps are in `torch.channels_last` format, which only images have to be copied for.
    """

    def __init__(self, inputs: int, channels: int, *, pool: bool, residual: bool):
        super().__init__()
        self.entrance = ConvNorm(inputs, channels, pool=pool, relu=True)
        self.inner = ConvNorm(channels, channels, relu=True) if residual else None
        self.outer = ConvNorm(channels, channels, relu=True) if residual else None

    def forward(self, maps: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, channels, h, w), or half of h and w"""
        maps = self.entrance(maps.contiguous(memory_format=torch.channels_last))
        if self.inner is not None and self.outer is not None:
            maps = self.outer(self.inner(maps), maps)
        return maps

    @property
    def is_plain(self) -> bool:
        """Whether `with_means` does what a call does: all parts are this package's, without hooks."""
        parts = [part for part in (self.entrance, self.inner, self.outer) if part is not None]
        return not is_customised(self) and all(map(is_plain, parts))

    def with_means(self, maps: Tensor, side: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return what a call returns, and its `average_pool`, whose gradient a GPU then need not spread over the pixels."""
        maps = maps.contiguous(memory_format=torch.channels_last)
        if self.inner is None or self.outer is None:
            return self.entrance.with_means(maps, side)
        maps = self.entrance(maps)
        return self.outer.with_means(self.inner(maps), side, maps)


class GoodnessConvBody(nn.Module):
    """Convolution, max-pooling if `pool`, ReLU, with batch norm before them if `norm_first` and after them otherwise."""

    def __init__(self, inputs: int, channels: int, *, pool: bool, groups: int, norm_first: bool):
        super().__init__()
        self.pool, self.norm_first, self.channels = pool, norm_first, channels
        self.convolution = Convolution(inputs, channels, groups)
        self.norm = BatchNorm(inputs if norm_first else channels)

    def forward(self, maps: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, channels, h, w), or half of h and w"""
        maps = maps.contiguous(memory_format=torch.channels_last)
        maps = self.convolution(self.norm(maps) if self.norm_first else maps)
        maps = functional.relu(max_pool(maps) if self.pool else maps, inplace=True)
        return maps if self.norm_first else self.norm(maps)
