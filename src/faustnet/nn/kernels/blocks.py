"""Means and maxima of blocks of pixels."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

PLACES, CHANNELS = 8, 128  # blocks and channels per program


@triton.jit
def _places(height, width, down, across, count, PLACES: tl.constexpr):
    """Return the numbers of some blocks, whether they exist, and the first pixel of each, numbered through all images."""
    block = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    columns, rows = width // across, height // down
    image, row, column = block // (rows * columns), block // columns % rows, block % columns
    return block, block < count, (image * height + row * down) * width + column * across


@triton.jit
def _means(maps, means, count, channels, height, width, down, across, PLACES: tl.constexpr, CHANNELS: tl.constexpr):
    """Process some channels of some blocks: average their pixels."""
    block, real, first = _places(height, width, down, across, count, PLACES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = real[:, None] & (channel < channels)[None, :]
    total = tl.zeros((PLACES, CHANNELS), dtype=tl.float32)
    for number in range(0, down * across):
        pixel = first + number // across * width + number % across
        total += tl.load(maps + pixel[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(means + block[:, None] * channels + channel[None, :], total / (down * across), mask=inside)


@triton.jit
def _spread(by_means, by_maps, count, channels, height, width, down, across, PLACES: tl.constexpr, CHANNELS: tl.constexpr):
    """Process some channels of some blocks: divide the gradient of the mean among the pixels."""
    block, real, first = _places(height, width, down, across, count, PLACES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = real[:, None] & (channel < channels)[None, :]
    share = tl.load(by_means + block[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    share = share / (down * across)
    for number in range(0, down * across):
        pixel = first + number // across * width + number % across
        tl.store(by_maps + pixel[:, None] * channels + channel[None, :], share, mask=inside)


@triton.jit
def _larger(one, other):
    """Return whether the second is the maximum; a NaN is, as in torch."""
    return (other > one) | (other != other)


@triton.jit
def _maxima(maps, maxima, count, channels, height, width, down, across, PLACES: tl.constexpr, CHANNELS: tl.constexpr):
    """Process some channels of some blocks: the largest value of their pixels."""
    block, real, first = _places(height, width, down, across, count, PLACES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = real[:, None] & (channel < channels)[None, :]
    place = maps + first[:, None] * channels + channel[None, :]
    best = tl.load(place, mask=inside, other=0.0)
    for number in range(1, down * across):
        value = tl.load(place + (number // across * width + number % across) * channels, mask=inside, other=0.0)
        best = tl.where(_larger(best, value), value, best)
    tl.store(maxima + block[:, None] * channels + channel[None, :], best, mask=inside)


@triton.jit
def _to_maxima(
    maps, by_maxima, by_maps, count, channels, height, width, down, across, PLACES: tl.constexpr, CHANNELS: tl.constexpr
):
    """Process some channels of some blocks: the gradient of the maximum goes to the first pixel that has it."""
    block, real, first = _places(height, width, down, across, count, PLACES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = real[:, None] & (channel < channels)[None, :]
    place = first[:, None] * channels + channel[None, :]
    best = tl.load(maps + place, mask=inside, other=0.0)
    where = tl.zeros((PLACES, CHANNELS), dtype=tl.int32)
    for number in range(1, down * across):
        value = tl.load(maps + place + (number // across * width + number % across) * channels, mask=inside, other=0.0)
        larger = _larger(best, value)
        best, where = tl.where(larger, value, best), tl.where(larger, number, where)
    by = tl.load(by_maxima + block[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    for number in range(0, down * across):
        offset = (number // across * width + number % across) * channels
        tl.store(by_maps + place + offset, tl.where(where == number, by, 0.0), mask=inside)


class _BlockMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, side: tuple[int, int]) -> Tensor:
        maps = maps.contiguous(memory_format=torch.channels_last)
        ctx.shape = maps.shape
        means = _empty(maps, (*maps.shape[:2], *side))
        _launch(_means, (maps, means), maps.shape, side)
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_means: Tensor) -> tuple[Tensor, None]:
        return spread_means(by_means, tuple(ctx.shape[2:])), None


class _BlockMaxima(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, side: tuple[int, int]) -> Tensor:
        maps = maps.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(maps)
        maxima = _empty(maps, (*maps.shape[:2], *side))
        _launch(_maxima, (maps, maxima), maps.shape, side)
        return maxima

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_maxima: Tensor) -> tuple[Tensor, None]:
        (maps,) = ctx.saved_tensors
        by_maxima, by_maps = by_maxima.contiguous(memory_format=torch.channels_last), _empty(maps, maps.shape)
        _launch(_to_maxima, (maps, by_maxima, by_maps), maps.shape, tuple(by_maxima.shape[2:]))
        return by_maps, None


def _empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(*shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _launch(kernel: Any, tensors: tuple[Tensor, ...], shape: torch.Size, side: tuple[int, ...]) -> None:
    images, channels, height, width = shape
    count = images * side[0] * side[1]
    kernel[(triton.cdiv(count, PLACES), triton.cdiv(channels, CHANNELS))](
        *tensors, count, channels, height, width, height // side[0], width // side[1],
        PLACES=PLACES, CHANNELS=CHANNELS,
    )  # fmt: skip


def spread_means(by_means: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the gradient by feature maps of this height and width from that by their means over blocks.
    (R, channels, …) → (R, channels, *size)"""
    by_means = by_means.contiguous(memory_format=torch.channels_last)
    shape = torch.Size((*by_means.shape[:2], *size))
    by_maps = _empty(by_means, shape)
    _launch(_spread, (by_means, by_maps), shape, tuple(by_means.shape[2:]))
    return by_maps


def block_means(maps: Tensor, side: tuple[int, int]) -> Tensor:
    """Average over equal blocks of pixels: h and w are multiples of `side`. The result and the gradient have the memory
    format of channels last. The gradient cannot be differentiated again. (R, channels, h, w) → (R, channels, *side)"""
    return _BlockMeans.apply(maps, side)


def block_maxima(maps: Tensor, side: tuple[int, int]) -> Tensor:
    """Return the largest value of each of equal blocks of pixels, under the conditions of `block_means`.
    (R, channels, h, w) → (R, channels, *side)"""
    return _BlockMaxima.apply(maps, side)
