"""The contract of a schedule: in which order the layers process the batches."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from faustnet.errors import FaustnetError
from faustnet.methods import LocalMethod, Method, Source
from faustnet.nn.modules import Convolution
from faustnet.system.heap import keep_freed_memory
from faustnet.training.optimisers import AnyOptimiser
from faustnet.training.schedules.feed import Feed, feed_from
from faustnet.training.schedules.step_graph import StepGraph, StepTable


class Schedule(ABC):
    """Trains a method's layers, batch by batch.

    An epoch is `begin`, one `step` per batch, then `drain`. Nothing in a step waits for the device. On a GPU a step is
    recorded once as a CUDA graph and replayed: choosing and augmenting the images, the work of all layers, the updates.

    Training has one or several `phases`, each with all of the epochs; the greedy schedule has one for each layer.
    """

    name: ClassVar[str]
    long_steps_together: ClassVar[int] = 1  # on a GPU, the number of long steps that are recorded together
    phases: int = 1
    phase: int
    feed: Feed  # where batches of images come from
    totals: Tensor  # (layers,): the sum of each layer's losses since it was last set to zero

    def __init__(self, method: Method, train: Source, optimiser: AnyOptimiser):
        self.method, self.train, self.optimiser = method, train, optimiser
        self.device = train.labels.device
        self.feed = feed_from(train)
        supplied = lambda steps: self.feed.supplied(steps)  # noqa: E731
        self.graph = StepGraph(self._train_batches, self._all_changes, supplied, self.long_steps_together)

    def enter(self, phase: int) -> None:
        """Begin a phase, with a fresh optimiser."""
        if self.device.type == "cpu":
            keep_freed_memory()
        if self.device.type == "cuda":
            for module in self.method.modules():
                if isinstance(module, Convolution):
                    module.order_like_maps()
        self.release()
        self.phase = phase
        self.table = StepTable(self.device)
        self._set_up()
        self.totals = torch.zeros(len(self.layers), device=self.device)
        self.graph.recorded = self._recordable

    def release(self) -> None:
        """Free the recorded steps and their memory; the next steps are recorded anew."""
        self.graph.clear()

    @property
    def about(self) -> str:
        """Description for the user."""
        return self.name

    @property
    @abstractmethod
    def layers(self) -> range:
        """The layers whose losses a step of this phase computes."""

    @abstractmethod
    def begin(self, batches: Tensor, rates: Tensor, first: int) -> None:
        """Take the positions of an epoch's images (T, B) and its learning rates (T,); `step` starts with batch `first`."""

    @abstractmethod
    def step(self) -> None:
        """Process the next batch. On a GPU the work may be deferred to the next steps, or to `drain`."""

    @abstractmethod
    def drain(self) -> None:
        """Finish all work on the batches so far, in every layer."""

    @property
    def _recordable(self) -> bool:
        reads_files = isinstance(self.method, LocalMethod) and self.method.draws and self.feed.streams
        return self.device.type == "cuda" and not reads_files and self.optimiser.recordable

    @abstractmethod
    def _set_up(self) -> None:
        """Create what this phase needs."""

    @abstractmethod
    def _train_batches(self, count: int) -> None:
        """Do the work of `count` steps, each with one row of the table."""

    def _all_changes(self) -> list[Tensor]:
        return [self.table.position, self.totals, *self._changes()]

    @abstractmethod
    def _changes(self) -> list[Tensor]:
        """Return all tensors that a step changes, beside the table and the totals."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's state, by the name of the parameter and torch's name of the state."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state of a schedule in the same phase."""


def local(method: Method, schedule: str) -> LocalMethod:
    """Return the method if its layers can be trained separately."""
    if not isinstance(method, LocalMethod):
        raise FaustnetError(
            f"training.schedule must be sequential for {method.name}, whose layers are trained together, got {schedule}."
        )
    return method
