"""The contract of a schedule: in which order the layers work on the batches."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from faustnet.errors import FaustnetError
from faustnet.methods import LocalMethod, Method, Source
from faustnet.training.optimisers import OptimiserSettings, remembered
from faustnet.training.schedules.feed import Feed, feed_from
from faustnet.training.schedules.recording import Plan, Repeated


class Schedule(ABC):
    """Trains a method's layers, batch by batch. One stage after the other gets all of the epochs.

    An epoch: `begin`, then `step` for each batch, then `drain`. Nothing in a step waits for the device, and on a GPU all
    of it is recorded once and replayed: choosing the images, distorting them, every layer's work, the learning rate.
    """

    name: ClassVar[str]
    stages: int = 1
    stage: int
    feed: Feed  # what batches of images come from
    totals: Tensor  # (layers,): each layer's losses, summed over the batches since they were last set to zero

    def __init__(self, method: Method, train: Source, optimiser: OptimiserSettings):
        self.method, self.train, self.settings = method, train, optimiser
        self.device = train.labels.device
        self.feed = feed_from(train)
        self.ticks = Repeated(self._work, self._all_changes, supplied=lambda ticks: self.feed.supplied(ticks))

    def enter(self, stage: int) -> None:
        """Begin a stage, with a fresh optimiser."""
        self.release()
        self.stage = stage
        self.plan = Plan(self.device)
        self._make_ready()
        self.totals = torch.zeros(len(self.layers), device=self.device)
        self.ticks.recorded = self._recordable

    def release(self) -> None:
        """Let go of what was recorded, and of the memory that it takes; the next steps are recorded anew."""
        self.ticks.recordings.clear()

    @property
    def about(self) -> str:
        """What a user is told of it."""
        return self.name

    @property
    @abstractmethod
    def layers(self) -> range:
        """Whose losses a step of this stage gives."""

    @abstractmethod
    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        """The positions of an epoch's images, (T, B), and its learning rates, (T,); `step` goes on with batch `first`."""

    @abstractmethod
    def step(self) -> None:
        """Take in the next batch; on a GPU the work on it may wait for the next steps, or for `drain`."""

    @abstractmethod
    def drain(self) -> None:
        """Bring every layer as far as the first one; `begin` comes next."""

    @property
    def _recordable(self) -> bool:
        fetched = isinstance(self.method, LocalMethod) and self.method.draws and self.feed.streams
        return self.device.type == "cuda" and not fetched

    @abstractmethod
    def _make_ready(self) -> None:
        """Make what this stage needs."""

    @abstractmethod
    def _work(self, ticks: int) -> None:
        """What is done at so many ticks, each with a row of the plan."""

    def _all_changes(self) -> list[Tensor]:
        return [self.plan.position, self.totals, *self._changes()]

    @abstractmethod
    def _changes(self) -> list[Tensor]:
        """All that `_work` changes beside the plan and the totals."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What the optimiser remembers of each parameter, by the parameter's name and torch's word for it."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state of a schedule that was in the same stage."""


class OneOptimiser(Schedule):
    """A schedule whose layers all take their steps together, by one of torch's optimisers."""

    optimiser: Optimizer

    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        self.plan.lay_out([batches, rates], first)

    def step(self) -> None:
        self.ticks.once_more()

    def drain(self) -> None:
        self.ticks.catch_up()

    def _work(self, ticks: int) -> None:
        for _ in range(ticks):
            self._tick()

    @abstractmethod
    def _tick(self) -> None:
        """The work on one batch."""

    def _take_step(self, rate: Tensor) -> None:
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def _changes(self) -> list[Tensor]:
        rates = [group["lr"] for group in self.optimiser.param_groups]
        return [*self.method.parameters(), *self.method.buffers(), *remembered(self.optimiser), *rates]

    def state(self) -> dict[str, Tensor]:
        names = self._parameter_names()
        memory = self.optimiser.state_dict()["state"]
        return {f"{names[n]}/{word}": tensor for n, values in memory.items() for word, tensor in values.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        numbers = {name: number for number, name in enumerate(self._parameter_names())}
        shapes = {name: parameter.shape for name, parameter in self.method.named_parameters()}
        if not tensors:  # it had taken no step
            return
        whole = self.optimiser.state_dict()
        whole["state"] = {}
        for key, tensor in tensors.items():
            name, word = key.split("/")
            if tensor.shape not in ((), shapes[name]):
                raise ValueError(f"the optimiser's {word} of {name} is of another network")
            whole["state"].setdefault(numbers[name], {})[word] = tensor
        if len(whole["state"]) != len(numbers):
            raise ValueError("the optimiser remembers some parameters only")
        self.optimiser.load_state_dict(whole)

    def _parameter_names(self) -> list[str]:
        """In the optimiser's order."""
        names = {parameter: name for name, parameter in self.method.named_parameters()}
        return [names[parameter] for group in self.optimiser.param_groups for parameter in group["params"]]


def local(method: Method, schedule: str) -> LocalMethod:
    """The method, if its layers can be trained apart."""
    if not isinstance(method, LocalMethod):
        raise FaustnetError(
            f"The layers of {method.name} are trained together, so there is no {schedule} schedule: use sequential."
        )
    return method
