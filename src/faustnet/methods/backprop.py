"""Backpropagation, the baseline."""

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from faustnet.losses.formulas import exact, mixed
from faustnet.methods.base import Method
from faustnet.methods.mixup import MixUp, check_label_smoothing
from faustnet.nn.architectures import NetworkSettings, Shape, embedding_network
from faustnet.nn.modules import Linear, one_hot
from faustnet.nn.network import Network


class Backprop(Method):
    """Standard training, for comparison: a linear classifier after the last layer, and its cross entropy.

    The layers are those of FAUST without projections. In a convolutional network and in a transformer, only the last layer
    has a head.

    Options:
        label_smoothing: Label smoothing of the cross entropy.
        mixup: α of MixUp, which mixes pairs of images and their labels; 0 for no MixUp.
    """

    name: ClassVar[str] = "backprop"
    title: ClassVar[str] = "Backpropagation"
    summary: ClassVar[str] = "one loss at the output, with its gradient through all layers"

    def __init__(self, network: Network, classes: int, *, label_smoothing: float = 0.0, mixup: float = 0.0):
        network.remove_projections()
        super().__init__(network, classes)
        check_label_smoothing(label_smoothing)
        self.label_smoothing = label_smoothing
        self.read_out = Linear(network[-1].embedding_size, classes)
        self.mixing = MixUp(mixup, network)  # last, so that it does not change the random weights

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        return embedding_network(shape, settings, project=False)

    @property
    def learners(self) -> list[str]:
        return ["output"]

    @property
    def voters(self) -> list[str]:
        return ["output"]

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        own = self.mixing.own(len(x))
        last = functional.dropout(self.network.embed(self.mixing.blend(x)), self.network.dropout, self.training)
        output = exact(self.read_out(last))
        target = y if own is None else mixed(one_hot(y, self.classes).to(output), own)
        yield functional.cross_entropy(output, target, label_smoothing=self.label_smoothing).unsqueeze(0)

    def scores(self, x: Tensor) -> Tensor:
        return self.read_out(self.network.embed(x)).unsqueeze(0)
