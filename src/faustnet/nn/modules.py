"""Modules that the package's own layers are made of."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.nn.row_shard import RowShard
from faustnet.system.customised import is_customised
from faustnet.system.devices import has_triton

EPSILON = 1e-5  # added to a variance


class CastModule:
    """Mixin for a module with a weight. While training, products are computed in `compute_dtype`, if it is set, and the
    output has that dtype."""

    compute_dtype: torch.dtype | None = None
    training: bool

    def cast(self, tensor: Tensor) -> Tensor:
        return tensor if self.compute_dtype is None or not self.training else tensor.to(self.compute_dtype)


class Linear(CastModule, nn.Linear):
    """`torch.nn.Linear` that can compute in a lower precision while training."""

    update_bias = None  # autograd computes the gradient by the bias

    def forward(self, rows: Tensor) -> Tensor:
        """(R, inputs) → (R, outputs)"""
        if self.bias is None:
            return self.product(rows)
        weight = self.cast(self.weight)
        return functional.linear(rows.to(weight.dtype), weight, self.cast(self.bias))

    def product(self, rows: Tensor) -> Tensor:
        """Multiply by the weight, without adding the bias. (R, inputs) → (R, outputs)"""
        weight = self.cast(self.weight)
        return functional.linear(rows.to(weight.dtype), weight)


class BatchNorm(nn.Module):
    """Batch normalisation whose statistics for prediction are set explicitly by `set_statistics`, not by a running mean.

    Training uses the statistics of the batch, or of all ranks' rows of it, and changes no buffer.

    Args:
        channels: Number of channels, each of which is normalised.
        relu: Apply ReLU, too.
    """

    mean: Tensor
    variance: Tensor
    shard: RowShard | None = None  # the rows of a batch that this rank has, if other ranks have the rest

    def __init__(self, channels: int, *, relu: bool = False):
        super().__init__()
        self.relu = relu
        self.gain, self.offset = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, rows: Tensor, added: Tensor | None = None) -> Tensor:
        """Normalise, and add other rows before ReLU. (R, channels, …), the same shape → the same shape"""
        if self._uses_kernel(rows):
            from faustnet.nn import kernels

            return kernels.batch_norm_relu(rows, self.gain, self.offset, EPSILON, added)
        rows = self._normalised(rows)
        rows = rows if added is None else rows + added
        return functional.relu(rows, inplace=True) if self.relu else rows

    def with_means(self, maps: Tensor, side: tuple[int, int], added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what a call returns, and its `average_pool`. (R, channels, h, w) → the same shape, (R, channels, *side)"""
        height, width = maps.shape[2:]
        in_blocks = (height, width) != side and height % side[0] == 0 and width % side[1] == 0
        if not in_blocks or not self._uses_kernel(maps):
            maps = self(maps, added)
            return maps, average_pool(maps, side)
        from faustnet.nn import kernels

        return kernels.batch_norm_relu_with_means(maps, self.gain, self.offset, EPSILON, side, added)

    def averaged(self, maps: Tensor) -> Tensor:
        """Return the `pixel_mean` of what a call returns. (R, channels, h, w) → (R, channels)"""
        if not self._uses_kernel(maps):
            return pixel_mean(self(maps))
        from faustnet.nn import kernels

        return kernels.batch_norm_relu_mean(maps, self.gain, self.offset, EPSILON)

    def _uses_kernel(self, rows: Tensor) -> bool:
        """Whether a kernel computes batch norm and ReLU of feature maps."""
        own = self.training and self.shard is None and self.relu
        return own and rows.dim() == 4 and rows.dtype != torch.float64 and has_triton(rows.device)

    def _normalised(self, rows: Tensor) -> Tensor:
        if not self.training:
            return functional.batch_norm(rows, self.mean, self.variance, self.gain, self.offset, eps=EPSILON)
        if self.shard is not None:
            return self.shard.batch_norm(rows, self.gain, self.offset, EPSILON)
        return functional.batch_norm(rows, None, None, self.gain, self.offset, training=True, eps=EPSILON)

    @torch.no_grad()
    def set_statistics(self, rows: Tensor) -> None:
        """Store the mean and variance of these inputs for prediction. (R, channels, …)"""
        variance, mean = torch.var_mean(rows, dim=[0, *range(2, rows.dim())], correction=0)
        self.variance.copy_(variance)
        self.mean.copy_(mean)


class Convolution(CastModule, nn.Conv2d):
    """3×3 convolution with padding 1 and without a bias."""

    def __init__(self, inputs: int, outputs: int, groups: int = 1):
        super().__init__(inputs, outputs, kernel_size=3, padding=1, bias=False, groups=groups)

    def order_like_maps(self) -> None:
        """Store the weight in the memory format of the feature maps, channels_last, which a GPU would copy it to in every
        step."""
        self.weight.data = self.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, maps: Tensor) -> Tensor:
        """(R, inputs, h, w) → (R, outputs, h, w)"""
        weight = self.cast(self.weight)
        return functional.conv2d(maps.to(weight.dtype), weight, padding=1, groups=self.groups)


class ConvNorm(nn.Module):
    """Convolution, 2×2 max-pooling if `pool`, batch norm, the addition of other feature maps if there are any, ReLU if
    `relu`."""

    def __init__(self, inputs: int, outputs: int, *, pool: bool = False, relu: bool = False):
        super().__init__()
        self.convolution, self.norm, self.pool = Convolution(inputs, outputs), BatchNorm(outputs, relu=relu), pool

    def forward(self, maps: Tensor, added: Tensor | None = None) -> Tensor:
        """(R, inputs, h, w), the shape of the result → (R, outputs, h, w), or half of h and w"""
        return self.norm(self._convolved(maps), added)

    def with_means(self, maps: Tensor, side: tuple[int, int], added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what a call returns, and its `average_pool`."""
        return self.norm.with_means(self._convolved(maps), side, added)

    def averaged(self, maps: Tensor) -> Tensor:
        """Return the `pixel_mean` of what a call returns. (R, inputs, h, w) → (R, outputs)"""
        return self.norm.averaged(self._convolved(maps))

    def _convolved(self, maps: Tensor) -> Tensor:
        maps = self.convolution(maps)
        return max_pool(maps) if self.pool else maps


def is_plain(part: nn.Module) -> bool:
    """Return whether this is a `ConvNorm` with a `BatchNorm`, no subclasses, without hooks: `with_means` and `averaged` then
    do what a call does."""
    if type(part) is not ConvNorm or type(part.norm) is not BatchNorm:
        return False
    return not is_customised(part) and not is_customised(part.norm)


def max_pool(maps: Tensor) -> Tensor:
    """Return the largest value of each 2×2 pixels. (R, channels, h, w) → (R, channels, h // 2, w // 2)"""
    height, width = maps.shape[2:]
    if height % 2 or width % 2 or maps.dtype == torch.float64 or not has_triton(maps.device):
        return functional.max_pool2d(maps, 2)
    from faustnet.nn import kernels

    return kernels.block_maxima(maps, (height // 2, width // 2))


def average_pool(maps: Tensor, side: tuple[int, int]) -> Tensor:
    """Average over blocks, which overlap if h or w is no multiple of `side`. (R, channels, h, w) → (R, channels, *side)"""
    height, width = maps.shape[2:]
    if (height, width) == side:
        return maps
    if height % side[0] or width % side[1]:
        return functional.adaptive_avg_pool2d(maps, side)
    if not maps.is_cuda:
        return functional.avg_pool2d(maps, (height // side[0], width // side[1]))
    if maps.dtype != torch.float64 and has_triton(maps.device):
        from faustnet.nn import kernels

        return kernels.block_means(maps, side)
    return block_means(maps, side)


def block_means(maps: Tensor, side: tuple[int, int]) -> Tensor:
    """Average over equal blocks: several times as fast as torch's pooling on a GPU. The gradient has the memory format of
    the feature maps. (R, channels, h, w) → (R, channels, *side)"""
    pixels = maps.permute(0, 2, 3, 1)
    return pixels.unflatten(1, (side[0], -1)).unflatten(3, (side[1], -1)).mean(dim=(2, 4)).permute(0, 3, 1, 2)


def pixel_mean(maps: Tensor) -> Tensor:
    """Average over all pixels, in the order of memory. (R, channels, h, w) → (R, channels)"""
    return maps.permute(0, 2, 3, 1).mean(dim=(1, 2))


class Affine(Protocol):
    """A linear map with a bias: `Linear`, or several of them batched."""

    bias: Any

    @property
    def update_bias(self) -> Callable[[Tensor], None] | None:
        """What the backward pass calls with the gradient by the output, in place of computing the gradient by the bias."""
        ...

    def product(self, rows: Any) -> Tensor: ...
    def __call__(self, rows: Any) -> Tensor: ...


def relu_norm(linear: Affine, rows: Any) -> Tensor:
    """Apply a linear map, ReLU, then layer norm without gain and offset. (…, R, inputs) → (…, R, width)"""
    usable = linear.bias.dtype != torch.float64 and has_triton(linear.bias.device)
    if usable and not (isinstance(linear, nn.Module) and is_customised(linear)):
        from faustnet.nn import kernels

        if linear.bias.shape[-1] <= kernels.WIDEST:
            return kernels.relu_norm(linear.product(rows), linear.bias, linear.update_bias)
    hidden = functional.relu(linear(rows), inplace=True)
    return functional.layer_norm(hidden, hidden.shape[-1:])


def unit_rows(rows: Tensor) -> Tensor:
    """Divide each row by its length; a row of zeros is unchanged. (…, d) → (…, d)"""
    device = rows.device
    if rows.requires_grad and rows.dtype != torch.float64 and has_triton(device):
        from faustnet.nn import kernels

        if rows.shape[-1] <= kernels.WIDEST and not torch.is_autocast_enabled(device.type):  # which chooses types itself
            return kernels.unit_rows(rows)
    return functional.normalize(rows, dim=-1)


def unit_rms(rows: Tensor) -> Tensor:
    """Divide each row by its root mean square; a row of zeros is unchanged. (…, d) → (…, d)"""
    return functional.rms_norm(rows, rows.shape[-1:], eps=torch.finfo(rows.dtype).tiny)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Return labels as one-hot rows, without waiting for the device as `torch.nn.functional.one_hot` does. Labels out of
    range raise an error. (…) → (…, C), float32"""
    zeros = torch.zeros(*labels.shape, classes, device=labels.device)
    return zeros.scatter_(-1, labels.long().unsqueeze(-1), 1)
