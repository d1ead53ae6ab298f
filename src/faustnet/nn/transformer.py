"""Bodies of transformer layers: blocks of self-attention, the first one after the patches of an image or the tokens of a
text."""

import torch
from torch import Tensor, nn

from faustnet.nn.structure import Structure, activation, padding_mask

PATCH_POSITION = 0.5  # standard deviation of the initial positions of patches; a local loss ignores smaller ones
TEXT_SIZE = 0.02  # standard deviation of the initial vectors and positions of tokens


class TransformerBody(nn.Module):
    """One block of self-attention and a feed-forward network, with layer norm before each of them.

    It passes a padding mask on with the tokens, if there is one.

    Args:
        width: Number of values of a token.
        heads: Number of attention heads.
        expansion: Number of hidden units of the feed-forward network, as a multiple of the width.
    """

    def __init__(self, width: int, heads: int, expansion: int):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(
            width, heads, expansion * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, tokens: Structure) -> Structure:
        """(R, T, width), or that and a mask (R, T) → the same"""
        padding = padding_mask(tokens)
        attended = self.block(activation(tokens), src_key_padding_mask=padding)
        return attended if padding is None else (attended, padding)


class PatchBody(nn.Module):
    """Split images into square patches, map each to a token, add its position, and apply the first block.

    Args:
        shape: Channels, height and width of the images.
        patch: Height and width of a patch.
        block: The first block.
    """

    def __init__(self, shape: tuple[int, int, int], patch: int, width: int, block: TransformerBody):
        super().__init__()
        channels, height, length = shape
        self.grid = height // patch, length // patch
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn(self.grid[0] * self.grid[1], width) * PATCH_POSITION)
        self.first = block

    def forward(self, images: Tensor) -> Structure:
        """(R, channels, h, w) → (R, T, width)"""
        return self.first(self.patches(images).flatten(2).mT + self.positions)


class TextBody(nn.Module):
    """Map the numbers of tokens to vectors, add their positions, and apply the first block. Number 0 is padding.

    Args:
        vocabulary: Number of different tokens.
        length: Largest number of tokens of a text.
        block: The first block.
    """

    def __init__(self, vocabulary: int, length: int, width: int, block: TransformerBody):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        with torch.no_grad():
            self.tokens.weight.mul_(TEXT_SIZE)
        self.positions = nn.Parameter(torch.randn(length, width) * TEXT_SIZE)
        self.first = block

    def forward(self, numbers: Tensor) -> Structure:
        """(R, T) → (R, T, width), and True at padding (R, T)"""
        tokens = numbers != 0
        padding = ~tokens & tokens.any(dim=1, keepdim=True)  # an empty text has none: attention to no token is not finite
        return self.first((self.tokens(numbers) + self.positions, padding))
