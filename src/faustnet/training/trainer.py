"""fit: epochs, learning rate, history, and a state that can be put down and taken up again at any batch."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from faustnet.training.distributed import Agreement, Arrangement, Distributed
from faustnet.errors import FaustnetError, unknown
from faustnet.training.evaluation import evaluate, evaluating
from faustnet.training.history import Epoch
from faustnet.methods import LocalMethod, Method, Source
from faustnet.training.optimisers import OptimiserSettings
from faustnet.nn.precision import PRECISIONS, multiplying, set_product_type
from faustnet.system.randomness import generator_states, seeded, set_generator_states
from faustnet.training.schedules import SCHEDULES, Schedule


class Diverged(FaustnetError):
    """Training has arrived at numbers that are not finite."""


@dataclass(frozen=True)
class TrainingSettings:
    """`epochs` is for every layer: the greedy schedule gives each of them that many, one layer after the other.
    `validation` holds out a share of the training images, or from 1 on a number of them, to measure on in place of the
    test images while training. An epoch leaves out what does not fill a last batch, other images each time. Every
    `evaluate_every` epochs, and at the end, the model is measured. With `balance` an epoch has as many images as without,
    but of every class alike: small classes' images come several times, and not all of the large classes'.

    `schedule` "auto" is wavefront for local methods on a GPU, and sequential elsewhere. `precision` is that of matrix
    products: "tf32" where a GPU has it, "float32", or "bfloat16" while training."""

    epochs: int = 20
    batch_size: int = 256
    schedule: str = "auto"
    precision: str = "tf32"
    validation: float = 0.0
    evaluate_every: int = 1
    balance: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise FaustnetError(f"Training takes epochs and batches of 1 or more, not {self.epochs} and {self.batch_size}.")
        if self.evaluate_every < 1:
            raise FaustnetError(f"Training is measured every so many epochs, 1 or more, not {self.evaluate_every}.")
        if self.schedule not in ("auto", *SCHEDULES):
            raise unknown("schedule", self.schedule, ["auto", *SCHEDULES])
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.validation < 0:
            raise FaustnetError(f"The validation split is a share or a number of images, not {self.validation}.")


class Trainer:
    """Trains one method on one source, and can be stopped and continued without any difference to the result.

    With an `arrangement` this is one of several ranks that do so together: each has such a trainer, and the first one's
    history and state are those of one process."""

    def __init__(
        self,
        method: Method,
        train: Source,
        held_out: Source,
        settings: TrainingSettings,
        optimiser: OptimiserSettings,
        seed: int,
        arrangement: Arrangement | None = None,
    ):
        self.method, self.train, self.held_out = method, train, held_out
        self.settings, self.optimiser, self.seed = settings, optimiser, seed
        self.device = train.labels.device
        self.batches = len(train.labels) // settings.batch_size  # in an epoch
        if self.batches < 1:
            raise FaustnetError(
                f"A batch of {settings.batch_size} is larger than the {len(train.labels)} training images: "
                "ask for fewer with --batch-size (training.batch_size)."
            )
        if settings.batch_size == 1 and method.network.settles:
            raise FaustnetError("Batch norm needs other images beside an image: ask for a --batch-size of 2 or more.")
        labels = train.labels.cpu()
        self.members = [(labels == label).nonzero()[:, 0] for label in labels.unique()] if settings.balance else None
        set_product_type(method, settings.precision)
        self.measures = arrangement is None or arrangement.is_first
        self.agreement = Agreement() if arrangement else None
        self.schedule = self._schedule(arrangement)
        self.history: list[Epoch] = []
        self.batch = 0  # the next one of this epoch
        self.seconds = 0.0  # spent on this epoch
        self.rate = 0.0  # of the last step
        self.stopping = False
        with seeded(seed + 1, self.device):  # the weights were drawn from `seed`
            method.start(train)
            self._generators = generator_states(self.device)
        self.schedule.enter(0)

    def _schedule(self, arrangement: Arrangement | None) -> Schedule:
        name = self.settings.schedule
        if arrangement:
            if name == "greedy":
                raise FaustnetError("The greedy schedule trains in one process: start it without torchrun.")
            return Distributed(self.method, self.train, self.optimiser, arrangement)
        if name == "auto":
            name = "wavefront" if self.device.type == "cuda" and isinstance(self.method, LocalMethod) else "sequential"
        return SCHEDULES[name](self.method, self.train, self.optimiser)

    @property
    def epochs(self) -> int:
        """In all stages together."""
        return self.settings.epochs * self.schedule.stages

    @property
    def finished(self) -> bool:
        return len(self.history) == self.epochs

    def stop(self) -> None:
        """End `run` after the batch that is under way."""
        self.stopping = True

    def run(self, on_batch: Callable[[], None], on_epoch: Callable[[Epoch], None]) -> bool:
        """Train to the end, or until `stop`; whether the end was reached. `on_epoch` finds a state worth saving."""
        with seeded(self.seed, self.device):
            set_generator_states(self._generators, self.device)
            while not (self.finished or self._stops_now()):
                if self.schedule.stage != self._stage:
                    self.schedule.enter(self._stage)
                with multiplying(self.settings.precision):
                    complete = self._run_batches(on_batch)
                if complete:
                    self._close_epoch()
                self._generators = generator_states(self.device)
                if complete:
                    on_epoch(self.history[-1])
        self.schedule.release()
        return self.finished

    def _stops(self) -> bool:
        """Whether to stop before the next batch."""
        return self.agreement.stops(self.stopping) if self.agreement else self.stopping

    def _stops_now(self) -> bool:
        """The same between epochs."""
        return self.agreement.stops_now(self.stopping) if self.agreement else self.stopping

    @property
    def _stage(self) -> int:
        """That the next epoch belongs to."""
        return min(len(self.history) // self.settings.epochs, self.schedule.stages - 1)

    def _run_batches(self, on_batch: Callable[[], None]) -> bool:
        """The rest of this epoch, or up to a stop; whether it was all of it. Nothing in here waits for the device."""
        self.method.train()
        begin = time.perf_counter()
        epoch, size = len(self.history), self.settings.batch_size
        shuffle = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        count = len(self.train.labels)
        order = torch.randperm(count, generator=shuffle) if self.members is None else balanced(self.members, count, shuffle)
        place = epoch % self.settings.epochs  # in its stage
        self.method.enter_epoch(place / max(1, self.settings.epochs - 1))
        first_step = place * self.batches
        steps = self.settings.epochs * self.batches
        rates = [self.optimiser.rate(first_step + batch, steps) for batch in range(self.batches)]
        batches = order[: self.batches * size].view(self.batches, size)
        with self.schedule.feed.reading(batches, self.batch):
            self.schedule.begin(batches, torch.tensor(rates, dtype=torch.float64), self.batch)
            while self.batch < self.batches and not self._stops():
                self.schedule.step()
                self.batch += 1
                on_batch()
            self.schedule.drain()
        complete = self.batch == self.batches
        if complete:
            self.rate = rates[-1]
            self._check_finite()  # waits for the device
        self.seconds += time.perf_counter() - begin
        return complete

    def _check_finite(self) -> None:
        if what := self._not_finite():
            raise Diverged(
                f"{what} is no longer a finite number in epoch {len(self.history) + 1}: "
                f"try a learning rate below {self.optimiser.learning_rate:g}, or a warm-up."
            )

    def _not_finite(self) -> str | None:
        for number, loss in zip(self.schedule.layers, self.schedule.totals.tolist(), strict=True):
            if not math.isfinite(loss):
                learners = self.method.learners
                return f"The loss of {learners[number]}" if len(learners) > 1 else "The loss"
        for name, parameter in self.method.named_parameters():
            if not parameter.isfinite().all():
                room, _, *rest = name.split(".")
                return f"A weight of layer {int(rest[0]) + 1}" if room == "network" else f"A weight of the {room}"
        return None

    def _close_epoch(self) -> None:
        """Measure, write the line of the history, and go on to the next epoch or stage."""
        losses: list[float | None] = [None] * (len(self.schedule.layers) * self.schedule.stages)
        for layer, loss in zip(self.schedule.layers, self.schedule.totals.tolist(), strict=True):
            losses[layer] = loss / self.batches
        number = len(self.history) + 1
        due = number % self.settings.evaluate_every == 0 or number == self.epochs
        alone, first, accuracy = self._measured() if due and self.measures else ([], [], None)
        self.history.append(Epoch(number, losses, alone, first, accuracy, self.rate, self.seconds))
        self.batch, self.seconds = 0, 0.0
        self.schedule.totals.zero_()

    def _measured(self) -> tuple[list[float | None], list[float | None], float | None]:
        """Each voter's accuracy, that of the first ones together, and of all whose layers have begun to train."""
        with evaluating(self.method):
            self.method.make_ready(self.train)
        layers, begun = len(self.method.network), self.schedule.layers.stop
        by_layer = len(self.method.voters) == layers
        result = evaluate(self.method, self.held_out, range(1, begun + 1) if by_layer and begun < layers else None)
        known = begun if by_layer else len(self.method.voters)
        alone, first = (
            [value if number < known else None for number, value in enumerate(values)]
            for values in (result.layer_accuracy, result.first_layers_accuracy)
        )
        return alone, first, result.accuracy

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that `restore` needs: tensors, and plain facts for JSON."""
        tensors = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        tensors |= {f"generator.{name}": tensor for name, tensor in self._generators.items()}
        if self.schedule.stage == self._stage:  # the next stage begins with an optimiser that remembers nothing
            tensors |= {f"optimiser.{name}": tensor for name, tensor in self.schedule.state().items()}
        facts = {"history": [asdict(epoch) for epoch in self.history], "batch": self.batch, "seconds": self.seconds}
        return tensors | {"totals": self.schedule.totals}, facts

    def state_on_host(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The same with all tensors on the CPU, for another process."""
        tensors, facts = self.state()
        return {name: tensor.cpu() for name, tensor in tensors.items()}, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Continue from another trainer's state; everything else about the two must be the same."""
        groups: dict[str, dict[str, Tensor]] = {"method": {}, "generator": {}, "optimiser": {}}
        for name, tensor in tensors.items():
            if name != "totals":
                group, rest = name.split(".", 1)
                groups[group][rest] = tensor
        self.method.load_state_dict(groups["method"])
        self.history = [Epoch(**epoch) for epoch in facts["history"]]
        self.batch, self.seconds = int(facts["batch"]), float(facts["seconds"])
        if len(self.history) > self.epochs or not 0 <= self.batch < self.batches:
            raise ValueError("the state is of another training")
        self.schedule.enter(self._stage)
        self.schedule.totals.copy_(tensors["totals"])
        self.schedule.restore(groups["optimiser"])
        self._generators = groups["generator"]
        with seeded(self.seed, self.device):
            set_generator_states(self._generators, self.device)  # to find out now whether they are good


def balanced(members: Sequence[Tensor], count: int, generator: torch.Generator) -> Tensor:
    """So many positions in random order, of every class alike up to one; a class's positions, (n_c,), come equally often up
    to one. → (count,)"""
    share = -(-count // len(members))
    found = []
    for own in members:
        rounds = [own[torch.randperm(len(own), generator=generator)] for _ in range(-(-share // len(own)))]
        found.append(torch.cat(rounds)[:share])
    turns = torch.stack(found, dim=1).flatten()[:count]  # one of each class at a time
    return turns[torch.randperm(count, generator=generator)]


@contextmanager
def stopped_by_signals(trainer: Trainer) -> Iterator[None]:
    """The trainer is stopped after its batch; a second signal interrupts at once, but for one of several ranks, to which
    torchrun passes on what they have had from the terminal."""

    def stop() -> None:
        if trainer.stopping and not trainer.agreement:
            raise KeyboardInterrupt
        trainer.stop()

    with on_signals(stop):
        yield


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call this on Ctrl-C, on a request to terminate, or when the terminal is closed; a signal that the process ignores
    stays ignored. Only the main thread hears of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: Any) -> None:
        stop()

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # of which not every system has the last
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    heard = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
