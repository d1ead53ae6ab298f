"""The contract of a method: what is fed in, each layer's loss, how a class is predicted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from faustnet._deprecated import moved_names
from faustnet.data.sources import checked_labels, source_from
from faustnet.errors import FaustnetError, require
from faustnet.methods.arguments import check_network, checked_batch, layer_numbers
from faustnet.methods.modes import evaluating
from faustnet.methods.options import option_types_of, options_of
from faustnet.methods.prediction import PredictionSettings
from faustnet.methods.source import Source, some_positions
from faustnet.methods.state_file import read_state, write_state
from faustnet.methods.stepping import Stepping, layer_optimisers, step_all, with_gradients
from faustnet.nn.architectures import NetworkSettings, Shape
from faustnet.nn.network import Network
from faustnet.nn.search import Decisions, decisions_from

STATISTICS_IMAGES = 1024  # training images that the statistics of batch norms are computed from


class Method(nn.Module, ABC):
    """Base class of methods. A method defines what passes through the layers, the losses, and how a class is predicted.

    The options of a method are the keyword-only arguments of its constructor, with annotated types. Parameters and buffers
    contain everything that prediction needs, so the `state_dict` is the whole model.

    Attributes:
        name: The value of `--method`.
        title: The name in tables; by default `name`.
        summary: One line for `faustnet methods`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str] = ""
    is_local: ClassVar[bool] = False  # whether each layer is trained by a loss of its own; see `LocalMethod`

    _ready_versions: tuple[int, ...] | None = None  # of all parameters, when `make_ready` was called last
    _is_prepared = False  # whether `prepare` was called
    _stepping: Stepping | None = None  # the optimisers that `train_step` has checked

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" in vars(cls) and "title" not in vars(cls):
            cls.title = cls.name

    def __init__(self, network: Network, classes: int):
        super().__init__()
        check_network(network, classes)
        self.network = network
        self.classes = classes
        self.prediction = PredictionSettings()

    @classmethod
    @abstractmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        """Return the layers that this method trains, for images of this shape."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return the options and their defaults."""
        return dict(options_of(cls))

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Return the annotated types of the options."""
        return dict(option_types_of(cls))

    @classmethod
    def unused_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the names of the options that have no effect with these values of all options, each with the name of the
        option whose value is the reason."""
        return {}

    @property
    def voters(self) -> list[str]:
        """Names of the voters, the parts of the method that score every class: by default the layers."""
        return [f"layer {i + 1}" for i in range(len(self.network))]

    @property
    def learners(self) -> list[str]:
        """Names of the parts that have a loss, in the order of `losses`: by default the layers."""
        return [f"layer {i + 1}" for i in range(len(self.network))]

    @property
    def input_shape(self) -> torch.Size:
        """Shape of one input: by default that of the network's."""
        return self.network.example.shape[1:]

    @property
    def forward_passes(self) -> int:
        """Number of forward passes that the scores of one image take."""
        return 1

    def start(self, train: Source) -> None:
        """Prepare for training: choose representatives, index the classes. Draws from torch's global generator."""

    def enter_epoch(self, progress: float) -> None:
        """Prepare for an epoch; `progress` is 0 in the first and 1 in the last epoch of a layer. Change tensors in place:
        a recorded CUDA graph keeps their addresses."""

    @abstractmethod
    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Yield the losses of the layers in order, one or several at a time (n,), for images (B, …) and labels (B,)."""

    def prepare(self, train: Any) -> None:
        """Prepare for your own training loop: choose references from the training data, of any kind that `Trainer` takes."""
        self.start(source_from(train, "train", self.network.example, self.classes))
        self._is_prepared = True

    def optimisers(self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """Return an optimiser for each layer, or a single one if the layers are trained together, for `train_step`."""
        return layer_optimisers(self, make, local=self.is_local)

    def train_step(self, x: Tensor, y: Tensor, optimisers: Sequence[torch.optim.Optimizer]) -> Tensor:
        """Train every layer on one batch, and return the losses. (B, …), (B,) → (layers,)

        Call `prepare` before the first step, and `make_ready` after the last one.

        Args:
            x: Inputs; they get the type and the device of the network's example.
            y: Their classes, whole numbers from 0.
            optimisers: Those of the method `optimisers`, or your own: together they have all trainable parameters.
        """
        require(self._is_prepared, f"{self.name} is not ready to train: call prepare(train) before the first train_step.")
        if self._stepping is None or not self._stepping.holds(self, optimisers):
            self._stepping = Stepping(self, optimisers)
        x = self._batch(x, wait=False)
        if not (isinstance(y, Tensor) and y.is_cuda):  # reading values would wait for the GPU
            y = checked_labels(y, self.classes, "the batch y").to(x.device)
        require(len(x) == len(y), f"y must have one label per sample, got {len(x)} samples and {len(y)} labels.")
        self.train()
        found = []
        with with_gradients():
            for loss in self.losses(x, y):
                if loss.requires_grad:  # not that of a frozen layer
                    loss.sum().backward()
                    self._stepping.note_gradients(self)
                    step_all(optimisers)
                found.append(loss.detach())
        self._stepping.end_step()
        return torch.cat(found)

    def make_ready(self, train: Any) -> None:
        """Compute what prediction needs from the training data: batch norm statistics, and `finish`.

        The trainer calls it before every evaluation. In your own training loop, call it before predicting, and again after
        further training steps."""
        train = source_from(train, "train", self.network.example, self.classes)
        for name, parameter in self.named_parameters():
            require(
                bool(parameter.isfinite().all()),
                f"{name} is no longer finite: train again, with a smaller learning rate.",
            )
        with evaluating(self):
            if self.network.has_batch_norm:
                index = some_positions(train, STATISTICS_IMAGES)
                self.network.update_statistics(self.typical(train.plain(index), train.labels[index]))
            self.finish(train)
        self.mark_ready()

    def finish(self, train: Source) -> None:
        """Compute references or fit a linear classifier with the trained network. It must not draw random numbers or depend
        on an earlier call."""

    @property
    def needs_make_ready(self) -> bool:
        """Whether prediction depends on `make_ready`."""
        return self.network.has_batch_norm or type(self).finish is not Method.finish

    def mark_ready(self, ready: bool = True) -> None:
        """Record whether the references and statistics were computed with the current weights."""
        self._ready_versions = tuple(parameter._version for parameter in self.parameters()) if ready else None

    def check_ready(self) -> None:
        """Raise an error if the references and statistics were not computed with the current weights."""
        if torch.compiler.is_exporting() or not self.needs_make_ready:
            return
        require(
            self.is_ready,
            f"{self.name} is not ready to predict: after training, call make_ready(train).",
        )

    @property
    def is_ready(self) -> bool:
        """Whether the references and statistics were computed with the current weights."""
        versions, known = (parameter._version for parameter in self.parameters()), self._ready_versions
        return known is not None and all(now <= then for now, then in zip(versions, known, strict=True))

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        result = super().load_state_dict(*arguments, **options)
        self.mark_ready()
        return result

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_ready_versions": () if self.is_ready else None}
        state.pop("_stepping", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies and pickles have new version counters. Pickles of version 0.1 contain trained methods only."""
        super().__setstate__(state)
        self.mark_ready(state.get("_ready_versions", ()) is not None)

    def unlabelled(self, x: Tensor) -> Tensor:
        """Return the rows of images without a label. (B, …) → (B, …)"""
        return x

    def typical(self, x: Tensor, y: Tensor) -> Tensor:
        """Return rows like those of training, without randomness, for batch norm statistics. (B, …), (B,) → (R, …)"""
        return self.unlabelled(x)

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """Return the score of each class by each voter; larger is better. (B, …) → (voters, B, C)"""

    def set_prediction(self, settings: PredictionSettings) -> None:
        """Use these settings for predictions."""
        count = len(self.voters)
        if settings.weights and len(settings.weights) != count:
            raise FaustnetError(
                f"prediction.weights must have {count} weights for {self.name}, one for each of {', '.join(self.voters)}, "
                f"got {len(settings.weights)}."
            )
        shape = tuple(self.network.example.shape[1:])
        require(
            not settings.mirror or len(shape) == 3,
            f"prediction.mirror is for images, (channels, height, width), but the inputs of this network have shape {shape}"
            ": leave it out.",
        )
        self.prediction = settings

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each voter."""
        count = len(self.voters)
        if self.prediction.layers == "last":
            return (0.0,) * (count - 1) + (1.0,)
        return self.prediction.weights or (1.0,) * count

    def votes(self, x: Tensor) -> Tensor:
        """Return the scores that a prediction is made from: those of the images, or averaged with those of their mirror
        images. (B, c, h, w) → (voters, B, C)"""
        self.check_ready()
        if self.prediction.mirror:
            return (self._checked_scores(x) + self._checked_scores(x.flip(-1))) / 2
        return self._checked_scores(x)

    def _checked_scores(self, x: Tensor) -> Tensor:
        """Return `scores`, or raise an error if their shape is not (voters, B, C)."""
        scores = self.scores(x)
        if not torch.compiler.is_exporting():  # where a comparison would fix the size of the batch
            expected = len(self.voters), len(x), self.classes
            require(
                scores.shape == expected,
                f"{type(self).__name__}.scores must have the shape (voters, B, C), here {expected}, got "
                f"{tuple(scores.shape)}: return the score of every class by every voter.",
            )
        return scores

    def decide(self, x: Tensor, weights: Sequence[float]) -> Decisions:
        """Predict images from the votes of all voters with these weights. (B, …)"""
        return decisions_from(self.votes(x), weights)

    def voter_weights(self, layers: Sequence[int] | None = None) -> list[float]:
        """Return the weight of each voter in a prediction from all voters, or from those in `layers`, numbered from 1."""
        if layers is None:
            return list(self.weights)
        count = len(self.voters)
        chosen = layer_numbers(layers, count, self.name)
        return [float(number in chosen) for number in range(1, count + 1)]

    def predict(self, x: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """Return the class with the largest sum of scores, over all voters or those in `layers`, numbered from 1.
        (B, …) → (B,)"""
        with evaluating(self):
            return self.joined(self.votes(self._batch(x)), layers).argmax(dim=1)

    def embed(self, x: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of all layers, or of those in `layers`, numbered from 1, one after the other.
        (B, …) → (B, Σ e_i)"""
        numbers = layer_numbers(layers, len(self.network), self.name)
        if self.network.has_batch_norm:
            self.check_ready()
        with evaluating(self):
            found = list(self.network.embeddings(self.unlabelled(self._batch(x))))
        return torch.cat([found[number - 1] for number in numbers], dim=1)

    def save(self, path: str | PathLike[str]) -> None:
        """Write all weights and references to a safetensors file, which `load` reads."""
        write_state(self, path)

    def load(self, path: str | PathLike[str]) -> None:
        """Read the weights and references of a method with the same network and classes."""
        read_state(self, path)

    def _batch(self, x: Any, *, wait: bool = True) -> Tensor:
        return checked_batch(x, self.input_shape, self.network.example, wait=wait)

    def joined(self, scores: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """Return the weighted sum of the scores of all voters, or the plain sum over those in `layers`, numbered from 1.
        (voters, B, C) → (B, C)"""
        if layers is None:
            return self.weighted(scores).sum(dim=0)
        return scores[[layer - 1 for layer in layer_numbers(layers, len(scores), self.name)]].sum(dim=0)

    def weighted(self, scores: Tensor) -> Tensor:
        """Multiply scores by the weights of their voters. (voters, B, C) → the same shape"""
        weights = self.weights
        return scores if set(weights) == {1.0} else scores * scores.new_tensor(weights)[:, None, None]


__getattr__ = moved_names(__name__)
