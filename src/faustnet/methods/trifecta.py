"""The Trifecta: convolutional layers that are trained in overlapping pairs with SymBa's loss."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from faustnet.errors import require
from faustnet.losses import goodness, symmetric_loss
from faustnet.methods.goodness import LabelMethod
from faustnet.nn.architectures import NetworkSettings, Shape, goodness_conv_network, image_shape
from faustnet.nn.network import Network


class Trifecta(LabelMethod):
    """Dooms et al. (2023): SymBa's loss with convolutional layers and overlapping updates. A layer is batch norm, a
    convolution, max-pooling (if the layer is in `network.pools`) and ReLU. The label is added to an image as an additional
    channel, which is learned for each class.

    With overlapping updates, the gradient crosses one layer boundary: the loss of a layer trains that layer and the
    previous one. The loss of the first layer also trains the label channels. The authors form pairs of layers and use the
    loss of the second layer of each pair. The pairs alternate from batch to batch: (1, 2), (3, 4), … and then 1 alone,
    (2, 3), (4, 5), …. Here every batch uses the losses of all layers: the gradient of a layer is the sum of the gradients
    of its own loss and of the next layer's. All layers are updated together.

    The authors predict from the last layer. Here the prediction sums the scores of all layers, unless `prediction.weights`
    or `prediction.layers` is set.

    Options:
        sharpness: Factor of the difference in SymBa's loss; α in the publication.
    """

    name: ClassVar[str] = "trifecta"
    title: ClassVar[str] = "Trifecta"
    summary: ClassVar[str] = "SymBa's loss on convolutional layers; a layer's loss also trains the layer before it"

    def __init__(self, network: Network, classes: int, *, sharpness: float = 4.0):
        super().__init__(network, classes)
        require(sharpness > 0, f"sharpness must be positive, got {sharpness}.")
        self.sharpness = sharpness
        require(
            network.example.dim() == 4,
            f"network must take images, (B, channels, height, width), got inputs of shape {tuple(network.example.shape)}.",
        )
        height, width = network.example.shape[2:]
        self.label = nn.Embedding(classes, height * width)  # label channels, (C, h · w)

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        channels, height, width = image_shape(shape, settings)
        return goodness_conv_network((channels + 1, height, width), settings, norm_first=True)

    @property
    def input_shape(self) -> torch.Size:
        """Shape of an image, without the channel of the label."""
        channels, height, width = self.network.example.shape[1:]
        return torch.Size([channels - 1, height, width])

    def add_code(self, x: Tensor, code: Tensor) -> Tensor:
        channel = (code.to(x.dtype) @ self.label.weight).unflatten(1, x.shape[2:])
        return torch.cat([x, channel.unsqueeze(1)], dim=1)

    def typical(self, x: Tensor, y: Tensor) -> Tensor:
        """Return rows with the correct labels, then with wrong labels in turn."""
        turn = torch.arange(len(y), device=y.device) % (self.classes - 1)
        return torch.cat([self.with_labels(x, y), self.with_labels(x, (y + 1 + turn) % self.classes)])

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        rows, losses = self.rows(x, y), []
        for number, layer in enumerate(self.network, start=1):
            kept = layer.drop(rows)
            _, activity = layer.transform(kept)  # its graph includes the layer before, or the labels
            positive, negative = (goodness(activity) / activity.shape[-1]).chunk(2)
            losses.append(symmetric_loss(positive, negative, self.sharpness))
            if number < len(self.network):
                rows, _ = layer.transform(kept.detach())  # the same values; the graph spans this layer only
        yield torch.stack(losses)

    def scores(self, x: Tensor) -> Tensor:
        sizes = x.new_tensor(self.network.embedding_sizes)
        return self.goodness_by_label(x) / sizes[:, None, None]
