"""Trains what is wanted and not there yet: here, or by several processes at once."""

import functools
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from faustnet.data import DataSet, load_data
from faustnet.errors import FaustnetError
from faustnet.history import Epoch
from faustnet.model import Model
from faustnet.recipes import Recipe
from faustnet.reproduce.results import accuracy, is_done, read_result, write_result
from faustnet.reproduce.wanted import Job, Study
from faustnet.runs import RECIPE, Progress, Run, train
from faustnet.training import Diverged, Trainer

DIES_WITH_PARENT = 1  # Linux's name for it: PR_SET_PDEATHSIG


class Watched:
    """Hears of a training's epochs, and says nothing else."""

    def __init__(self, on_epoch: Callable[[int, int], None] = lambda done, epochs: None):
        self.on_epoch, self.epochs = on_epoch, 0

    def begin(self, model: Model, data: DataSet, trainer: Trainer) -> None:
        self.epochs = trainer.epochs

    def batch(self) -> None: ...

    def epoch(self, epoch: Epoch) -> None:
        self.on_epoch(epoch.epoch, self.epochs)

    def end(self) -> None: ...


@functools.lru_cache(maxsize=4)
def data_of(dataset: str, data_dir: Path | None) -> DataSet:
    """A data set, read once."""
    return load_data(dataset, data_dir)


def trained(recipe: Recipe, folder: Path, device: torch.device, data: DataSet, progress: Progress) -> Run:
    """Begin a run, or go on with it. Raises Stopped when it was interrupted."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    begun = (folder / RECIPE).exists()
    return train(recipe, folder, device=device, progress=progress, resume=begun, data=data)


def train_wanted(wanted: Job, out: Path, device: str, data_dir: Path | None, progress: Watched) -> None:
    """Train a run and turn it into a result."""
    begin = time.perf_counter()
    folder, where = wanted.folder(out), torch.device(device)
    load = functools.partial(data_of, data_dir=data_dir)
    data = wanted.data(load) if isinstance(wanted, Study) else load(wanted.recipe.dataset)
    run = trained(wanted.recipe, folder, where, data, progress)
    seconds = time.perf_counter() - begin
    more = wanted.measured(run.model(where), load) if isinstance(wanted, Study) else {}
    write_result(wanted, run, seconds, out, more)
    shutil.rmtree(folder)


class Work:
    """What is to be trained. Whoever wants to hear of a run that is begun, of its epochs (if it is trained here), of its
    result or that it comes to none sets `on_begin`, `on_epoch`, `on_result` and `on_diverged`."""

    on_begin: Callable[[Job], None] = staticmethod(lambda wanted: None)
    on_epoch: Callable[[Job, int, int], None] = staticmethod(lambda wanted, done, epochs: None)
    on_result: Callable[[Job], None] = staticmethod(lambda wanted: None)
    on_diverged: Callable[[Job], None] = staticmethod(lambda wanted: None)

    def __init__(self, missing: Sequence[Job], out: Path, device: str, data_dir: Path | None):
        self.missing, self.where = missing, (out, device, data_dir)
        self.diverged: list[str] = []

    def do(self, jobs: int) -> None:
        """A run that diverges does not keep the others from being trained; any other mistake does."""
        if jobs > 1 and len(self.missing) > 1:
            self._side_by_side(min(jobs, len(self.missing)))
        else:
            for wanted in self.missing:
                self.on_begin(wanted)
                try:
                    train_wanted(wanted, *self.where, Watched(functools.partial(self.on_epoch, wanted)))
                except Diverged as error:
                    self._diverged(wanted, error)
                else:
                    self.on_result(wanted)
        if self.diverged:
            others = f" (and {len(self.diverged) - 1} more)" if len(self.diverged) > 1 else ""
            raise FaustnetError(f"All else is trained, but not {self.diverged[0]}{others}")

    def _diverged(self, wanted: Job, error: Diverged) -> None:
        self.diverged.append(f"{wanted}: {error}")
        self.on_diverged(wanted)

    def _side_by_side(self, jobs: int) -> None:
        waiting = list(reversed(self.missing))
        busy: dict[Any, Job] = {}  # by connection
        with _interruptible(), _workers(jobs, self.where) as workers:
            for connection in workers:
                busy[connection] = self._hand_over(connection, waiting.pop())
            while busy:
                for free in wait(list(busy)):
                    self._answered(busy.pop(free), free)
                    if waiting:
                        busy[free] = self._hand_over(free, waiting.pop())

    def _hand_over(self, connection: Any, wanted: Job) -> Job:
        connection.send(wanted)
        self.on_begin(wanted)
        return wanted

    def _answered(self, wanted: Job, connection: Any) -> None:
        try:
            error = connection.recv()
        except (EOFError, OSError):
            raise FaustnetError(
                f"The process that trained {wanted} has ended; perhaps there was too little memory: what is done is kept, "
                "and the same command with fewer --jobs goes on."
            ) from None
        if isinstance(error, Diverged):
            self._diverged(wanted, error)
        elif error is not None:
            raise error
        else:
            self.on_result(wanted)


def results_of(
    wanted: Sequence[Job],
    out: Path,
    device: str,
    data_dir: Path | None,
    jobs: int,
    say: Callable[[object, str], None],
    after: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Of all runs that are wanted, after those that are missing have been trained; `say` hears of these, and `after` is
    called with each result that is kept."""

    def on_result(one: Job) -> None:
        result = read_result(one.file(out))
        say(one, f"{accuracy(result):.2%} in {result['seconds']:.0f} s")
        after()

    missing = []
    for one in wanted:
        if is_done(one, out):
            shutil.rmtree(one.folder(out), ignore_errors=True)  # it may have been killed just before
        else:
            missing.append(one)
    work = Work(missing, out, device, data_dir)
    work.on_begin, work.on_result = lambda one: say(one, "training"), on_result
    work.do(jobs)
    return [read_result(one.file(out)) for one in wanted]


@contextmanager
def _workers(count: int, where: tuple[Path, str, Path | None]) -> Iterator[list[Connection]]:
    """Processes that train what they are sent, and answer each time: with nothing, or with a mistake. At the end of the
    block they stop, with what they have done so far saved."""
    context, threads = get_context("spawn"), max(1, torch.get_num_threads() // count)
    connections: list[Connection] = []
    processes: list[SpawnProcess] = []
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # they inherit it: Ctrl-C is for us to pass on
    try:
        for _ in range(count):
            here, there = context.Pipe()
            processes.append(context.Process(target=_work, args=(there, where, threads), daemon=True))
            processes[-1].start()
            there.close()
            connections.append(here)
    finally:
        signal.signal(signal.SIGINT, ours)
    try:
        yield connections
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _work(connection: Connection, where: tuple[Path, str, Path | None], threads: int) -> None:
    """What a process does, until it is told to end."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGTERM)
    torch.set_num_threads(threads)
    while True:
        try:
            wanted = connection.recv()
        except EOFError:
            return
        try:
            train_wanted(wanted, *where, Watched())
        except (FaustnetError, OSError) as error:
            connection.send(error)
        except KeyboardInterrupt:
            return
        else:
            connection.send(None)


@contextmanager
def _interruptible() -> Iterator[None]:
    """A request to terminate is an interrupt here."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
