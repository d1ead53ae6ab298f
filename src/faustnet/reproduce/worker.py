"""Trains one job and stores its result, in this process or in a worker of any backend."""

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
from faustnet.errors import OUT_OF_MEMORY, FaustnetError, require
from faustnet.reproduce.claims import Claim, claim_on, repeating
from faustnet.reproduce.jobs import Job
from faustnet.reproduce.results import is_done, write_result
from faustnet.runs.folder import RECIPE, Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe
from faustnet.runs.session import Progress, Stopped, train
from faustnet.system.devices import choose_device
from faustnet.system.locks import FolderLockedError
from faustnet.training.history import Epoch
from faustnet.training.loop import Diverged, TrainingLoop
from faustnet.version import VERSION

PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent ends
LOST = "its process died every time, the last time with no other job running; it may need more memory than this machine has."
ONE_AT_A_TIME = threading.Lock()  # runs trained by threads of one process would share its random numbers


class StoppableProgress:
    """Progress of a training that can be stopped."""

    def __init__(self) -> None:
        self.trainer: TrainingLoop | None = None
        self.stopping = False

    def begin(self, model: Model, data: DataSet, trainer: TrainingLoop) -> None:
        self.trainer = trainer
        if self.stopping:
            trainer.stop()

    def batch(self) -> None: ...
    def epoch(self, epoch: Epoch) -> None: ...
    def end(self) -> None: ...

    @property
    def interrupted(self) -> bool:
        """Whether this process got a signal to end, even if the run was complete by then."""
        return self.trainer is not None and self.trainer.stopping and not self.stopping

    def stop(self) -> None:
        self.stopping = True
        if self.trainer is not None:
            self.trainer.stop()


@functools.lru_cache(maxsize=4)
def cached_data(dataset: str, data_dir: Path | None) -> DataSet:
    """Load a data set once per process."""
    return load_data(dataset, data_dir)


def train_or_resume(recipe: Recipe, folder: Path, device: torch.device, data: DataSet, progress: Progress) -> Run:
    """Train a run, or resume the one in the folder. Raises Stopped when it was interrupted."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    begun = (folder / RECIPE).exists()
    return train(recipe, folder, device=device, progress=progress, resume=begun, data=data)


def train_job(job: Job, out: Path, device: str, data_dir: Path | None, progress: StoppableProgress) -> None:
    """Train a job, write its result and remove its run folder."""
    begin = time.perf_counter()
    folder, where = job.folder(out), torch.device(device)
    load = functools.partial(cached_data, data_dir=data_dir)
    run = train_or_resume(job.recipe, folder, where, job.data(load), progress)
    seconds = time.perf_counter() - begin
    write_result(job, run, seconds, out, job.measure(run.model(where), load))
    shutil.rmtree(folder, ignore_errors=True)  # another command may remove it too, once it sees the result


class Status(Enum):
    """Outcome of one attempt to train a job."""

    DONE = "the result is there"
    DIVERGED = "the training diverged"
    ELSEWHERE = "another process trains it"
    STOPPED = "it was stopped and can be resumed"
    LOST = "its processes died, or there was not enough memory"
    REFUSED = "the user has to correct something"
    NO_COMMAND = "the command has ended, or its --out cannot be seen from here"


@dataclass(frozen=True)
class Outcome:
    job: Job
    status: Status
    error: Exception | None = None
    host: str = field(default_factory=platform.node)


@dataclass(frozen=True)
class JobSpec:
    """How the jobs of one command are trained; sent to its workers with each job.

    The command holds a claim of its own. When it is gone, or its holder is dead, workers stop. A job whose worker died
    `attempts` times is returned as lost.
    """

    out: Path
    device: str
    data_dir: Path | None
    command: str  # a unique name
    attempts: int
    parent: int | None = None  # process of the command, if workers are its children
    version: str = VERSION

    @property
    def claim(self) -> Claim:
        """The command's claim."""
        return claim_on(self.out, self.command)

    def claim_of(self, job: Job) -> Claim:
        return claim_on(self.out, job.path.replace("/", "-"))


def attempt(spec: JobSpec, job: Job, on_begin: Callable[[], None] = lambda: None) -> Outcome:
    """Train or resume a job, unless it is done or another process trains it.

    Raises Stopped when this process was interrupted.
    """
    with ONE_AT_A_TIME:
        if not spec.claim.file.exists():
            return Outcome(job, Status.NO_COMMAND)
        claim = spec.claim_of(job)
        if not claim.take():
            return Outcome(job, Status.ELSEWHERE)
        with claim:
            notes = claim.notes
            before = notes.get("attempt", 0) if notes.get("command") == spec.command else 0
            if before >= spec.attempts:
                return Outcome(job, Status.LOST, FaustnetError(LOST))
            claim.write_notes({"command": spec.command, "attempt": before + 1})
            progress = StoppableProgress()
            try:
                if not is_done(job, spec.out):
                    on_begin()
                    with repeating(functools.partial(_check, spec, claim, progress)):
                        train_job(job, spec.out, choose_device(spec.device).type, spec.data_dir, progress)
                    if progress.interrupted:
                        raise Stopped
            except Diverged as error:
                return Outcome(job, Status.DIVERGED, error)
            except FolderLockedError:  # by a process whose claim has expired, or by 'faustnet train'
                return Outcome(job, Status.ELSEWHERE)
            except Stopped:
                if not progress.stopping:
                    raise
                return Outcome(job, Status.STOPPED)
            return Outcome(job, Status.DONE)


def _check(spec: JobSpec, claim: Claim, progress: StoppableProgress) -> None:
    """Stop the training if the claim is lost or the command has ended."""
    if claim.lost or not spec.claim.held:
        progress.stop()


def answer(spec: JobSpec, job: Job) -> Outcome:
    """Attempt a job in a worker, and return every error that the command can report to its user."""
    if spec.parent is not None:
        end_with_parent()
    outcome = _guarded_attempt(spec, job)
    if spec.parent not in (None, os.getppid()):
        os._exit(1)  # the command is gone, and nobody would end this worker
    return outcome


def _guarded_attempt(spec: JobSpec, job: Job) -> Outcome:
    try:
        require(
            spec.version == VERSION,
            f"A worker has faustnet {VERSION} and this command {spec.version}: install the same version everywhere.",
        )
        return attempt(spec, job)
    except (FaustnetError, OSError) as error:
        with suppress(OSError):
            spec.claim.file.unlink()  # so that the other workers stop too
        return Outcome(job, Status.REFUSED, error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):  # PyTorch's message when memory is full
            raise
        return Outcome(job, Status.LOST, FaustnetError(OUT_OF_MEMORY))
    except KeyboardInterrupt:  # this worker got a signal to end
        return Outcome(job, Status.STOPPED)


def end_with_parent() -> None:
    """Let this process get SIGTERM when its parent ends, on Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
