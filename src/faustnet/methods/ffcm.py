"""FFCM: layers that bring images of one class together, and a linear read-out of the last one."""

from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import marginal_contrastive_loss
from faustnet.methods.base import LocalMethod
from faustnet.methods.source import Source, over_all
from faustnet.nn.network import Network, NetworkSettings, Shape, embedding_network
from faustnet.nn.readout import ReadOut
from faustnet.system.devices import check_memory

WEIGHT_DECAY = 1e-3  # of the read-out


class FFCM(LocalMethod):
    """Aghagolzadeh and Ezoji (2024): every layer is trained by a supervised contrastive loss on its normalised embeddings,
    in which pairs of one class count as closer than they are by a margin. The margin falls from `first_margin` in the
    first layer to `last_margin` in the last one. Then a linear softmax is fitted to the last layer's activations.

    Its authors show each image in two distortions; here each is shown once, distorted as the recipe's `data` says, and
    the other images of its class in the batch are what it is to be near. Whether their layers have a projection for the
    loss they do not say; these have, as FAUST's do.
    """

    name: ClassVar[str] = "ffcm"
    title: ClassVar[str] = "FFCM"
    summary: ClassVar[str] = "bring a batch's images of one class together, up to a margin; then fit a read-out"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        temperature: float = 0.15,
        first_margin: float = 0.4,
        last_margin: float = 0.1,
    ):
        super().__init__(network, classes)
        require(temperature > 0, f"The temperature must be positive, not {temperature}.")
        for margin in (first_margin, last_margin):
            require(0 <= margin <= 2, f"A margin of cosines lies from 0 to 2, not at {margin}.")
        self.temperature = temperature
        self.register_buffer("margins", torch.linspace(first_margin, last_margin, len(network)), persistent=False)
        self.read_out = ReadOut(network[-1].outputs, classes)

    margins: Tensor  # (layers,)

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        return embedding_network(shape, settings)

    @property
    def voters(self) -> list[str]:
        return ["read-out"]

    def start(self, train: Source) -> None:
        check_memory(len(train.labels) * self.network[-1].outputs)  # what the read-out is fitted to

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return x.flatten(1)

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return marginal_contrastive_loss(embedding, y, self.margins[layers], self.temperature)

    def finish(self, train: Source) -> None:
        self.read_out.fit(over_all(train, self.network), train.labels, WEIGHT_DECAY)

    def scores(self, x: Tensor) -> Tensor:
        return self.read_out(self.network(x)).unsqueeze(0)
