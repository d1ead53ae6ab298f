"""Triton programs of batch norm, ReLU and means of feature maps, which `batch_norm` starts. A tile is some pixels times some
channels."""

import triton
import triton.language as tl


@triton.jit
def _tile(matrix, pixel, channel, inside, channels):
    return tl.load(matrix + pixel[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def moments(
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
def combine(
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
def normalise(
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
def means_of_images(maps, means, mean, scale, gain, offset, area, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
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
def sum_gradients(
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
def add_strips(parts, sums, channels, strips, STRIPS: tl.constexpr, CHANNELS: tl.constexpr):
    """Process some channels of one of several tables: add up the rows of the strips."""
    table, channel = tl.program_id(1), tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.arange(0, STRIPS)
    inside = (part < strips)[:, None] & (channel < channels)[None, :]
    values = tl.load(parts + (table * strips + part)[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    tl.store(sums + table * channels + channel, tl.sum(values, axis=0), mask=channel < channels)


@triton.jit
def differentiate(
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
