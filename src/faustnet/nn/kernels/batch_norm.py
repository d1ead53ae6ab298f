"""Batch norm and ReLU of feature maps in the memory format channels_last, while training. Other feature maps may be added
in between. Means of blocks of pixels may be computed, too: their gradient is read block by block, and never spread over the
pixels in memory."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from faustnet.nn.kernels.blocks import block_means, spread_means

PIXELS, CHANNELS = 32, 128  # per tile
STRIPS = 256  # parts of the pixels that sums are computed of, at most
LEAST = 128  # pixels of a strip, at least
STAGES = 3  # tiles that a loop loads ahead
FEW = 8  # channels per program that adds up strips
MANY, NARROW = 64, 64  # pixels and channels per tile of a mean over an image


@triton.jit
def _tile(matrix, pixel, channel, inside, channels):
    return tl.load(matrix + pixel[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _moments(
    maps, means, squares, count, channels, strip, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr
):
    """Process some channels of one strip: their mean, and the sum of squared differences from it. The first pixel of the
    strip is subtracted from all of them before, so that no large numbers cancel."""
    first = tl.program_id(0).to(tl.int64) * strip
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    exists, last = channel < channels, tl.minimum(first + strip, count)
    pivot = tl.load(maps + first * channels + channel, mask=exists, other=0.0).to(tl.float32)
    total, square = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32), tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for start in tl.range(0, strip, PIXELS, num_stages=STAGES):
        pixel = first + start + tl.arange(0, PIXELS)
        inside = (pixel < last)[:, None] & exists[None, :]
        x = tl.where(inside, _tile(maps, pixel, channel, inside, channels) - pivot[None, :], 0.0)
        total += x
        square += x * x
    n = (last - first).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    place = tl.program_id(0) * channels + channel
    tl.store(means + place, pivot + mean, mask=exists)
    tl.store(squares + place, tl.sum(square, axis=0) - mean * mean * n, mask=exists)


@triton.jit
def _combine(
    means, squares, mean, scale, count, channels, strip, strips, epsilon, STRIPS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Process some channels: the mean and 1 / standard deviation of all pixels from those of the strips."""
    channel, part = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STRIPS)
    inside = (part < strips)[:, None] & (channel < channels)[None, :]
    place = part[:, None] * channels + channel[None, :]
    sizes = tl.minimum(count - part * strip, strip).to(tl.float32)[:, None]
    own = tl.load(means + place, mask=inside, other=0.0)
    whole = tl.sum(tl.where(inside, own * sizes, 0.0), axis=0) / count
    apart = tl.where(inside, own - whole[None, :], 0.0)
    sums = tl.load(squares + place, mask=inside, other=0.0) + apart * apart * tl.where(inside, sizes, 0.0)
    tl.store(mean + channel, whole, mask=channel < channels)
    tl.store(scale + channel, 1 / tl.sqrt(tl.sum(sums, axis=0) / count + epsilon), mask=channel < channels)


@triton.jit
def _normalise(
    maps, added, output, mean, scale, gain, offset, count, channels,
    ADDED: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Process one tile: normalise, multiply by the gain, add the offset, add other maps if ADDED, ReLU."""
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    inside = (pixel < count)[:, None] & exists[None, :]
    factor = tl.load(scale + channel, mask=exists, other=0.0) * tl.load(gain + channel, mask=exists, other=0.0)
    shift = tl.load(offset + channel, mask=exists, other=0.0) - tl.load(mean + channel, mask=exists, other=0.0) * factor
    y = _tile(maps, pixel, channel, inside, channels) * factor[None, :] + shift[None, :]
    if ADDED:
        y += _tile(added, pixel, channel, inside, channels)
    y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(output + pixel[:, None] * channels + channel[None, :], y, mask=inside)


@triton.jit
def _means_of_images(maps, means, mean, scale, gain, offset, area, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Process some channels of one image: normalise, multiply by the gain, add the offset, ReLU, average over the pixels."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    factor = tl.load(scale + channel, mask=exists, other=0.0) * tl.load(gain + channel, mask=exists, other=0.0)
    shift = tl.load(offset + channel, mask=exists, other=0.0) - tl.load(mean + channel, mask=exists, other=0.0) * factor
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    for start in range(0, area, PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        inside = (pixel < area)[:, None] & exists[None, :]
        y = _tile(maps, image * area + pixel, channel, inside, channels) * factor[None, :] + shift[None, :]
        total += tl.sum(tl.where(inside, tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0), axis=0)
    tl.store(means + image * channels + channel, total / area, mask=exists)


@triton.jit
def _active(
    maps, added, by_output, pixel, channel, inside, channels, m, s, g, o,
    ADDED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """Return the normalised values of a tile, and the gradient by what ReLU was applied to. `by_output` is the gradient by
    the mean of each block of DOWN × ACROSS pixels."""
    normal = (_tile(maps, pixel, channel, inside, channels) - m[None, :]) * s[None, :]
    y = normal * g[None, :] + o[None, :]
    if ADDED:
        y += _tile(added, pixel, channel, inside, channels)
    if DOWN * ACROSS == 1:
        by = _tile(by_output, pixel, channel, inside, channels)
    else:
        number = pixel.to(tl.int32)  # dividing 64 bits would take longer than all the rest
        image, row, column = number // (HEIGHT * WIDTH), number // WIDTH % HEIGHT, number % WIDTH
        block = (image * (HEIGHT // DOWN) + row // DOWN) * (WIDTH // ACROSS) + column // ACROSS
        by = _tile(by_output, block.to(tl.int64), channel, inside, channels) / (DOWN * ACROSS)
    return normal, tl.where(inside & (y > 0), by, 0.0)


@triton.jit
def _sum_gradients(
    maps, added, by_output, mean, scale, gain, offset, by_gain, by_offset, count, channels, strip,
    ADDED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Process some channels of one strip: the sums for the gradients by gain and offset."""
    first = tl.program_id(0).to(tl.int64) * strip
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    exists, last = channel < channels, tl.minimum(first + strip, count)
    m, s = tl.load(mean + channel, mask=exists, other=0.0), tl.load(scale + channel, mask=exists, other=0.0)
    g, o = tl.load(gain + channel, mask=exists, other=0.0), tl.load(offset + channel, mask=exists, other=0.0)
    of_gain, of_offset = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32), tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for start in tl.range(0, strip, PIXELS, num_stages=STAGES):
        pixel = first + start + tl.arange(0, PIXELS)
        inside = (pixel < last)[:, None] & exists[None, :]
        normal, by = _active(
            maps, added, by_output, pixel, channel, inside, channels, m, s, g, o, ADDED, HEIGHT, WIDTH, DOWN, ACROSS
        )
        of_gain += normal * by
        of_offset += by
    place = tl.program_id(0) * channels + channel
    tl.store(by_gain + place, tl.sum(of_gain, axis=0), mask=exists)
    tl.store(by_offset + place, tl.sum(of_offset, axis=0), mask=exists)


@triton.jit
def _add_strips(parts, sums, channels, strips, STRIPS: tl.constexpr, CHANNELS: tl.constexpr):
    """Process some channels of one of several tables: add up the rows of the strips."""
    table, channel = tl.program_id(1), tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.arange(0, STRIPS)
    inside = (part < strips)[:, None] & (channel < channels)[None, :]
    values = tl.load(parts + (table * strips + part)[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    tl.store(sums + table * channels + channel, tl.sum(values, axis=0), mask=channel < channels)


@triton.jit
def _by_maps(
    maps, added, by_output, mean, scale, gain, offset, by_gain, by_offset, by_maps, by_added, count, channels,
    ADDED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Process one tile: the gradients by the feature maps, and by the added ones."""
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    inside = (pixel < count)[:, None] & exists[None, :]
    m, s = tl.load(mean + channel, mask=exists, other=0.0), tl.load(scale + channel, mask=exists, other=0.0)
    g, o = tl.load(gain + channel, mask=exists, other=0.0), tl.load(offset + channel, mask=exists, other=0.0)
    of_gain = tl.load(by_gain + channel, mask=exists, other=0.0) / count
    of_offset = tl.load(by_offset + channel, mask=exists, other=0.0) / count
    normal, by = _active(
        maps, added, by_output, pixel, channel, inside, channels, m, s, g, o, ADDED, HEIGHT, WIDTH, DOWN, ACROSS
    )
    place = pixel[:, None] * channels + channel[None, :]
    if ADDED:
        tl.store(by_added + place, by, mask=inside)
    by = (by - of_offset[None, :] - normal * of_gain[None, :]) * (g * s)[None, :]
    tl.store(by_maps + place, by, mask=inside)


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
        _sum_gradients[(strips, across)](
            *about, parts[0], parts[1], count, channels, strip, adds, *of, PIXELS, CHANNELS, STAGES
        )
        by_gain, by_offset = sums = gain.new_empty(2, channels, dtype=torch.float32)
        _add_strips[(triton.cdiv(channels, FEW), 2)](parts, sums, channels, strips, STRIPS, FEW)
        by_maps = torch.empty_like(maps)
        by_added = torch.empty_like(added) if adds else by_maps
        _by_maps[(triton.cdiv(count, PIXELS), across)](
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
    _moments[(strips, triton.cdiv(channels, CHANNELS))](
        maps, parts[0], parts[1], count, channels, strip, PIXELS, CHANNELS, STAGES
    )
    _combine[(triton.cdiv(channels, FEW),)](
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
        _normalise[(triton.cdiv(count, PIXELS), triton.cdiv(channels, CHANNELS))](
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
        _means_of_images[(images, triton.cdiv(channels, NARROW))](
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
