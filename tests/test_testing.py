"""The published checks accept every layer and method of the package, and refuse classes that break a contract."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, Method
from faustnet.nn.architectures import NetworkSettings, Shape
from faustnet.nn.layers import Layer
from faustnet.nn.network import Network
from faustnet.testing import NETWORK, check_layer, check_method
from user_classes import OwnLayer, OwnMethod, OwnsParameter, PlainConvLayer, PlainLayer

CONVOLUTIONS = replace(NETWORK, kind="vgg", widths=(8, 12), pools=(1,), head=6, length="unit")


def network_for(name: str) -> NetworkSettings:
    return CONVOLUTIONS if name == "trifecta" else NETWORK


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name: str) -> None:
    check_method(METHODS[name], network=network_for(name))


@pytest.mark.parametrize("kind", ["vgg", "residual"])
def test_a_convolutional_network_keeps_the_contract(kind: str) -> None:
    check_method(METHODS["faust-prototype"], network=replace(CONVOLUTIONS, kind=kind), options={"scale": 5.0})


@pytest.mark.parametrize("layer", [OwnLayer, PlainLayer, PlainConvLayer])
def test_layers_of_users_keep_the_contract(layer: type[Layer]) -> None:
    check_layer(layer(64), torch.randn(6, 64))


def test_a_method_of_a_user_keeps_the_contract() -> None:
    check_method(OwnMethod)


class OneOutput(PlainLayer):
    def transform(self, rows: Tensor) -> Any:
        return torch.relu(self.body(rows))


class WrongSize(PlainLayer):
    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        activation = torch.relu(self.body(rows))
        return activation, activation


class Random(PlainLayer):
    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return super().transform(rows + torch.rand_like(rows))


class Centred(PlainLayer):
    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return super().transform(rows - rows.mean(dim=0))


class Counting(PlainLayer):
    seen: Tensor

    def __init__(self, inputs: int):
        super().__init__(inputs)
        self.register_buffer("seen", torch.zeros(()))

    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        self.seen += len(rows)
        return super().transform(rows)


class Detached(PlainLayer):
    def transform(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        activation, embedding = super().transform(rows)
        return activation, embedding.detach()


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (OneOutput, "must return two tensors"),
        (WrongSize, r"embedding of WrongSize must have shape \(6, 5\), got \(6, 12\)"),
        (Random, "draw no random numbers"),
        (Centred, "depend on the other rows"),
        (Counting, "changes its buffer seen in evaluation mode"),
        (Detached, "has no gradient"),
    ],
)
def test_a_layer_that_breaks_the_contract_is_refused(layer: type[PlainLayer], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        check_layer(layer(64), torch.randn(6, 64))


class Nameless(OwnMethod):
    summary: ClassVar[str] = ""


class Unannotated(OwnMethod):
    def __init__(self, network: Network, classes: int, *, scale=1.0):  # type: ignore[no-untyped-def]
        super().__init__(network, classes)


class Crossing(OwnMethod):
    """The loss of each layer reaches the layer before."""

    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        penalty = self.network[layer - 1].linear.weight.square().sum() if layer else 0
        return super().local_loss(embedding, y, layer) + penalty


class Forgetful(OwnMethod):
    """Prediction depends on a tensor that is no buffer."""

    def __init__(self, network: Network, classes: int):
        super().__init__(network, classes)
        self.offset = torch.rand(classes)

    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x) + 100 * self.offset


class Remembering(OwnMethod):
    """Changes a buffer of its own in every step."""

    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        self.vectors += 0.01
        return super().local_loss(embedding, y, layer)


class Constant(OwnMethod):
    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        return 0 * super().local_loss(embedding, y, layer) + 1


class Transposed(OwnMethod):
    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x).transpose(0, 1)


class OwnTied(OwnMethod):
    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        network = super().make_network(shape, classes, settings)
        network[2].linear.weight = network[1].linear.weight
        return network


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Nameless, "summary must be a non-empty string"),
        (Unannotated, "'scale' of Unannotated has no type annotation"),
        (OwnsParameter, "sharpness outside its layers"),
        (Crossing, r"The loss of layer 2 must not depend on network\.layers\.0\.linear\.weight"),
        (Forgetful, "state_dict of own-method is not the whole model"),
        (Remembering, "changes its buffer vectors in a step"),
        (Constant, "did not fall"),
        (Transposed, "scores of own-method must have shape"),
        (OwnTied, "linear.weight is shared with another layer"),
    ],
)
def test_a_method_that_breaks_the_contract_is_refused(method: type[Method], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        check_method(method)


def test_unused_modules_of_a_layer_are_found() -> None:
    class Unused(PlainLayer):
        def __init__(self, inputs: int):
            super().__init__(inputs)
            self.spare = nn.Linear(3, 3)

    class UnusedMethod(OwnMethod):
        @classmethod
        def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
            return Network([Unused(64)])

    with pytest.raises(FaustnetError, match=r"spare\.weight gets no gradient"):
        check_method(UnusedMethod)
