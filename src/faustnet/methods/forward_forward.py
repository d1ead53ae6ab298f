"""Forward-Forward: layers learn to be active for images with the right label only."""

from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import goodness, goodness_loss
from faustnet.methods.base import LocalMethod
from faustnet.methods.goodness import GoodnessMethod
from faustnet.methods.source import Source, over_all
from faustnet.nn.modules import unit_rms
from faustnet.nn.network import Network
from faustnet.nn.readout import ReadOut
from faustnet.system.devices import check_memory

INFERENCES = ("multi-pass", "one-pass")
WEIGHT_DECAY = 3e-3  # of the read-out


class ForwardForward(GoodnessMethod, LocalMethod):
    """Section III. Positive rows carry the true label in their first C values, negative rows a wrong one.

    `inference` by "multi-pass" tries every label, C passes, and the goodness of each is that class's score. "one-pass"
    writes a neutral label and reads the class off the layers' normalised activity (all layers but the first, where
    there are more) with a linear softmax that is fitted to them. `threshold` is θ for each unit of a layer, and
    `label_length` how long the label is, next to the image.
    """

    name: ClassVar[str] = "forward-forward"
    title: ClassVar[str] = "Forward-Forward"
    summary: ClassVar[str] = "raise the goodness of images with the right label, lower it with a wrong one"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        threshold: float = 1.0,
        label_length: float = 0.5,
        inference: str = "multi-pass",
    ):
        super().__init__(network, classes, label_length=label_length)
        require(threshold > 0, f"The threshold must be positive, not {threshold}.")
        require(inference in INFERENCES, f"Inference is {' or '.join(INFERENCES)}, not {inference!r}.")
        self.threshold = threshold
        self.first_read = min(1, len(network) - 1)
        self.read_out = None
        if inference == "one-pass":
            self.read_out = ReadOut(sum(network.embedding_sizes[self.first_read :]), classes)

    @property
    def voters(self) -> list[str]:
        return ["read-out"] if self.read_out else super().voters

    @property
    def forward_passes(self) -> int:
        return 1 if self.read_out else super().forward_passes

    @property
    def needs_make_ready(self) -> bool:
        return self.read_out is not None

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        positive, negative = goodness(embedding).chunk(2, dim=-1)
        return goodness_loss(positive, negative, self.threshold * embedding.shape[-1])

    def scores(self, x: Tensor) -> Tensor:
        return self.read_out(self._activity(x)).unsqueeze(0) if self.read_out else self.goodness_by_label(x)

    def _activity(self, x: Tensor) -> Tensor:
        """What the read-out sees of images with a neutral label. (B, …) → (B, Σ widths)"""
        activity = list(self.network.embeddings(self.unlabelled(x)))[self.first_read :]
        return torch.cat([unit_rms(layer) for layer in activity], dim=1)

    def start(self, train: Source) -> None:
        super().start(train)
        if self.read_out:
            check_memory(len(train.labels) * self.read_out.weight.shape[1])  # what it is fitted to

    def finish(self, train: Source) -> None:
        if self.read_out:
            self.read_out.fit(over_all(train, self._activity), train.labels, WEIGHT_DECAY)
