"""Batch norm and ReLU of feature maps in the memory format channels_last, while training. Other feature maps may be added
in between. Means of blocks of pixels may be computed, too: their gradient is read block by block, and never spread over the
pixels in memory."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from faustnet.nn.kernels.batch_norm_programs import (
    add_strips,
    combine,
    differentiate,
    means_of_images,
    moments,
    normalise,
    sum_gradients,
)
from faustnet.nn.kernels.blocks import block_means, spread_means

PIXELS, CHANNELS = 32, 128  # per tile
STRIPS = 256  # parts of the pixels that sums are computed of, at most
LEAST = 128  # pixels of a strip, at least
STAGES = 3  # tiles that a loop loads ahead
FEW = 8  # channels per program that adds up strips
MANY, NARROW = 64, 64  # pixels and channels per tile of a mean over an image


class _Saved(NamedTuple):
    """Tensors saved for the backward pass."""

    maps: Tensor  # (R, channels, h, w)
    added: Tensor  # the same shape; `maps` if nothing was added
    gain: Tensor  # (channels,), as all of the following
    offset: Tensor
    mean: Tensor
    scale: Tensor

    def gradients(self, by_output: Tensor, adds: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the gradients by the feature maps, the gain, the offset and what was added, from that by the output. If it
        is smaller than the output, it is the gradient by the means of equal blocks of pixels."""
        maps, added, gain, offset, mean, scale = self
        by_output = by_output.contiguous(memory_format=torch.channels_last)
        channels, *size = maps.shape[1:]
        block = [pixels // blocks for pixels, blocks in zip(size, by_output.shape[2:], strict=True)]
        of = (*size, *block) if block != [1, 1] else (1, 1, 1, 1)  # one kernel for all sizes
        count, across = maps.numel() // channels, triton.cdiv(channels, CHANNELS)
        strip, strips = _strips(count)
        parts = gain.new_empty(2, strips, channels, dtype=torch.float32)
        about = maps, added, by_output, mean, scale, gain, offset
        sum_gradients[(strips, across)](
            *about, parts[0], parts[1], count, channels, strip, adds, *of, PIXELS, CHANNELS, STAGES
        )
        by_gain, by_offset = sums = gain.new_empty(2, channels, dtype=torch.float32)
        add_strips[(triton.cdiv(channels, FEW), 2)](parts, sums, channels, strips, STRIPS, FEW)
        by_maps = torch.empty_like(maps)
        by_added = torch.empty_like(added) if adds else by_maps
        differentiate[(triton.cdiv(count, PIXELS), across)](
            *about, by_gain, by_offset, by_maps, by_added, count, channels, adds, *of, PIXELS, CHANNELS
        )
        return by_maps, by_gain.to(gain.dtype), by_offset.to(offset.dtype), by_added if adds else None


def _with_statistics(maps: Tensor, added: Tensor | None, gain: Tensor, offset: Tensor, epsilon: float) -> _Saved:
    """Compute the mean and 1 / standard deviation of each channel."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    added = maps if added is None else added.contiguous(memory_format=torch.channels_last)
    count, channels = maps.numel() // maps.shape[1], maps.shape[1]
    strip, strips = _strips(count)
    parts = gain.new_empty(2, strips, channels, dtype=torch.float32)
    mean, scale = gain.new_empty(2, channels, dtype=torch.float32)
    moments[(strips, triton.cdiv(channels, CHANNELS))](
        maps, parts[0], parts[1], count, channels, strip, PIXELS, CHANNELS, STAGES
    )
    combine[(triton.cdiv(channels, FEW),)](
        parts[0], parts[1], mean, scale, count, channels, strip, strips, epsilon, STRIPS, FEW
    )
    return _Saved(maps, added, gain, offset, mean, scale)


class _BatchNormRelu(torch.autograd.Function):
    """The feature maps, and their means over some blocks of pixels, if these are given."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        gain: Tensor,
        offset: Tensor,
        added: Tensor | None,
        epsilon: float,
        blocks: tuple[int, int] | None,
    ) -> tuple[Tensor, Tensor | None]:
        saved = _with_statistics(maps, added, gain, offset, epsilon)
        count, channels = saved.maps.numel() // maps.shape[1], maps.shape[1]
        output = torch.empty_like(saved.maps)
        normalise[(triton.cdiv(count, PIXELS), triton.cdiv(channels, CHANNELS))](
            saved.maps, saved.added, output, saved.mean, saved.scale, gain, offset, count, channels, added is not None,
            PIXELS, CHANNELS,
        )  # fmt: skip
        ctx.save_for_backward(*saved)
        ctx.adds = added is not None
        ctx.set_materialize_grads(False)
        return output, None if blocks is None else block_means(output, blocks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor | None, by_means: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = _Saved(*ctx.saved_tensors)
        if by_means is not None and by_output is not None:
            by_output = by_output + spread_means(by_means, tuple(saved.maps.shape[2:]))
        elif by_output is None:
            by_output = by_means
        if by_output is None:
            return None, None, None, None, None, None
        return *saved.gradients(by_output, ctx.adds), None, None


class _BatchNormReluMean(torch.autograd.Function):
    """Only the means of the feature maps over all pixels of an image."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, gain: Tensor, offset: Tensor, epsilon: float) -> Tensor:
        saved = _with_statistics(maps, None, gain, offset, epsilon)
        images, channels, height, width = maps.shape
        means = maps.new_empty(images, channels)
        means_of_images[(images, triton.cdiv(channels, NARROW))](
            saved.maps, means, saved.mean, saved.scale, gain, offset, height * width, channels, MANY, NARROW
        )
        ctx.save_for_backward(*saved)
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_means: Tensor) -> tuple[Tensor | None, ...]:
        saved = _Saved(*ctx.saved_tensors)
        by_maps, by_gain, by_offset, _ = saved.gradients(by_means[..., None, None], adds=False)
        return by_maps, by_gain, by_offset, None


def _strips(count: int) -> tuple[int, int]:
    """Return the number of pixels of a strip and the number of strips."""
    strip = triton.cdiv(max(LEAST, triton.cdiv(count, STRIPS)), PIXELS) * PIXELS
    return strip, triton.cdiv(count, strip)


def batch_norm_relu(maps: Tensor, gain: Tensor, offset: Tensor, epsilon: float, added: Tensor | None = None) -> Tensor:
    """Return ReLU of the batch norm of feature maps, by the statistics of the batch, plus `added` of the same shape. The
    gradient cannot be differentiated again. (R, channels, h, w) → the same shape"""
    return _BatchNormRelu.apply(maps, gain, offset, added, epsilon, None)[0]


def batch_norm_relu_with_means(
    maps: Tensor, gain: Tensor, offset: Tensor, epsilon: float, blocks: tuple[int, int], added: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return what `batch_norm_relu` does, and its means over equal blocks of pixels: h and w are multiples of `blocks`.
    (R, channels, h, w) → the same shape, (R, channels, *blocks)"""
    return _BatchNormRelu.apply(maps, gain, offset, added, epsilon, blocks)


def batch_norm_relu_mean(maps: Tensor, gain: Tensor, offset: Tensor, epsilon: float) -> Tensor:
    """Return the mean over the pixels of what `batch_norm_relu` returns. (R, channels, h, w) → (R, channels)"""
    return _BatchNormReluMean.apply(maps, gain, offset, epsilon)
