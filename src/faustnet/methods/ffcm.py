"""FFCM: a contrastive loss with a margin in every layer, and a linear read-out of the last layer."""

from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import marginal_contrastive_loss
from faustnet.methods.local import LocalMethod
from faustnet.methods.source import Source, over_all
from faustnet.nn.architectures import NetworkSettings, Shape, embedding_network
from faustnet.nn.network import Network
from faustnet.nn.readout import ReadOut
from faustnet.nn.structure import as_vectors
from faustnet.system.devices import check_memory

WEIGHT_DECAY = 1e-3  # of the read-out


class FFCM(LocalMethod):
    """Aghagolzadeh and Ezoji (2024): the loss of every layer is a supervised contrastive loss of its normalised embeddings.
    A margin is added to the cosine similarity of images of the same class. After training, a linear softmax classifier is
    fitted to the activations of the last layer.

    The authors use two augmented views of each image. Here each image has one view, augmented as the recipe says, and its
    positives are the other images of its class in the batch. The authors do not say whether a layer has a projection;
    here it has one, as in FAUST.

    Options:
        temperature: Temperature of the contrastive loss.
        first_margin: Margin of the first layer.
        last_margin: Margin of the last layer; the margins of the layers in between are interpolated.
    """

    name: ClassVar[str] = "ffcm"
    title: ClassVar[str] = "FFCM"
    summary: ClassVar[str] = "supervised contrastive loss with a margin in every layer, then a linear classifier"

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
        require(temperature > 0, f"temperature must be positive, got {temperature}.")
        for option, margin in (("first_margin", first_margin), ("last_margin", last_margin)):
            require(0 <= margin <= 2, f"{option} must be from 0 to 2, got {margin}.")
        self.temperature = temperature
        self.register_buffer("margins", torch.linspace(first_margin, last_margin, len(network)), persistent=False)
        self.read_out = ReadOut(network.outputs, classes).to(network.embedding_dtypes[-1])

    margins: Tensor  # (layers,)

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        return embedding_network(shape, settings)

    @property
    def voters(self) -> list[str]:
        return ["read-out"]

    def start(self, train: Source) -> None:
        check_memory(len(train.labels) * self.network.outputs)  # the rows that the read-out is fitted to

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return x

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return marginal_contrastive_loss(embedding, y, self.margins[layers], self.temperature)

    def finish(self, train: Source) -> None:
        self.read_out.fit(over_all(train, self._features, self.network), train.labels, WEIGHT_DECAY)

    def scores(self, x: Tensor) -> Tensor:
        return self.read_out(self._features(x)).unsqueeze(0)

    def _features(self, x: Tensor) -> Tensor:
        """Return the activations of the last layer as vectors. (B, …) → (B, d)"""
        return as_vectors(self.network(x))
