"""The contract of a method: what is fed in, each layer's loss, how a class is predicted."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError, require
from faustnet.nn.network import Network, NetworkSettings, Shape

CHUNK = 1024  # images that are walked at once when all of them are
SETTLED = 1024  # training images whose statistics batch norms take on
PLACES = 1024  # in a batch, before shares of MixUp repeat


class Source(Protocol):
    """All that a method knows of data: rows for positions in the training set, on the device."""

    @property
    def labels(self) -> Tensor:
        """(n,)"""
        ...

    @property
    def class_names(self) -> Sequence[str]: ...

    def plain(self, index: Tensor) -> Tensor:
        """Scaled images, (b, …)."""
        ...

    def augmented(self, index: Tensor) -> Tensor:
        """Scaled images, each distorted anew, (b, …)."""
        ...


@dataclass(frozen=True)
class PredictionSettings:
    """How votes become a prediction. With `mirror` an image is scored together with its mirror image, and a voter's scores
    are the mean of the two. `weights` say how much each voter counts in the sum; none: all alike."""

    mirror: bool = False
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(0 <= weight < math.inf for weight in self.weights) or (self.weights and not any(self.weights)):
            raise FaustnetError(
                f"The weights of votes are 0 or more and not all 0, but they are {list(self.weights)}: "
                "give one for each voter, or none to count all alike."
            )


class Method(nn.Module, ABC):
    """One row of the paper's table.

    A method's options are the keyword arguments of its constructor, and their defaults say what type they have.
    Everything needed to predict lies in its parameters and buffers, so its `state_dict` is the whole model.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def __init__(self, network: Network, classes: int):
        super().__init__()
        self.network = network
        self.classes = classes
        self.prediction = PredictionSettings()

    @classmethod
    @abstractmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        """The layers that this method trains, for images of this shape and so many classes."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The options' names and defaults."""
        parameters = inspect.signature(cls).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

    @property
    def voters(self) -> list[str]:
        """Who answers: the rows of `scores`."""
        return [f"layer {i + 1}" for i in range(len(self.network))]

    @property
    def learners(self) -> list[str]:
        """Who has a loss, in the order of `losses`."""
        return [f"layer {i + 1}" for i in range(len(self.network))]

    @property
    def forward_passes(self) -> int:
        """Passes through the network for one image's scores."""
        return 1

    def start(self, train: Source) -> None:
        """Before training: choose representatives, index the classes. Draws from torch's global generator."""

    def enter_epoch(self, share: float) -> None:
        """Before an epoch's batches: 0 is the first epoch, 1 the last, of each layer's own if they train one by one. What
        changes here is changed in place, for a recorded step reads it where it was."""

    @abstractmethod
    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """One loss for each layer in order, from a batch of images (B, …) and labels (B,); a few at a time, (n,)."""

    def make_ready(self, train: Source) -> None:
        """All that prediction needs of the training images. Called before every evaluation, in evaluation mode and without
        gradients."""
        if self.network.settles:
            index = some_positions(train, SETTLED)
            self.network.settle(self.typical(train.plain(index), train.labels[index]))
        self.finish(train)

    def finish(self, train: Source) -> None:
        """Make ready to predict, with a network that is: cache references, fit a read-out. It draws no random numbers and
        builds on nothing that an earlier call left."""

    def unlabelled(self, x: Tensor) -> Tensor:
        """Images as the layers see them where no label is known. (B, …) → (B, d)"""
        return x.flatten(1)

    def typical(self, x: Tensor, y: Tensor) -> Tensor:
        """Rows like those in training, but not by chance: batch norms take on their statistics. (B, …), (B,) → (R, d)"""
        return self.unlabelled(x)

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """How much each voter believes in each class; larger is better. (B, …) → (voters, B, C)"""

    def vote_by(self, settings: PredictionSettings) -> None:
        """From now on predict in this way."""
        count = len(self.voters)
        if settings.weights and len(settings.weights) != count:
            raise FaustnetError(
                f"There are {len(settings.weights)} weights of votes, but {self.name} answers from {count} here: "
                f"give {count} as prediction.weights, or none."
            )
        self.prediction = settings

    @property
    def weights(self) -> tuple[float, ...]:
        """How much each voter counts."""
        return self.prediction.weights or (1.0,) * len(self.voters)

    def votes(self, x: Tensor) -> Tensor:
        """The scores that a prediction is made of: those of images, or their means with those of the mirror images.
        (B, c, h, w) → (voters, B, C)"""
        return (self.scores(x) + self.scores(x.flip(-1))) / 2 if self.prediction.mirror else self.scores(x)

    @torch.no_grad()
    def predict(self, x: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """The class with the largest sum of votes, of all voters or those numbered in `layers` from 1. (B, …) → (B,)"""
        return self.joined(self.votes(x), layers).argmax(dim=1)

    def joined(self, scores: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """The votes of all voters by their weights, or of those numbered in `layers` from 1 all alike, as one.
        (voters, B, C) → (B, C)"""
        if layers is None:
            return self.weighted(scores).sum(dim=0)
        if not layers or not set(layers) <= set(range(1, len(scores) + 1)) or len(set(layers)) < len(layers):
            raise FaustnetError(
                f"There is no such set of layers as {list(layers)}: {self.name} answers from {len(scores)}, numbered from 1."
            )
        return scores[[layer - 1 for layer in layers]].sum(dim=0)

    def weighted(self, scores: Tensor) -> Tensor:
        """Votes as much as they count. (voters, B, C) → the same"""
        return scores * scores.new_tensor(self.weights)[:, None, None] if self.prediction.weights else scores


class LocalMethod(Method):
    """A method whose layers need nothing from each other: schedules may train them in any order that keeps the rows'."""

    draws: ClassVar[bool] = False  # whether rows are made of more images than the batch's, drawn anew in each step

    def feed_from(self, train: Source) -> None:
        """Take what anchors are compared with from here: from the images, or from a layer's activations of them. A
        method whose rows are made of the batch alone has nothing to do."""

    @abstractmethod
    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """What walks through the layers together: anchors first, then what they are compared with. (B, …) → (R, d)"""

    @abstractmethod
    def local_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        """The losses of n layers, these ones, each from its own embedding of those rows: (n, R, e), (n, B) → (n,)."""

    def variants(self, x: Tensor) -> Tensor:
        """Every row that an image can become, so that activations can be cached. (B, …) → (B · V, d), image by image"""
        return x.flatten(1)

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """One loss for each layer; the graph behind it spans that layer alone."""
        yield from self.losses_from(self.network.walk(self.rows(x, y)), y)

    def losses_from(self, embeddings: Iterable[Tensor], y: Tensor, first: int = 0) -> Iterator[Tensor]:
        """The losses of consecutive layers, from number `first` on, by their embeddings, (R, e), as these come."""
        for group in alike(embeddings, self.network.together):
            layers = slice(first, first + len(group))
            yield self.local_loss(torch.stack(group), y.expand(len(group), -1), layers)
            first = layers.stop


def alike(tensors: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Consecutive tensors of one shape as lists, of at most so many; a full one is there before the next tensor is asked
    for."""
    found: list[Tensor] = []
    for tensor in tensors:
        if found and tensor.shape != found[0].shape:
            yield found
            found = []
        found.append(tensor)
        if len(found) == most:
            yield found
            found = []
    if found:
        yield found


class MixUp(nn.Module):
    """Blends every image of a batch with the next one. An image's own share comes from Beta(α, α), or is one less that, if
    that is larger: so its own label counts most.

    A share belongs to a place in the batch, where each epoch puts other images: so all layers know it, whenever they come
    to see the batch.
    """

    shares: Tensor  # (PLACES,)

    def __init__(self, alpha: float):
        super().__init__()
        require(alpha >= 0, f"The strength of MixUp is 0 or more, not {alpha}.")
        self.on = alpha > 0
        drawn = torch.distributions.Beta(alpha, alpha).sample((PLACES,)) if self.on else torch.ones(0)
        self.register_buffer("shares", torch.maximum(drawn, 1 - drawn), persistent=False)

    def own(self, batch: int) -> Tensor | None:
        """The shares of a batch of so many; none where nothing is mixed. → (batch,)"""
        return self.shares.repeat(-(-batch // PLACES))[:batch] if self.on else None


def check_label_smoothing(share: float) -> None:
    require(0 <= share < 1, f"Label smoothing lies from 0 to below 1, not at {share}.")


def over_all(train: Source, function: Callable[[Tensor], Tensor]) -> Tensor:
    """What becomes of every training image, a few at a time. (b, …) → (b, d) gives (n, d)"""
    everything = torch.arange(len(train.labels), device=train.labels.device)
    return torch.cat([function(train.plain(chunk)) for chunk in everything.split(CHUNK)])


def some_positions(train: Source, most: int) -> Tensor:
    """Of training images, at equal distances. → (≤ most,)"""
    count = len(train.labels)
    return torch.arange(0, count, -(-count // most), device=train.labels.device)


def join_rows(parts: Iterable[Tensor]) -> Tensor:
    """Images or activations as the rows of one matrix. (b_i, …) → (Σ b_i, d)"""
    return torch.cat([part.flatten(1) for part in parts])
