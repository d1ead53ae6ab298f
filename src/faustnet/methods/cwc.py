"""CwC: every class has its own group of channels in each layer, and the groups compete."""

from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import competitive_loss, goodness_by_group
from faustnet.methods.local import LocalMethod
from faustnet.nn.architectures import NetworkSettings, Shape, embedding_network, goodness_conv_network
from faustnet.nn.bodies import GoodnessConvBody
from faustnet.nn.network import Network


class CwC(LocalMethod):
    """Papachristodoulou et al. (2024), channel-wise competitive learning: the channels of a layer are divided equally among
    the classes. The goodness of a class is the mean square of its channels. The loss of a layer is the softmax cross entropy
    of the goodness of all classes. There are no wrong labels, and one forward pass gives the score of every class.

    A convolutional layer is a convolution, max-pooling (if the layer is in `network.pools`), ReLU and batch norm. Every
    second layer is a grouped convolution, with one group per class. Dense layers are linear, ReLU and layer norm, without
    groups.

    The authors stop training the layers one after the other, starting with the first, and predict from the last layer or
    from a softmax classifier on top of it. Here all layers are trained until the end. The prediction sums the scores of all
    layers, unless `prediction.weights` or `prediction.layers` is set.
    """

    name: ClassVar[str] = "cwc"
    title: ClassVar[str] = "CwC"
    summary: ClassVar[str] = "softmax cross entropy of the goodness of each class's own channels"

    def __init__(self, network: Network, classes: int):
        super().__init__(network, classes)
        self.channels = [
            layer.body.channels if isinstance(layer.body, GoodnessConvBody) else layer.embedding_size for layer in network
        ]

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        require(
            not any(width % classes for width in settings.widths),
            f"network.widths must be multiples of {classes}, the number of classes, got {list(settings.widths)}.",
        )
        if settings.kind == "dense":
            return embedding_network(shape, settings, project=False)
        return goodness_conv_network(shape, settings, norm_first=False, groups=classes)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return x

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return competitive_loss(goodness_by_group(embedding, self.classes, self.channels[layers.start]), y)

    def scores(self, x: Tensor) -> Tensor:
        layers = zip(self.network.embeddings(x), self.channels, strict=True)
        return torch.stack([goodness_by_group(activity, self.classes, channels) for activity, channels in layers])
