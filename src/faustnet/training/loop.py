"""Training: epochs, learning rates, history, and a state that can be saved and restored at any batch."""

import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from faustnet.data.sources import StreamSource
from faustnet.errors import FaustnetError, require
from faustnet.methods import LocalMethod, Method, Source
from faustnet.methods.stepping import with_gradients
from faustnet.nn.old_names import current_names
from faustnet.nn.precision import matmul_precision, set_compute_dtype
from faustnet.system.randomness import generator_states, seeded, set_generator_states
from faustnet.training.checks import check_trainable
from faustnet.training.diagnosis import Diagnosis
from faustnet.training.distributed import Communicator, RankGrid, RankPart, SingleProcess
from faustnet.training.evaluation import Evaluation, evaluate, evaluating
from faustnet.training.history import Epoch
from faustnet.training.optimisers import AnySettings
from faustnet.training.schedules import SCHEDULES, Schedule, Sequential
from faustnet.training.settings import TrainingSettings


class Diverged(FaustnetError):
    """A loss or a weight is no longer finite."""


class TrainingLoop:
    """Trains one method. Training can be stopped and continued without any difference to the result.

    On several ranks, every rank has a trainer. The first one has the history and the state of the whole training.

    Args:
        method: The method, on the device of `train`.
        train: Training images.
        held_out: Images that each evaluation uses.
        settings: Number of epochs, batch size, schedule and so on.
        optimiser: Optimiser and learning-rate schedule.
        seed: Random seed of shuffling, augmentation and dropout.
        communicator: Connection to the other ranks; None for a single process.
        evaluate_last: Whether the last epoch ends with an evaluation in any case.
    """

    def __init__(
        self,
        method: Method,
        train: Source,
        held_out: Source,
        settings: TrainingSettings,
        optimiser: AnySettings,
        seed: int,
        communicator: Communicator | None = None,
        *,
        evaluate_last: bool = True,
    ):
        self.method, self.train, self.held_out = method, train, held_out
        self.settings, self.optimiser, self.seed = settings, optimiser, seed
        self.communicator = communicator or SingleProcess()
        self.evaluate_last = evaluate_last
        self.communicator.begin()
        self.device = train.labels.device
        self.batches = len(train.labels) // settings.batch_size  # in an epoch
        self._check_batch_size()
        labels = train.labels.cpu()
        self.members = [(labels == label).nonzero()[:, 0] for label in labels.unique()] if settings.balance else None
        set_compute_dtype(method, settings.precision)
        self.schedule = self._schedule()
        self.history: list[Epoch] = []
        self.batch = 0  # the next batch of this epoch
        self.seconds = 0.0  # spent on this epoch
        self.rate = 0.0  # of the last step
        self.stopping = False
        self.warning: str | None = None  # about the last epoch
        self.evaluation: Evaluation | None = None  # of the method as it is now, on `held_out`
        with seeded(seed + 1, self.device):  # the weights were drawn from `seed`
            method.start(train)
            self._generators = generator_states(self.device)
        losses = check_trainable(method, train, settings.batch_size)
        self.diagnosis = Diagnosis(method.learners, losses, held_out.labels, method.classes)
        self.schedule.enter(0)
        self._trained = self._trainable()  # by the schedule

    def _trainable(self) -> list[Tensor]:
        return [parameter for parameter in self.method.parameters() if parameter.requires_grad]

    def _check_trainable(self) -> None:
        """Refuse parameters that were frozen, unfrozen or replaced, because the schedule would not notice it."""
        now = self._trainable()
        require(
            len(now) == len(self._trained) and all(map(operator.is_, now, self._trained)),
            "The trainable parameters of the network must stay those that the training began with, but some were frozen, "
            "unfrozen or replaced since: make a new Trainer for the changed network.",
        )

    def _check_batch_size(self) -> None:
        size, images, share = self.settings.batch_size, len(self.train.labels), self.settings.validation
        least = 2 if self.method.network.has_batch_norm else 1
        if self.batches < 1 and not isinstance(self.train, StreamSource):
            apart = f" without those that training.validation={share:g} keeps apart" if share else ""
            advice = f": try {max(least, images // 2)}" if images >= least else ""
            raise FaustnetError(
                f"training.batch_size must be at most the number of training images{apart}, {images}, got {size}{advice}."
            )
        if size < least:
            raise FaustnetError(f"training.batch_size must be at least 2 for networks with batch norm, got {size}.")

    def _schedule(self) -> Schedule:
        name, optimiser = self.settings.schedule, self.optimiser.create()
        if isinstance(self.communicator, RankGrid):
            if name == "greedy":
                raise FaustnetError(
                    "training.schedule=greedy supports one process only: use another schedule, or start without torchrun."
                )
            return Sequential(self.method, self.train, optimiser, RankPart(self.method, self.communicator))
        return SCHEDULES[self._schedule_name](self.method, self.train, optimiser)

    @property
    def _schedule_name(self) -> str:
        if self.settings.schedule != "auto":
            return self.settings.schedule
        return "wavefront" if self.device.type == "cuda" and isinstance(self.method, LocalMethod) else "sequential"

    @property
    def notes(self) -> list[str]:
        """What the user should know about how the training runs."""
        if self.device.type == "cuda" and not self.schedule.optimiser.recordable:
            return ["Steps are not recorded as a CUDA graph: use a plain Adam, AdamW or SGD for faster steps."]
        return []

    def extend(self, epochs: int) -> None:
        """Train for more epochs after the present ones. A learning-rate schedule of `OptimiserSettings` is stretched."""
        require(
            self.schedule.phases == 1, "The greedy schedule trains each layer once: make a new trainer to train further."
        )
        self.settings = replace(self.settings, epochs=len(self.history) + epochs)

    @property
    def epochs(self) -> int:
        """Number of epochs in all phases together."""
        return self.settings.epochs * self.schedule.phases

    @property
    def finished(self) -> bool:
        return len(self.history) == self.epochs

    def stop(self) -> None:
        """Make `run` return after the current batch."""
        self.stopping = True

    def run(self, on_batch: Callable[[], None], on_epoch: Callable[[Epoch], None]) -> bool:
        """Train until the end, or until `stop` is called, and return whether the training is complete.

        `on_batch` is called after each batch and `on_epoch` after each epoch, where it may save the state.
        """
        with seeded(self.seed, self.device), with_gradients():
            set_generator_states(self._generators, self.device)
            while not (self.finished or self.communicator.stops_now(self.stopping)):
                self._check_trainable()
                if self.schedule.phase != self._phase:
                    self.schedule.enter(self._phase)
                    self.optimiser.restart()
                with matmul_precision(self.settings.precision):
                    complete = self._train_epoch(on_batch)
                if complete:
                    self._close_epoch()
                self._generators = generator_states(self.device)
                if complete:
                    on_epoch(self.history[-1])
        self.schedule.release()
        return self.finished

    @property
    def _phase(self) -> int:
        """The phase of the next epoch."""
        return min(len(self.history) // self.settings.epochs, self.schedule.phases - 1)

    def _train_epoch(self, on_batch: Callable[[], None]) -> bool:
        """Train on the rest of this epoch, or until a stop, and return whether it is complete. Nothing in the loop waits for
        the device."""
        self.method.train()
        self.method.mark_ready(False)
        self.evaluation = None
        begin = time.perf_counter()
        epoch, size = len(self.history), self.settings.batch_size
        shuffle = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        count = len(self.train.labels)
        order = torch.randperm(count, generator=shuffle) if self.members is None else balanced(self.members, count, shuffle)
        place = epoch % self.settings.epochs  # in its phase
        self.method.enter_epoch(place / max(1, self.settings.epochs - 1))
        rates = self.optimiser.rates(place, self.settings.epochs, self.batches)
        batches = order[: self.batches * size].view(self.batches, size)
        with self.schedule.feed.reading(batches, self.batch):
            self.schedule.begin(batches, torch.tensor(rates, dtype=torch.float64), self.batch)
            while self.batch < self.batches and not self.communicator.stops(self.stopping):
                self.schedule.step()
                self.batch += 1
                on_batch()
            self.schedule.drain()
        complete = self.batch == self.batches
        if complete:
            self.rate = self.optimiser.used_rate(rates[-1])
            self._check_finite()  # waits for the device
        self.seconds += time.perf_counter() - begin
        return complete

    def _check_finite(self) -> None:
        if what := self._not_finite():
            raise Diverged(
                f"{what} is no longer finite in epoch {len(self.history) + 1}: "
                f"try a learning rate below {self.optimiser.learning_rate:g}, or a warm-up."
            )

    def _not_finite(self) -> str | None:
        for number, loss in zip(self.schedule.layers, self.schedule.totals.tolist(), strict=True):
            if not math.isfinite(loss):
                learners = self.method.learners
                return f"The loss of {learners[number]}" if len(learners) > 1 else "The loss"
        for name, parameter in self.method.named_parameters():
            if not parameter.isfinite().all():
                owner, _, *rest = name.split(".")
                return f"A weight of layer {int(rest[0]) + 1}" if owner == "network" else f"A weight of the {owner}"
        return None

    def _close_epoch(self) -> None:
        """Evaluate, add an epoch to the history, and start the next epoch."""
        losses: list[float | None] = [None] * (len(self.schedule.layers) * self.schedule.phases)
        for layer, loss in zip(self.schedule.layers, self.schedule.totals.tolist(), strict=True):
            losses[layer] = loss / self.batches
        found = [loss for loss in losses if loss is not None]
        self.optimiser.end_epoch(sum(found) / len(found))
        number = len(self.history) + 1
        due = number % self.settings.evaluate_every == 0 or (number == self.epochs and self.evaluate_last)
        alone, first, accuracy = self._evaluated() if due and self.communicator.is_first else ([], [], None)
        self.history.append(Epoch(number, losses, alone, first, accuracy, self.rate, self.seconds))
        if self.communicator.is_first:
            self.warning = self.diagnosis.warning(self.history, self.batches, self.optimiser.learning_rate)
        self.batch, self.seconds = 0, 0.0
        self.schedule.totals.zero_()

    def _evaluated(self) -> tuple[list[float | None], list[float | None], float | None]:
        """Return the accuracy of each voter, of the first ones together, and of all whose layers have begun to train."""
        with evaluating(self.method):
            self.method.make_ready(self.train)
        layers, begun = len(self.method.network), self.schedule.layers.stop
        by_layer = len(self.method.voters) == layers
        some = range(1, begun + 1) if by_layer and begun < layers else None
        result = evaluate(self.method, self.held_out, some)
        self.evaluation = result if some is None else None
        known = begun if by_layer else len(self.method.voters)
        alone, first = (
            [value if number < known else None for number, value in enumerate(values)]
            for values in (result.layer_accuracy, result.first_layers_accuracy)
        )
        return alone, first, result.accuracy

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all that `restore` needs: tensors, and values for JSON."""
        tensors = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        tensors |= {f"generator.{name}": tensor for name, tensor in self._generators.items()}
        if self.schedule.phase == self._phase:  # the next phase starts with a fresh optimiser
            tensors |= {f"optimiser.{name}": tensor for name, tensor in self.schedule.state().items()}
        facts = {"history": [asdict(epoch) for epoch in self.history], "batch": self.batch, "seconds": self.seconds}
        return tensors | {"totals": self.schedule.totals}, facts

    def state_on_host(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state with all tensors on the CPU, for another process."""
        tensors, facts = self.state()
        return {name: tensor.cpu() for name, tensor in tensors.items()}, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Continue from another trainer's state; everything else about the two must be the same."""
        groups: dict[str, dict[str, Tensor]] = {"method": {}, "generator": {}, "optimiser": {}}
        for name, tensor in tensors.items():
            if name != "totals":
                group, rest = name.split(".", 1)
                groups[group][rest] = tensor
        self.method.load_state_dict(current_names(groups["method"], self.method))
        self.evaluation = None
        self.history = [Epoch(**epoch) for epoch in facts["history"]]
        self.batch, self.seconds = int(facts["batch"]), float(facts["seconds"])
        if len(self.history) > self.epochs or not 0 <= self.batch < self.batches:
            raise ValueError("the state has more epochs or batches than this training")
        self.schedule.enter(self._phase)
        self.schedule.totals.copy_(tensors["totals"])
        self.schedule.restore(current_names(groups["optimiser"], self.method))
        self._generators = groups["generator"]
        with seeded(self.seed, self.device):
            set_generator_states(self._generators, self.device)  # to find out now whether they are valid


def balanced(members: Sequence[Tensor], count: int, generator: torch.Generator) -> Tensor:
    """Return positions in random order, equally many of every class up to one; a class's positions, (n_c,), appear equally
    often up to one. → (count,)"""
    share = -(-count // len(members))
    found = []
    for own in members:
        rounds = [own[torch.randperm(len(own), generator=generator)] for _ in range(-(-share // len(own)))]
        found.append(torch.cat(rounds)[:share])
    turns = torch.stack(found, dim=1).flatten()[:count]  # one of each class at a time
    return turns[torch.randperm(count, generator=generator)]
