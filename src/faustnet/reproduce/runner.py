"""Trains one run and keeps its result, unless somebody else is at it: in this process, or in a worker of any kind."""

import functools
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import torch

from faustnet.data import DataSet, load_data
from faustnet.errors import FaustnetError, require
from faustnet.reproduce.claims import Beating, Claim, holder_of, take, time_of
from faustnet.reproduce.results import is_done, write_result
from faustnet.reproduce.wanted import Job, Study
from faustnet.runs.folder import RECIPE, Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe
from faustnet.runs.session import Progress, Stopped, train
from faustnet.system.devices import choose_device
from faustnet.system.locks import FolderLockedError
from faustnet.training.history import Epoch
from faustnet.training.trainer import Diverged, Trainer
from faustnet.version import VERSION

DIES_WITH_PARENT = 1  # Linux's name for it: PR_SET_PDEATHSIG
CLAIMS = ".claims"  # a folder in OUT
ONE_AT_A_TIME = threading.Lock()  # in a process, whose runs would share its random numbers


class Watched:
    """Hears of a training's epochs, and can stop it."""

    def __init__(self, on_epoch: Callable[[int, int], None] = lambda done, epochs: None):
        self.on_epoch = on_epoch
        self.done = self.epochs = 0
        self.trainer: Trainer | None = None
        self.stopping = False

    def begin(self, model: Model, data: DataSet, trainer: Trainer) -> None:
        self.trainer, self.epochs = trainer, trainer.epochs
        if self.stopping:
            trainer.stop()

    def batch(self) -> None: ...

    def epoch(self, epoch: Epoch) -> None:
        self.done = epoch.epoch
        self.on_epoch(self.done, self.epochs)

    def end(self) -> None: ...

    @property
    def interrupted(self) -> bool:
        """Whether this process was asked to end, be it so late that the run was done."""
        return self.trainer is not None and self.trainer.stopping and not self.stopping

    def stop(self) -> None:
        self.stopping = True
        if self.trainer is not None:
            self.trainer.stop()


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
    shutil.rmtree(folder, ignore_errors=True)  # another command may do so too, as soon as it sees the result


class What(Enum):
    """What came of an attempt to train a run."""

    DONE = "its result is there"
    DIVERGED = "it comes to none"
    ELSEWHERE = "somebody else is at it"
    STOPPED = "it was stopped, and can go on"
    LOST = "whoever tried has died"
    NO_MEMORY = "there was too little memory"
    MISTAKEN = "there is something that the user has to put right"
    UNSEEN = "the command that asked for it has ended, or works in a folder that cannot be seen from here"


@dataclass(frozen=True)
class Outcome:
    wanted: Job
    what: What
    error: Exception | None = None
    host: str = field(default_factory=platform.node)


@dataclass(frozen=True)
class Order:
    """What a command tells those who train for it. It has a file of its own among the claims: when that is gone, or the
    process that holds it, nothing is wanted any more. A run whose worker was lost so many times is given back."""

    out: Path
    device: str
    data_dir: Path | None
    command: str
    attempts: int
    parent: int | None = None  # the command's process, if a worker is its child,
    threads: int = 1  # and how many a worker then has
    version: str = VERSION

    @property
    def file(self) -> Path:
        return self.out / CLAIMS / f"{self.command}.command"

    def claim(self, wanted: Job) -> Path:
        """The file that says who trains a run."""
        name = "-".join(wanted.file(self.out).relative_to(self.out).with_suffix(".claim").parts)
        return self.out / CLAIMS / name


def attempt(
    order: Order,
    wanted: Job,
    on_begin: Callable[[], None] = lambda: None,
    on_epoch: Callable[[int, int], None] = lambda done, epochs: None,
) -> Outcome:
    """Train a run, or go on with it, unless it is done or somebody else is at it. Raises Stopped when this process was
    interrupted."""
    with ONE_AT_A_TIME:
        clock = time_of(order.file)
        if clock is None:
            return Outcome(wanted, What.UNSEEN)
        claim = take(order.claim(wanted), clock)
        if claim is None:
            return Outcome(wanted, What.ELSEWHERE)
        with claim:
            before = claim.before.get("attempt", 0) if claim.before.get("command") == order.command else 0
            if before >= order.attempts:
                return Outcome(wanted, What.LOST)
            claim.say(command=order.command, attempt=before + 1)
            watched = Watched(on_epoch)
            try:
                if not is_done(wanted, order.out):
                    on_begin()
                    with Beating(functools.partial(_beat, order, claim, watched)):
                        train_wanted(wanted, order.out, choose_device(order.device).type, order.data_dir, watched)
                    if watched.interrupted:
                        raise Stopped
            except Diverged as error:
                return Outcome(wanted, What.DIVERGED, error)
            except FolderLockedError:  # by a machine that gave no sign for long, or by 'faustnet train'
                return Outcome(wanted, What.ELSEWHERE)
            except Stopped:
                if not watched.stopping:
                    raise
                return Outcome(wanted, What.STOPPED)
            return Outcome(wanted, What.DONE)


def _beat(order: Order, claim: Claim, watched: Watched) -> None:
    """Say that a run is being trained, and how far it has come; stop it when it is no longer wanted of this process."""
    claim.beat()
    if claim.lost or holder_of(order.file, claim.time) is None:
        watched.stop()
    elif claim.facts.get("epoch") != watched.done:
        with suppress(OSError):  # a full disk is for the training to tell
            claim.say(epoch=watched.done, epochs=watched.epochs)


def answer(order: Order, wanted: Job) -> Outcome:
    """What a worker is called for. It raises nothing that the command can tell its user."""
    if order.parent is not None:
        torch.set_num_threads(order.threads)
        _die_with_parent()
    try:
        require(
            order.version == VERSION,
            f"A worker has faustnet {VERSION} and this command {order.version}: install the same everywhere.",
        )
        return attempt(order, wanted)
    except (FaustnetError, OSError) as error:
        with suppress(OSError):
            order.file.unlink()  # so that the others stop too
        return Outcome(wanted, What.MISTAKEN, error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):  # how PyTorch says that memory is full
            raise
        return Outcome(wanted, What.NO_MEMORY)
    except KeyboardInterrupt:  # this worker was asked to end
        if order.parent not in (None, os.getppid()):
            os._exit(1)  # there is nobody left to answer
        return Outcome(wanted, What.STOPPED)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGTERM)
