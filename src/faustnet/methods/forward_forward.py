"""Forward-Forward: layers learn to be active for images with their correct label only."""

from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import goodness, goodness_loss
from faustnet.methods.goodness import GoodnessMethod
from faustnet.methods.local import LocalMethod
from faustnet.methods.source import Source, over_all
from faustnet.nn.modules import unit_rms
from faustnet.nn.network import Network
from faustnet.nn.readout import ReadOut
from faustnet.system.devices import check_memory

INFERENCES = ("multi-pass", "one-pass")
WEIGHT_DECAY = 3e-3  # of the read-out


class ForwardForward(GoodnessMethod, LocalMethod):
    """Section III of the paper: the first C values of a row contain a label. The goodness of a layer is the sum of its
    squared activations. It is trained to be above a threshold θ for images with the correct label, and below it with a
    wrong label.

    Options:
        threshold: θ divided by the number of units of a layer.
        label_length: Norm of the label vector, relative to the norm of the image.
        inference: "multi-pass" takes one forward pass with each of the C labels; the goodness is the score of that class.
            "one-pass" takes one forward pass with a neutral label. A linear softmax classifier, fitted after training,
            reads the normalised activations of all layers except the first.
    """

    name: ClassVar[str] = "forward-forward"
    title: ClassVar[str] = "Forward-Forward"
    summary: ClassVar[str] = "raise the goodness of images with their correct label, lower it with a wrong label"

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
        require(threshold > 0, f"threshold must be positive, got {threshold}.")
        require(inference in INFERENCES, f"inference must be {' or '.join(INFERENCES)}, got {inference!r}.")
        self.threshold = threshold
        self.first_read = min(1, len(network) - 1)
        self.read_out = None
        if inference == "one-pass":
            self.read_out = ReadOut(sum(network.embedding_sizes[self.first_read :]), classes)
            self.read_out.to(network.embedding_dtypes[-1])

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
        """Return the input of the read-out for images with a neutral label. (B, …) → (B, Σ widths)"""
        activity = list(self.network.embeddings(self.unlabelled(x)))[self.first_read :]
        return torch.cat([unit_rms(layer) for layer in activity], dim=1)

    def start(self, train: Source) -> None:
        super().start(train)
        if self.read_out:
            check_memory(len(train.labels) * self.read_out.weight.shape[1])  # the rows that it is fitted to

    def finish(self, train: Source) -> None:
        if self.read_out:
            self.read_out.fit(over_all(train, self._activity, self.network), train.labels, WEIGHT_DECAY)
