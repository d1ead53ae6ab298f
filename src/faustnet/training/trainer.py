"""The trainer: a method, data and an optimiser of the user's own, without a recipe or a run folder."""

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from faustnet.data.images import DataSet, Images
from faustnet.data.quick_checks import obvious_findings
from faustnet.data.sources import STREAM_SAMPLE, ArraySource, StreamSource, all_in_memory, digest, source_from
from faustnet.data.table_columns import check_columns, columns_of_pair
from faustnet.errors import FaustnetError, errors_about_arguments, require, warn
from faustnet.methods import Method, Source
from faustnet.methods.start import start_from
from faustnet.training.distributed import PARALLEL, Communicator, SingleProcess, current_ranks, grid_size
from faustnet.training.distributed.world import are_several
from faustnet.training.evaluation import Evaluation, evaluate, evaluating
from faustnet.training.history import Epoch
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import AnySettings, OptimiserSettings, optimiser_from
from faustnet.training.optimisers.own import MakeOptimiser
from faustnet.training.optimisers.schedulers import MakeScheduler
from faustnet.training.settings import TrainingSettings
from faustnet.training.signals import stopped_by_signals
from faustnet.training.stream import StreamLoop

USUAL_BATCH = 64  # samples, where none are given


class Callback:
    """Base class of callbacks. A plain function is a callback with `on_epoch` only."""

    def on_batch(self, trainer: "Trainer") -> None:
        """Called after each batch. On a GPU the batch may not be finished."""

    def on_epoch(self, trainer: "Trainer", epoch: Epoch) -> None:
        """Called after each epoch and its evaluation. `trainer.stop()` ends the training."""


class Trainer:
    """Trains any method on any data.

    >>> trainer = Trainer(method, train=(images, labels), optimiser=lambda p: torch.optim.AdamW(p, 2e-3))
    >>> trainer.fit(epochs=15)

    The method is trained on the device that it is on.

    Args:
        method: The method, with its network.
        train: Training data: a pair of arrays (x, y), a pandas table and its labels, a map-style data set, an iterable data
            set or a data loader. Labels are numbers from 0.
        test: Data for evaluation, of the same kinds; None for none.
        optimiser: Function that returns an optimiser of torch, or of your own, for a list of parameters. It is called for
            each layer, to check it and for each training. Or an `OptimiserSettings`.
        scheduler: Function that returns a learning-rate scheduler of an optimiser; None for a constant learning rate.
        scheduler_every: When the scheduler takes a step: after each "epoch" or after each "batch".
        schedule: "sequential", "wavefront", "greedy", or "auto": wavefront for local methods on a GPU, otherwise sequential.
        batch_size: Samples per batch, by default 64. The incomplete last batch of an epoch is dropped. A data loader has
            its own batch size.
        precision: Precision of matrix products in training: "tf32" (on GPUs that support it), "float32" or "bfloat16".
        seed: Random seed of shuffling, dropout and the choice of references. Weights are those of `method`.
        parallel: How several ranks divide the work: "data", "layers", or a grid such as "2x2".
        callbacks: Functions of the trainer and an `Epoch`, called after each epoch, or `Callback` objects.
        start: Trained model whose weights are copied into `method` where they fit: a `Model`, a method, or the path of a run
            folder, of a model file or of a file of `Method.save`. None to train `method` as it is.
        train_layers: With `start`, numbers of the layers to train, from 1; the others are frozen. Empty: all layers.
    """

    def __init__(
        self,
        method: Method,
        *,
        train: Any,
        test: Any = None,
        optimiser: MakeOptimiser | OptimiserSettings,
        scheduler: MakeScheduler | None = None,
        scheduler_every: str = "epoch",
        schedule: str = "auto",
        batch_size: int | None = None,
        precision: str = "tf32",
        seed: int = 0,
        parallel: str = "data",
        callbacks: Sequence[Callback | Callable[["Trainer", Epoch], Any]] = (),
        start: Any = None,
        train_layers: Sequence[int] = (),
    ):
        require(isinstance(method, Method), f"method must be a faustnet method, got {type(method).__name__}.")
        is_size = isinstance(batch_size, int) and batch_size >= 1
        require(batch_size is None or is_size, f"batch_size must be a whole number of at least 1, got {batch_size!r}.")
        require(isinstance(seed, int), f"seed must be a whole number, got {seed!r}.")
        example, classes = method.network.example, method.classes
        self.method, self.callbacks, self.seed = method, _callbacks(callbacks), seed
        self.columns = columns_of_pair(train)
        check_columns(columns_of_pair(test), self.columns, "test", "train")
        self.train = source_from(train, "train", example, classes, batch_size or USUAL_BATCH)
        self.test = None
        if test is not None:
            self.test = all_in_memory(source_from(test, "test", example, classes), "test", example, classes)
            _check_known(self.train, self.test.labels)
        self.from_trained = start is not None
        _start(method, start, train_layers)
        self.optimiser = _optimiser(optimiser, scheduler, scheduler_every, method)
        size = self.train.batch_size if isinstance(self.train, StreamSource) else batch_size or USUAL_BATCH
        require(
            batch_size in (None, size),
            f"batch_size must be that of the data loader, {size}, got {batch_size}: leave it out.",
        )
        with errors_about_arguments():
            self.settings = TrainingSettings(epochs=1, batch_size=size, schedule=schedule, precision=precision)
            self.communicator = _communicator(parallel, example.device)
        self.loop: TrainingLoop | None = None

    @property
    def history(self) -> list[Epoch]:
        """Losses and accuracies of all epochs so far."""
        return self.loop.history if self.loop else []

    def stop(self) -> None:
        """End the training after the current batch, from a callback."""
        require(self.loop is not None, "stop must be called while fit runs, by a callback: it was called before.")
        assert self.loop is not None
        self.loop.stop()

    def fit(self, epochs: int = 1, *, verbose: bool = True) -> "Trainer":
        """Train for a number of epochs, and prepare the method for predictions. A second call trains further.

        Ctrl-C stops after the current batch, and raises KeyboardInterrupt; another call continues from there.

        Args:
            epochs: Number of epochs, beside those of earlier calls.
            verbose: Whether to print a line for each epoch.
        """
        require(isinstance(epochs, int) and epochs >= 1, f"epochs must be a whole number of at least 1, got {epochs!r}.")
        with errors_about_arguments():
            return self._fit(epochs, verbose)

    def _fit(self, epochs: int, verbose: bool) -> "Trainer":
        loop = self._loop(epochs)
        loop.stopping = interrupted = False

        def on_epoch(epoch: Epoch) -> None:
            if loop.warning:
                warn(loop.warning)
            if verbose and self.communicator.is_first:
                print(_line(epoch, loop.epochs), flush=True)
            for callback in self.callbacks:
                (callback.on_epoch if isinstance(callback, Callback) else callback)(self, epoch)

        def on_batch() -> None:
            for callback in self.callbacks:
                if isinstance(callback, Callback):
                    callback.on_batch(self)

        def on_signal() -> None:
            nonlocal interrupted
            interrupted = True

        with stopped_by_signals(loop, on_signal):
            loop.run(on_batch, on_epoch)
        if self.communicator.is_first:
            with evaluating(self.method):
                self.method.make_ready(self.train)
        if not self.communicator.alone:  # all ranks get the whole method
            state = {name: tensor.cpu() for name, tensor in self.method.state_dict().items()}
            self.method.load_state_dict(self.communicator.broadcast(state))
        self.method.eval()
        if interrupted:
            raise KeyboardInterrupt
        return self

    def _check_data(self) -> None:
        """Warn about mistakes in the data that a sample of them shows, if they are in memory."""
        if type(self.train) is not ArraySource:
            return
        test = self.test if isinstance(self.test, ArraySource) else ArraySource(self.train.x[:0], self.train.labels[:0], ())
        parts = (Images(part.x, part.labels) for part in (self.train, test))
        for finding in obvious_findings(DataSet("train", tuple(self.train.class_names), *parts)):
            warn(finding.message)

    def evaluate(self, data: Any = None) -> Evaluation:
        """Evaluate the method on the test data, or on other data of the same kinds."""
        source = self.test
        if data is not None:
            check_columns(columns_of_pair(data), self.columns, "data", "the training data")
            example, classes = self.method.network.example, self.method.classes
            source = all_in_memory(source_from(data, "data", example, classes), "data", example, classes)
        if source is None:
            raise FaustnetError("data must be given, because the trainer has no test data.")
        require(bool(self.history) or self.method.is_ready, "evaluate must be called after fit: call fit(epochs=…) first.")
        return evaluate(self.method, source)

    def _loop(self, epochs: int) -> TrainingLoop:
        """Return the training loop, which is made for the first epochs and extended for more."""
        if self.loop is None:
            kind = StreamLoop if isinstance(self.train, StreamSource) else TrainingLoop
            held_out = self.test if self.test is not None else self.train
            every = 1 if self.test is not None else sys.maxsize  # without test data, only the losses are recorded
            settings = replace(self.settings, epochs=epochs, evaluate_every=every)
            made = (self.method, self.train, held_out, settings, self.optimiser, self.seed, self.communicator)
            self.loop = kind(*made, evaluate_last=self.test is not None)
            self.loop.diagnosis.from_trained = self.from_trained
            if not self.communicator.alone:
                self.communicator.require_equal(digest(self.train), "train")
                self.loop.restore(*self.communicator.broadcast(self.loop.state_on_host()))
            for note in self.loop.notes:
                print(note, file=sys.stderr)
            if self.communicator.is_first:
                self._check_data()
        else:
            self.loop.extend(epochs)
        return self.loop


def _start(method: Method, start: Any, train_layers: Sequence[int]) -> None:
    """Copy the weights of a trained model, and say which weights of the network it does not have."""
    if start is None:
        require(not train_layers, f"train_layers needs start, a trained model, got {list(train_layers)} without one.")
        return
    if anew := [name for name in start_from(method, start, train_layers) if name.startswith("network.")]:
        print(f"No weights of the same shape in start, so these begin anew: {', '.join(anew)}", file=sys.stderr)


def _optimiser(given: Any, scheduler: MakeScheduler | None, every: str, method: Method) -> AnySettings:
    if isinstance(given, OptimiserSettings):
        require(scheduler is None, "scheduler must be None with OptimiserSettings, which have a learning-rate schedule.")
        return given
    require(
        callable(given) and not isinstance(given, torch.optim.Optimizer),
        f"optimiser must be a function of a list of parameters, got {type(given).__name__}: "
        "try lambda parameters: torch.optim.AdamW(parameters, lr=1e-3).",
    )
    return optimiser_from(given, scheduler, every, method)


def _callbacks(given: Any) -> list[Any]:
    """Check that callbacks are functions of two arguments, or `Callback` objects."""
    found = list(given) if isinstance(given, Sequence) else [None]
    for callback in found:
        good = isinstance(callback, Callback) or (callable(callback) and not isinstance(callback, type))
        require(good, f"callbacks must be a list of functions or Callback objects, got {given!r}.")
    return found


def _communicator(parallel: str, device: torch.device) -> Communicator:
    ranks = current_ranks()
    if ranks is None:
        if parallel not in PARALLEL:
            grid_size(parallel, math.prod(map(int, re.findall(r"\d+", parallel))))  # refuses what is no grid
        require(
            not are_several(),
            "WORLD_SIZE is above 1, but this process has not joined the other ranks: train inside "
            "`with faustnet.join_ranks():`.",
        )
        return SingleProcess()
    return ranks.grid(*grid_size(parallel, ranks.count), device)


def _check_known(train: Source, test: torch.Tensor) -> None:
    if isinstance(train, StreamSource) and len(train.labels) >= STREAM_SAMPLE:
        return  # what comes later in the stream is not known
    new = sorted(set(test.unique().tolist()) - set(train.labels.unique().tolist()))
    require(not new, f"test must have only labels that train has, got {new[:5]}: add samples of these classes to train.")


def _line(epoch: Epoch, epochs: int) -> str:
    losses = [loss for loss in epoch.losses if loss is not None]
    accuracy = "" if epoch.accuracy is None else f"  accuracy {epoch.accuracy:.2%}"
    return f"epoch {epoch.epoch}/{epochs}  loss {sum(losses) / len(losses):.4f}{accuracy}  {epoch.seconds:.1f} s"
