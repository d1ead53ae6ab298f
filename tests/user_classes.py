"""Bodies, layers and methods as a user of the package writes them, and a small training of them in double precision."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.data import Images, ImageSource, Scaling
from faustnet.data.sources import ArraySource
from faustnet.methods import LocalMethod, build
from faustnet.nn.architectures import NetworkSettings, Shape, TextShape
from faustnet.nn.layers import Layer
from faustnet.nn.modules import Linear
from faustnet.nn.network import Network
from faustnet.training.distributed import RankGrid
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings

BATCH, BATCHES, CLASSES, PIXELS = 24, 4, 4, 64
WIDTH = 12  # of activations, which are also the embeddings


class OwnBody(nn.Module):
    """A body with the package's linear module: only its activation function and its buffers are the user's."""

    def __init__(self, inputs: int, activation: str = "relu"):
        super().__init__()
        self.linear = Linear(inputs, WIDTH)
        self.activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        return getattr(torch, self.activation)(self.linear(rows.flatten(1)))


class MaskedBody(OwnBody):
    """Half of the units are off, by a random choice that is made once."""

    mask: Tensor

    def __init__(self, inputs: int):
        super().__init__(inputs)
        self.register_buffer("mask", (torch.rand(WIDTH) < 0.5).double() * 2)

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) * self.mask


class ModuleBody(OwnBody):
    """The activation function is a module, whose settings differ between layers."""

    def __init__(self, inputs: int, slope: float):
        super().__init__(inputs)
        self.function = nn.LeakyReLU(slope)

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(self.linear(rows.flatten(1)))


class CallableBody(OwnBody):
    """The activation function is a plain function."""

    def __init__(self, inputs: int, function: Callable[[Tensor], Tensor]):
        super().__init__(inputs)
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(self.linear(rows.flatten(1)))


class TemperatureBody(OwnBody):
    """Has a parameter that only the loss of the layer reads."""

    def __init__(self, inputs: int):
        super().__init__(inputs)
        self.temperature = nn.Parameter(torch.ones(()))


class NormBody(OwnBody):
    """One of torch's batch norms follows the linear module."""

    def __init__(self, inputs: int, momentum: float | None = 0.1):
        super().__init__(inputs)
        self.norm: nn.Module = nn.BatchNorm1d(WIDTH, momentum=momentum)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.norm(self.linear(rows.flatten(1))))


class PictureNormBody(NormBody):
    """The same over 3 channels of 2×2 pixels."""

    def __init__(self, inputs: int):
        super().__init__(inputs)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.norm(self.linear(rows.flatten(1)).unflatten(1, (3, 2, 2)))).flatten(1)


class RunningMeanBody(OwnBody):
    """Subtracts a running mean, a buffer that every step of training replaces."""

    running: Tensor

    def __init__(self, inputs: int):
        super().__init__(inputs)
        self.register_buffer("running", torch.zeros(WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        linear = self.linear(rows.flatten(1))
        if self.training:
            self.running = 0.9 * self.running + 0.1 * linear.detach().mean(dim=0)
        return torch.relu(linear - self.running)


class CarryingBody(OwnBody):
    """Passes on the first pixels of the image, unchanged, beside the activation, and adds them to it."""

    def forward(self, rows: Any) -> tuple[Tensor, Tensor]:
        first, carried = rows if isinstance(rows, tuple) else (rows, rows.flatten(1)[:, :WIDTH])
        return super().forward(first) + carried, carried


class PlainBody(nn.Module):
    """Has no module of the package."""

    def __init__(self, inputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.linear(rows.flatten(1)))


class PlainConvBody(nn.Module):
    """Has no module of the package: two of torch's convolutions of 8×8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)  # → (4, 8, 8)
        self.second = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)  # → (8, 4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(rows.view(-1, 1, 8, 8)))))


def layer_with(body: Callable[..., nn.Module]) -> Callable[..., Layer]:
    """Return what makes layers with such bodies, whose activation is the embedding."""
    return lambda *about, **more: Layer(body(*about, **more))


OwnLayer, MaskedLayer, ModuleLayer, CallableLayer = map(layer_with, (OwnBody, MaskedBody, ModuleBody, CallableBody))
TemperatureLayer, NormLayer, PictureNormLayer = map(layer_with, (TemperatureBody, NormBody, PictureNormBody))
RunningMeanLayer, CarryingLayer = layer_with(RunningMeanBody), layer_with(CarryingBody)


def PlainLayer(inputs: int) -> Layer:
    """Of torch's linear modules, for the activation and for the embedding."""
    return Layer(PlainBody(inputs), nn.Linear(WIDTH, 5))


def PlainConvLayer(inputs: int = PIXELS) -> Layer:
    return Layer(PlainConvBody(), nn.Sequential(nn.Flatten(), nn.Linear(8 * 4 * 4, 5)))


class OwnMethod(LocalMethod):
    """Each layer learns to map images close to a fixed random vector for their class. Prediction needs no preparation."""

    name: ClassVar[str] = "own-method"
    summary: ClassVar[str] = "cross entropy of the products with a random vector for every class"
    vectors: Tensor  # (C, e)

    def __init__(self, network: Network, classes: int):
        super().__init__(network, classes)
        size = network.embedding_sizes[0]
        self.register_buffer("vectors", torch.randn(classes, size, generator=torch.Generator().manual_seed(1)))

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        inputs = [shape[0] * shape[1] * shape[2], *[WIDTH] * (len(settings.widths) - 1)]
        return Network([OwnLayer(size) for size in inputs], example=torch.zeros(1, *shape), dropout=settings.dropout)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return x

    def products(self, embedding: Tensor) -> Tensor:
        return embedding @ self.vectors.to(embedding).mT

    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        return functional.cross_entropy(self.products(embedding), y)

    def scores(self, x: Tensor) -> Tensor:
        return torch.stack([self.products(embedding) for embedding in self.network.embeddings(x)])


class TemperatureMethod(OwnMethod):
    """Divides the products by the temperature of each layer."""

    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        return super().local_loss(embedding / self.network[layer].body.temperature, y, layer)


class PenaltyMethod(OwnMethod):
    """Adds a penalty on the weights of each layer, which the loss takes from the network."""

    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        return super().local_loss(embedding, y, layer) + 0.1 * self.network[layer].body.linear.weight.square().sum()


class MaskingMethod(OwnMethod):
    """Changes a buffer of its layers from epoch to epoch, in place."""

    def enter_epoch(self, share: float) -> None:
        for layer in self.network:
            layer.body.mask[: int(share * WIDTH)] = 0.5


class OwnsParameter(OwnMethod):
    """Has a trainable scale of its own, for all layers together."""

    def __init__(self, network: Network, classes: int):
        super().__init__(network, classes)
        self.sharpness = nn.Parameter(torch.ones(()))

    def products(self, embedding: Tensor) -> Tensor:
        return super().products(embedding) * self.sharpness


def images() -> ImageSource:
    """Random pixels, the same each time, and labels; scaled in double precision."""
    count = BATCH * BATCHES
    pixels = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    made = Images(pixels, torch.arange(count) % CLASSES)
    scaling = Scaling.of(made)
    exact = Scaling(scaling.mean.double(), scaling.deviation.double())
    return ImageSource(made, exact, [str(number) for number in range(CLASSES)])


def network_of(*layers: Callable[[int], Layer]) -> Network:
    """Layers that follow one another, with the same weights each time."""
    torch.manual_seed(0)
    inputs: Iterable[int] = (PIXELS, *[WIDTH] * (len(layers) - 1))
    return Network([layer(size) for layer, size in zip(layers, inputs, strict=True)], example=torch.zeros(1, 1, 8, 8))


def own_trainer(
    layers: Sequence[Callable[[int], Layer]],
    schedule: str = "sequential",
    method: type[LocalMethod] = OwnMethod,
    *,
    change: Callable[[LocalMethod], None] = lambda method: None,
    optimiser: OptimiserSettings | None = None,
    communicator: RankGrid | None = None,
) -> TrainingLoop:
    """Of three epochs of four steps; `change` is made to the method before training."""
    made = method(network_of(*layers), CLASSES).double()
    change(made)
    settings = TrainingSettings(epochs=3, batch_size=BATCH, schedule=schedule, evaluate_every=10**6)
    optimiser = optimiser or OptimiserSettings(learning_rate=0.01)
    return TrainingLoop(made, images(), images(), settings, optimiser, seed=0, communicator=communicator)


def text_trainer(name: str, *, communicator: RankGrid | None = None) -> TrainingLoop:
    """Of two epochs of four steps, of a transformer with dropout, on random texts of different lengths."""
    count, length, vocabulary = BATCH * BATCHES, 7, 20
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocabulary, (count, length), generator=draws)
    ids[torch.arange(length) >= torch.randint(1, length + 1, (count, 1), generator=draws)] = 0
    source = ArraySource(ids, torch.arange(count) % CLASSES, [str(number) for number in range(CLASSES)])
    torch.manual_seed(0)
    network = NetworkSettings((8, 8, 8), 4, kind="transformer", heads=2, head=6, dropout=0.1)
    method = build(name, TextShape(length, vocabulary), CLASSES, network, {}).double()
    settings = TrainingSettings(epochs=2, batch_size=BATCH, schedule="sequential", evaluate_every=10**6)
    optimiser = OptimiserSettings(learning_rate=0.01)
    return TrainingLoop(method, source, source, settings, optimiser, seed=0, communicator=communicator)


def trained(*about: Any, **more: Any) -> TrainingLoop:
    """What `own_trainer` makes of this, at the end of the training."""
    made = own_trainer(*about, **more)
    assert made.run(lambda: None, lambda epoch: None)
    return made


def assert_same_state(one: TrainingLoop, other: TrainingLoop) -> None:
    """Parameters, buffers, the optimisers' memory, losses."""
    mine, others = one.state()[0], other.state()[0]
    assert mine.keys() == others.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, others[name], rtol=1e-7, atol=1e-12, msg=lambda text, name=name: name + text)
