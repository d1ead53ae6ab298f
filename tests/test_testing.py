"""The published checks accept every layer and method of the package, and refuse classes that break a contract."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, FaustRepresentative, Method
from faustnet.nn.architectures import NetworkSettings, Shape
from faustnet.nn.heads import TokenHead
from faustnet.nn.layers import Layer
from faustnet.nn.network import Network
from faustnet.nn.transformer import TransformerBody
from faustnet.testing import NETWORK, check_layer, check_method
from user_classes import WIDTH, OwnLayer, OwnMethod, OwnsParameter, PlainBody, PlainConvLayer, PlainLayer

NARROW = replace(NETWORK, kind="transformer", widths=(8, 8, 8), heads=2, head=8)
CONVOLUTIONS = replace(NETWORK, kind="vgg", widths=(8, 12), pools=(1,), head=6, length="unit")


def network_for(name: str) -> NetworkSettings:
    return CONVOLUTIONS if name == "trifecta" else NETWORK


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name: str) -> None:
    check_method(METHODS[name], network=network_for(name))


@pytest.mark.parametrize("kind", ["vgg", "residual"])
def test_a_convolutional_network_keeps_the_contract(kind: str) -> None:
    check_method(METHODS["faust-prototype"], network=replace(CONVOLUTIONS, kind=kind), options={"scale": 5.0})


@pytest.mark.parametrize("kind", ["vgg", "transformer"])
def test_layers_without_a_head_keep_the_contract(kind: str) -> None:
    check_method(METHODS["backprop"], network=replace(NETWORK, kind=kind, widths=(8, 8), head=8))


def test_a_transformer_keeps_the_contract() -> None:
    check_method(METHODS["faust-representative"], network=NARROW)


@pytest.mark.parametrize("layer", [OwnLayer, PlainLayer, PlainConvLayer])
def test_layers_of_users_keep_the_contract(layer: Callable[[int], Layer]) -> None:
    check_layer(layer(64), torch.randn(6, 64))


def test_a_layer_that_passes_several_tensors_keeps_the_contract() -> None:
    tokens, padding = torch.randn(6, 5, 8), torch.arange(5) > torch.tensor([4, 3, 2, 4, 4, 0]).unsqueeze(1)
    check_layer(Layer(TransformerBody(8, heads=2, expansion=2), TokenHead(8, 4)), (tokens, padding))


def test_a_method_of_a_user_keeps_the_contract() -> None:
    check_method(OwnMethod)


class NoTensor(PlainBody):
    def forward(self, rows: Tensor) -> Any:
        return None


class Scalar(PlainBody):
    """Passes on a tensor that does not have the rows of the batch."""

    def forward(self, rows: Tensor) -> Any:
        activation = super().forward(rows)
        return activation, activation.mean()


class Random(PlainBody):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows + torch.rand_like(rows))


class Centred(PlainBody):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows - rows.mean(dim=0))


class Counting(PlainBody):
    seen: Tensor

    def __init__(self, inputs: int):
        super().__init__(inputs)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        self.seen += len(rows)
        return super().forward(rows)


class Infinite(PlainBody):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) / 0


class Detached(nn.Linear):
    def forward(self, activation: Tensor) -> Tensor:
        return super().forward(activation).detach()


class ByUnit(nn.Module):
    """Returns one embedding for each unit, and not one for each row."""

    def forward(self, activation: Tensor) -> Tensor:
        return activation.unsqueeze(2)


class Twice(nn.Module):
    def forward(self, activation: Tensor) -> tuple[Tensor, Tensor]:
        return activation, activation


@pytest.mark.parametrize(
    ("body", "head", "said"),
    [
        (NoTensor, None, "must return a tensor, or a tuple or dictionary that contains one, got NoneType"),
        (Scalar, None, r"tensors that Scalar returns must have the 6 rows of the batch first, got \(\)"),
        (PlainBody, ByUnit(), r"head of PlainBody must return .* of shape \(R, e\), here \(6, e\), got \(6, 12, 1\)"),
        (PlainBody, Twice(), "head of PlainBody must return .*, got tuple"),
        (Random, None, "draw random numbers in training mode only"),
        (Centred, None, "depend on the other rows"),
        (Counting, None, r"changes its buffer body\.seen in evaluation mode"),
        (Infinite, None, "must be finite"),
        (PlainBody, Detached(WIDTH, 5), "has no gradient"),
    ],
)
def test_a_layer_that_breaks_the_contract_is_refused(
    body: Callable[[int], nn.Module], head: nn.Module | None, said: str
) -> None:
    with pytest.raises(FaustnetError, match=said):
        check_layer(Layer(body(64), head), torch.randn(6, 64))


def test_only_layers_and_several_rows_are_checked() -> None:
    with pytest.raises(FaustnetError, match=r"layer must be a faustnet\.nn\.Layer\(body, head\), got PlainBody"):
        check_layer(PlainBody(64), torch.randn(6, 64))  # type: ignore[arg-type]
    with pytest.raises(FaustnetError, match="sample must have at least two rows"):
        check_layer(PlainLayer(64), torch.randn(1, 64))


class Nameless(OwnMethod):
    summary: ClassVar[str] = ""


class Unannotated(OwnMethod):
    def __init__(self, network: Network, classes: int, *, scale=1.0):  # type: ignore[no-untyped-def]
        super().__init__(network, classes)


class Crossing(OwnMethod):
    """The loss of each layer reaches the layer before."""

    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        penalty = self.network[layer - 1].body.linear.weight.square().sum() if layer else 0
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


class Unaveraged(OwnMethod):
    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        return super().local_loss(embedding, y, layer) + embedding[: len(y), 0]


class UnaveragedBatched(FaustRepresentative):
    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return super().batched_loss(embedding, y, layers).unsqueeze(1) + embedding[:, : y.shape[1], 0]


class Transposed(OwnMethod):
    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x).transpose(0, 1)


class OwnTied(OwnMethod):
    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        network = super().make_network(shape, classes, settings)
        network[2].body.linear.weight = network[1].body.linear.weight
        return network


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Nameless, "summary must be a non-empty string"),
        (Unannotated, "'scale' of Unannotated has no type annotation"),
        (OwnsParameter, "sharpness outside its layers"),
        (Crossing, r"The loss of layer 2 must not depend on network\.layers\.0\.body\.linear\.weight"),
        (Forgetful, "state_dict of own-method does not contain everything that prediction needs"),
        (Remembering, "changes its buffer vectors in a step"),
        (Constant, "did not fall"),
        (Unaveraged, r"Unaveraged\.local_loss must return one value, \(\), got \(20,\): average over the batch"),
        (UnaveragedBatched, r"one value per layer, \(1,\), got \(1, 20\)"),
        (
            Transposed,
            r"Transposed\.scores must have the shape \(voters, B, C\), here \(3, 20, 4\), got \(20, 3, 4\): return",
        ),
        (OwnTied, "linear.weight is shared with another layer"),
    ],
)
def test_a_method_that_breaks_the_contract_is_refused(method: type[Method], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        check_method(method)


def test_unused_modules_of_a_layer_are_found() -> None:
    class Unused(PlainBody):
        def __init__(self, inputs: int):
            super().__init__(inputs)
            self.spare = nn.Linear(3, 3)

    class UnusedMethod(OwnMethod):
        @classmethod
        def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
            return Network([Unused(64)], example=torch.zeros(1, *shape))

    with pytest.raises(FaustnetError, match=r"spare\.weight gets no gradient"):
        check_method(UnusedMethod)
