"""In which order the layers work on the batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faustnet.errors import FaustnetError
from faustnet.methods import LocalMethod, Method, Source

MakeOptimiser = Callable[[Iterable[nn.Parameter]], Optimizer]
CHUNK = 1024  # images walked at once when activations are cached


class Schedule(ABC):
    """Trains a method's layers, batch by batch. One stage after the other gets all of the epochs."""

    name: ClassVar[str]
    stages: int
    stage: int
    optimiser: Optimizer  # of this stage

    def __init__(self, method: Method, train: Source, make_optimiser: MakeOptimiser):
        self.method = method
        self.train = train
        self.make_optimiser = make_optimiser

    @abstractmethod
    def enter(self, stage: int) -> None:
        """Begin a stage, with a fresh optimiser."""

    @property
    @abstractmethod
    def layers(self) -> range:
        """Whose losses a step of this stage gives."""

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps to come."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def state(self) -> dict[str, Tensor]:
        """What the optimiser remembers of each parameter, by the parameter's name and its own word for it."""
        names = self._parameter_names()
        remembered = self.optimiser.state_dict()["state"]
        return {f"{names[n]}/{word}": tensor for n, values in remembered.items() for word, tensor in values.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state of a schedule that was in the same stage."""
        numbers = {name: number for number, name in enumerate(self._parameter_names())}
        shapes = {name: parameter.shape for name, parameter in self.method.named_parameters()}
        whole = self.optimiser.state_dict()
        for key, tensor in tensors.items():
            name, word = key.split("/")
            if tensor.shape not in ((), shapes[name]):
                raise ValueError(f"the optimiser's {word} of {name} is of another network")
            whole["state"].setdefault(numbers[name], {})[word] = tensor
        if len(whole["state"]) not in (0, len(numbers)):
            raise ValueError("the optimiser remembers some parameters only")
        self.optimiser.load_state_dict(whole)

    def _parameter_names(self) -> list[str]:
        """In the optimiser's order."""
        names = {parameter: name for name, parameter in self.method.named_parameters()}
        return [names[parameter] for group in self.optimiser.param_groups for parameter in group["params"]]

    @abstractmethod
    def step(self, index: Tensor) -> Tensor:
        """Train on the images at these positions, (B,). Returns the losses, (layers,), without waiting for the device."""


class Sequential(Schedule):
    """Algorithm 1: every batch goes through all layers. Each layer passes on what it computed before its update, so it
    makes no difference that all updates are done together at the end."""

    name = "sequential"

    def __init__(self, method: Method, train: Source, make_optimiser: MakeOptimiser):
        super().__init__(method, train, make_optimiser)
        self.stages = 1

    def enter(self, stage: int) -> None:
        self.stage = stage
        self.optimiser = self.make_optimiser(self.method.parameters())

    @property
    def layers(self) -> range:
        return range(len(self.method.network) if isinstance(self.method, LocalMethod) else 1)

    def step(self, index: Tensor) -> Tensor:
        losses = []
        for loss in self.method.losses(self.train.augmented(index), self.train.labels[index]):
            loss.backward()
            losses.append(loss.detach())
        self.optimiser.step()
        self.optimiser.zero_grad()
        return torch.stack(losses)


class Greedy(Schedule):
    """Each layer to its end, then the next one, on the activations that the finished layers gave once and for all."""

    name = "greedy"

    def __init__(self, method: Method, train: Source, make_optimiser: MakeOptimiser):
        super().__init__(method, train, make_optimiser)
        if not isinstance(method, LocalMethod):
            raise FaustnetError(f"{method.name} cannot train one layer alone, as the greedy schedule does: use sequential.")
        self.method: LocalMethod = method
        self.stages = len(method.network)
        self.stage = 0
        self.received: Source = train  # what the layer of this stage is fed from

    def enter(self, stage: int) -> None:
        training = self.method.training
        self.method.eval()
        while self.stage < stage:
            self.received = self._after(self.method.network[self.stage])
            self.stage += 1
        self.method.train(training)
        self.method.feed_from(self.received)
        self.optimiser = self.make_optimiser(self.method.network[stage].parameters())

    @property
    def layers(self) -> range:
        return range(self.stage, self.stage + 1)

    def step(self, index: Tensor) -> Tensor:
        y = self.received.labels[index]
        rows = self.method.rows(self.received.augmented(index), y)
        _, embedding = self.method.network[self.stage](rows)
        loss = self.method.local_loss(embedding, y)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss.detach().unsqueeze(0)

    @torch.no_grad()
    def _after(self, layer: nn.Module) -> "CachedActivations":
        """What this layer makes of all that it was fed from: (n, w), or (n, V, w) where an image has V variants."""
        first = self.received is self.train
        everything = torch.arange(len(self.train.labels), device=self.train.labels.device)
        passed: Tensor | None = None
        for chunk in everything.split(CHUNK):
            x = self.received.plain(chunk)
            activation, _ = layer(self.method.variants(x) if first else x.flatten(0, -2))
            variants = len(activation) // len(chunk)
            shape = (variants,) if variants > 1 else ()
            if passed is None:
                passed = activation.new_empty(len(everything), *shape, activation.shape[1])
            passed[chunk] = activation.view(len(chunk), *shape, -1)
        assert passed is not None
        return CachedActivations(passed, self.train.labels, self.train.class_names)


class CachedActivations:
    """A layer's activations of the training set, in place of the images."""

    def __init__(self, activations: Tensor, labels: Tensor, class_names: Sequence[str]):
        self.activations = activations
        self.labels = labels
        self.class_names = class_names

    def plain(self, index: Tensor) -> Tensor:
        return self.activations[index]

    augmented = plain


SCHEDULES: dict[str, type[Schedule]] = {schedule.name: schedule for schedule in (Sequential, Greedy)}
