"""The Trifecta: convolutional layers that are trained in overlapping pairs to notice wrong labels."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from faustnet.errors import require
from faustnet.losses import goodness, symmetric_loss
from faustnet.methods.goodness import LabelMethod
from faustnet.nn.conv import GoodnessConvLayer
from faustnet.nn.network import Network, NetworkSettings, Shape, goodness_conv_network


class Trifecta(LabelMethod):
    """Dooms et al. (2023): SymBa's loss on the mean of squares of a layer's activity, layers that are batch norm,
    convolution, ReLU and max-pooling where `network.pools` says, and updates that overlap. A label is a picture that is
    learned for it, and comes to an image as one channel more. `sharpness` is the authors' α.

    Overlapping updates let the gradient cross one boundary between layers: a layer's loss trains that layer and the one
    before it, the first one's the labels' pictures. Of the methods here only backprop lets more cross, and the others
    nothing. The authors divide the layers into pairs, (1, 2), (3, 4), … on one batch, and 1, (2, 3), … on the next, and take
    the loss of each pair's last layer. Here every batch serves both, so that every step is the same work: a layer's gradient
    is the sum of those that it meets in turn there, of its own loss and of the next layer's, and one optimiser sees that
    sum. All layers are updated at once.

    They predict by the last layer. Here all vote, unless `prediction.weights` says otherwise.
    """

    name: ClassVar[str] = "trifecta"
    title: ClassVar[str] = "Trifecta"
    summary: ClassVar[str] = "SymBa's loss on convolutions, where a layer's loss also trains the layer before it"

    def __init__(self, network: Network, classes: int, *, sharpness: float = 4.0):
        super().__init__(network, classes)
        require(sharpness > 0, f"The sharpness must be positive, not {sharpness}.")
        self.sharpness = sharpness
        first = network[0]
        assert isinstance(first, GoodnessConvLayer)
        self.label = nn.Embedding(classes, first.shape[1] * first.shape[2])  # as pictures, (C, h · w)

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        channels, height, width = shape
        return goodness_conv_network((channels + 1, height, width), settings, norm_first=True)

    def written(self, x: Tensor, code: Tensor) -> Tensor:
        """As their last channel."""
        flat = x.flatten(1)
        return torch.cat([flat, code.to(flat.dtype) @ self.label.weight], dim=1)

    def typical(self, x: Tensor, y: Tensor) -> Tensor:
        """With the true label, and with wrong ones in turn."""
        turn = torch.arange(len(y), device=y.device) % (self.classes - 1)
        return torch.cat([self.labelled(x, y), self.labelled(x, (y + 1 + turn) % self.classes)])

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        rows, found = self.rows(x, y), []
        for number, layer in enumerate(self.network, start=1):
            kept = layer.drop(rows)
            assert isinstance(kept, Tensor)
            _, activity = layer.transform(kept)  # reaches back to what made the rows, the layer before or the labels
            positive, negative = (goodness(activity) / activity.shape[-1]).chunk(2)
            found.append(symmetric_loss(positive, negative, self.sharpness))
            if number < len(self.network):
                rows, _ = layer.transform(kept.detach())  # the same numbers, from this layer alone
        yield torch.stack(found)

    def scores(self, x: Tensor) -> Tensor:
        sizes = x.new_tensor(self.network.embedding_sizes)
        return self.goodness_by_label(x) / sizes[:, None, None]
