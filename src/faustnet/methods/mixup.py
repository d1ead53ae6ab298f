"""MixUp, for methods that offer it, and the check of label smoothing that goes with it."""

import torch
from torch import Tensor, nn

from faustnet.errors import require
from faustnet.losses import mixed
from faustnet.nn.network import Network

PLACES = 1024  # positions in a batch, after which shares repeat


class MixUp(nn.Module):
    """Blend every image of a batch with the next one. An image's own share is drawn from Beta(α, α), and replaced by one
    minus that if this is larger, so that its own label counts most.

    Shares belong to positions in the batch, which hold other images in each epoch. So every layer knows the shares, at
    whatever time it processes the batch.
    """

    shares: Tensor  # (PLACES,)

    def __init__(self, alpha: float, network: Network):
        super().__init__()
        require(alpha >= 0, f"mixup must be 0 (off) or more, got {alpha}.")
        require(
            alpha == 0 or not network.takes_ids,
            f"mixup must be 0 for token ids and other whole numbers, which cannot be mixed, got {alpha}: leave it out.",
        )
        self.on = alpha > 0
        with torch.device("cpu"):  # the meta device cannot draw from this distribution
            drawn = torch.distributions.Beta(alpha, alpha).sample((PLACES,)) if self.on else torch.ones(0)
        self.register_buffer("shares", torch.maximum(drawn, 1 - drawn), persistent=False)

    def own(self, batch: int) -> Tensor | None:
        """Return the shares of a batch of this size, or None if MixUp is off. → (batch,)"""
        return self.shares.repeat(-(-batch // PLACES))[:batch] if self.on else None

    def blend(self, x: Tensor) -> Tensor:
        """Blend the images of a batch. (B, …) → (B, …)"""
        return mixed(x.flatten(1), self.own(len(x))).view_as(x) if self.on else x


def check_label_smoothing(value: float) -> None:
    require(0 <= value < 1, f"label_smoothing must be at least 0 and below 1, got {value}.")
