"""Heads: modules that map a layer's activation to its embedding, and the choice of a head for an activation.

The projections have no bias, because it would cancel in every distance.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.errors import FaustnetError
from faustnet.nn.modules import ConvNorm, Linear, average_pool, is_plain, pixel_mean
from faustnet.nn.structure import Structure, activation, as_vectors
from faustnet.system.devices import has_triton

HEAD_SIDE = 8  # maximum height and width of the feature maps that a head convolves, by default
USUAL_SIZE = 256  # of embeddings
MOST_CHANNELS = 256  # inside a head that is chosen for an activation


def projection(inputs: int, embedding: int) -> Linear:
    """Return a linear map whose initial embeddings have about the length of embeddings of 256 values, whatever their size.
    The default scale of distances fits that length."""
    linear = Linear(inputs, embedding, bias=False)
    with torch.no_grad():
        linear.weight.mul_((USUAL_SIZE / embedding) ** 0.5)
    return linear


class ConvHead(nn.Module):
    """Average-pool feature maps to at most 8×8, apply two convolutions, average over the pixels, and project.

    Args:
        channels: Number of channels of the feature maps.
        side: Their height and width.
        width: Number of channels of the two convolutions; 0 for none.
        embedding: Size of the projection; 0 for none.
        most: Height and width, at most, of what is convolved.
    """

    def __init__(self, channels: int, side: tuple[int, int], width: int, embedding: int = 0, most: int = HEAD_SIDE):
        super().__init__()
        self.side = (min(side[0], most), min(side[1], most))
        self.first = ConvNorm(channels, width, relu=True) if width else None
        self.second = ConvNorm(width, width, relu=True) if width else None
        self.features = width or channels
        self.projection = projection(self.features, embedding) if embedding else None

    def add_projection(self, embedding: int) -> None:
        self.projection = Linear(self.features, embedding, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """(R, channels, h, w) → (R, embedding)"""
        if self.first is not None and self.second is not None:
            maps = self.first(average_pool(maps, self.side))
            with_kernel = has_triton(maps.device) and is_plain(self.second)
            features = self.second.averaged(maps) if with_kernel else pixel_mean(self.second(maps))
        else:
            features = pixel_mean(maps)
        return features if self.projection is None else self.projection(features)


class TokenHead(nn.Module):
    """Normalise tokens to mean 0 and variance 1, average over those of each row that are not padding, and apply two linear
    maps with GELU between them.

    Args:
        width: Number of values of a token.
        hidden: Number of values between the two linear maps; 0 for one linear map.
        embedding: Size of the embedding; 0 leaves out the last linear map.
    """

    def __init__(self, width: int, hidden: int, embedding: int = 0):
        super().__init__()
        self.hidden = Linear(width, hidden) if hidden else None
        self.projection = projection(hidden or width, embedding) if embedding else None

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """(R, T, width), True at padding (R, T) → (R, embedding)"""
        tokens = functional.layer_norm(tokens, tokens.shape[-1:])
        if padding is None:
            features = tokens.mean(dim=1)
        else:
            kept = (~padding).to(tokens.dtype).unsqueeze(2)
            features = (tokens * kept).sum(dim=1) / kept.sum(dim=1).clamp_min(1)
        features = functional.layer_norm(features, features.shape[-1:])
        if self.hidden is not None:
            features = functional.gelu(self.hidden(features))
        return features if self.projection is None else self.projection(features)


class TokenMapHead(ConvHead):
    """Normalise the tokens of an image's patches to mean 0 and variance 1, arrange them as feature maps, and apply a
    `ConvHead`.

    Args:
        width: Number of values of a token.
        grid: Number of patches along the height and the width of an image.
        channels: Number of channels of the two convolutions; 0 for none.
        embedding: Size of the projection; 0 for none.
        most: Height and width, at most, of what is convolved.
    """

    def __init__(self, width: int, grid: tuple[int, int], channels: int, embedding: int = 0, most: int = HEAD_SIDE):
        super().__init__(width, grid, channels, embedding, most)
        self.grid = grid

    def forward(self, tokens: Tensor) -> Tensor:
        """(R, T, width) → (R, embedding)"""
        tokens = functional.layer_norm(tokens, tokens.shape[-1:])
        return super().forward(tokens.unflatten(1, self.grid).permute(0, 3, 1, 2))


class PixelHead(nn.Module):
    """Use all values of feature maps as the embedding, pixel by pixel."""

    def forward(self, maps: Tensor) -> Tensor:
        """(R, channels, h, w) → (R, h · w · channels)"""
        return as_vectors(maps)


def head_for(structure: Structure, embedding: int) -> nn.Module | None:
    """Return a head that maps a body's output to embeddings of this size: a linear map of vectors, convolutions of feature
    maps, or the mean over tokens. With size 0, there is no projection."""
    example = activation(structure)
    shape = example.shape[1:]
    if not example.is_floating_point() or len(shape) not in (1, 2, 3):
        raise FaustnetError(
            "The output of a block must be vectors (R, d), tokens (R, T, d) or feature maps (R, c, h, w) of floats, got "
            f"{tuple(example.shape)} of {example.dtype}: give the block its own head, with faustnet.nn.Layer(body, head)."
        )
    if len(shape) == 1:
        return projection(shape[0], embedding) if embedding else None
    if len(shape) == 2:
        return TokenHead(shape[1], min(shape[1], MOST_CHANNELS), embedding)
    channels, height, width = shape
    return ConvHead(channels, (height, width), min(channels, MOST_CHANNELS), embedding)
