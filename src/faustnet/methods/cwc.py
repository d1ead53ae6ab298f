"""CwC: the classes compete for an image, each with its own share of a layer's channels."""

from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import competitive_loss, goodness_by_group
from faustnet.methods.base import LocalMethod
from faustnet.nn.conv import GoodnessConvLayer
from faustnet.nn.network import Network, NetworkSettings, Shape, embedding_network, goodness_conv_network


class CwC(LocalMethod):
    """Papachristodoulou et al. (2024), channel-wise competitive learning: a layer's channels are shared out among the
    classes, a class's goodness is the mean of squares of its channels, and the layer is trained by the cross entropy of a
    softmax over these. So there is no negative data, and one pass tells the goodness of every class, which is its score.

    The layers are convolution, max-pooling where `network.pools` says, ReLU and batch norm. Every second one keeps the
    classes apart: a class's channels are made of that class's channels in the layer before, and of no others. Dense layers
    have linear maps that are whole, and layer norm.

    The authors let layers stop training one after the other, the first one soonest, and predict by the last one, or by a
    softmax that is fitted to it. Here all are trained to the end, at once or greedily, and all vote, unless
    `prediction.weights` says otherwise.
    """

    name: ClassVar[str] = "cwc"
    title: ClassVar[str] = "CwC"
    summary: ClassVar[str] = "make a class's own channels more active than those of the other classes"

    def __init__(self, network: Network, classes: int):
        super().__init__(network, classes)
        self.channels = [
            layer.output_shape[0] if isinstance(layer, GoodnessConvLayer) else layer.outputs for layer in network
        ]

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        require(
            not any(width % classes for width in settings.widths),
            f"The {classes} classes share out the channels of every layer: give multiples of {classes} as network.widths, "
            f"not {list(settings.widths)}.",
        )
        if settings.kind == "dense":
            return embedding_network(shape, settings, project=False)
        return goodness_conv_network(shape, settings, norm_first=False, groups=classes)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return x.flatten(1)

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return competitive_loss(goodness_by_group(embedding, self.classes, self.channels[layers.start]), y)

    def scores(self, x: Tensor) -> Tensor:
        layers = zip(self.network.embeddings(x), self.channels, strict=True)
        return torch.stack([goodness_by_group(activity, self.classes, channels) for activity, channels in layers])
