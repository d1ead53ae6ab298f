"""The loss of FAUST's layers where all anchors of a batch share their references."""

import torch
from torch import Tensor, nn

from faustnet.errors import require
from faustnet.losses import marginal_contrastive_loss, reference_tuplet_loss, similarity_matching_loss
from faustnet.methods.mixup import check_label_smoothing


class Objective(nn.Module):
    """The tuplet loss of the distances to the references, and where their weights are not 0 two terms of the batch's own
    embeddings: `contrast`, the supervised contrastive loss at that `temperature`, and `matching`, the similarity matching
    loss.

    The scale of the distances goes by equal ratios from `scale` in the first epoch to `final_scale` in the last, or with 0
    stays.
    """

    now: Tensor  # (): the scale of this epoch, if it does not stay

    def __init__(
        self,
        classes: int,
        scale: float,
        final_scale: float,
        label_smoothing: float,
        contrast: float,
        temperature: float,
        matching: float,
    ):
        super().__init__()
        require(scale > 0, f"The scale of the distance must be positive, not {scale}.")
        require(final_scale >= 0, f"The last epoch's scale is positive, or 0 to stay at the first one's, not {final_scale}.")
        require(contrast >= 0, f"The weight of the contrast is 0 or more, not {contrast}.")
        require(temperature > 0, f"The temperature must be positive, not {temperature}.")
        require(matching >= 0, f"The weight of the matching is 0 or more, not {matching}.")
        check_label_smoothing(label_smoothing)
        self.classes = classes
        self.scale, self.last_scale, self.stays = scale, final_scale or scale, not final_scale
        self.label_smoothing = label_smoothing
        self.contrast, self.temperature, self.matching = contrast, temperature, matching
        self.register_buffer("now", torch.tensor(scale), persistent=False)

    def enter_epoch(self, share: float) -> None:
        """The scale of an epoch, from 0 for the first to 1 for the last."""
        if not self.stays:
            self.now.copy_(torch.tensor(self.scale ** (1 - share) * self.last_scale**share))

    def forward(self, embedding: Tensor, y: Tensor, own: Tensor | None = None) -> Tensor:
        """Of the anchors and their references, class by class; where anchors were `mixed`, their own shares.
        (…, B + C · K, e), (…, B), (B,) → (…)"""
        scale = self.scale if self.stays else self.now
        losses = reference_tuplet_loss(embedding, y, self.classes, scale, self.label_smoothing, own)
        anchors = embedding[..., : y.shape[-1], :]
        if self.contrast:
            margin = torch.zeros((), dtype=losses.dtype, device=losses.device)
            losses = losses + self.contrast * marginal_contrastive_loss(anchors, y, margin, self.temperature)
        if self.matching:
            losses = losses + self.matching * similarity_matching_loss(anchors, y, own)
        return losses
