"""Trains what is wanted and not there yet: here, or by several processes at once."""

import functools
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import torch

from faustnet.data import DataSet, load_data
from faustnet.model import Model
from faustnet.reproduce.results import write_result
from faustnet.reproduce.wanted import Wanted
from faustnet.runs import RECIPE, Stopped, train
from faustnet.training import Epoch, Trainer


class Watched:
    """Hears of a training's epochs, and says nothing else."""

    def __init__(self, on_epoch: Callable[[int, int], None] = lambda done, epochs: None):
        self.on_epoch, self.epochs = on_epoch, 0

    def begin(self, model: Model, dataset: str, trainer: Trainer) -> None:
        self.epochs = trainer.epochs

    def batch(self) -> None: ...

    def epoch(self, epoch: Epoch) -> None:
        self.on_epoch(epoch.epoch, self.epochs)

    def end(self) -> None: ...


@functools.lru_cache(maxsize=4)
def _data(dataset: str, data_dir: Path | None) -> DataSet:
    return load_data(dataset, data_dir)


def train_wanted(wanted: Wanted, out: Path, device: str, data_dir: Path | None, progress: Watched) -> None:
    """Begin a run or go on with it, and turn it into a result. Raises Stopped when it was interrupted."""
    begin = time.perf_counter()
    folder = wanted.folder(out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    data = _data(wanted.dataset, data_dir)
    begun = (folder / RECIPE).exists()
    run = train(wanted.recipe, folder, device=torch.device(device), progress=progress, resume=begun, data=data)
    write_result(wanted, run, time.perf_counter() - begin, out)
    shutil.rmtree(folder)


def train_all(
    missing: list[Wanted],
    out: Path,
    device: str,
    data_dir: Path | None,
    jobs: int,
    on_epoch: Callable[[Wanted, int, int], None],
    on_result: Callable[[Wanted], None],
) -> None:
    """`on_result` hears of each run that is done; with one job, `on_epoch` of its epochs before that."""
    if jobs > 1:
        _train_side_by_side(missing, out, device, data_dir, jobs, on_result)
        return
    for wanted in missing:
        train_wanted(wanted, out, device, data_dir, Watched(functools.partial(on_epoch, wanted)))
        on_result(wanted)


def _train_side_by_side(
    missing: list[Wanted], out: Path, device: str, data_dir: Path | None, jobs: int, on_result: Callable[[Wanted], None]
) -> None:
    threads = max(1, torch.get_num_threads() // jobs)
    with (
        ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool,
        _interrupted_children(),
    ):
        left: dict[Future[None], Wanted] = {
            pool.submit(_in_a_process, wanted, out, device, data_dir): wanted for wanted in missing
        }
        try:
            while left:
                for future in wait(left, return_when=FIRST_COMPLETED).done:
                    future.result()
                    on_result(left.pop(future))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_stopped = False  # in a worker: whether it was told to stop


def _in_a_process(wanted: Wanted, out: Path, device: str, data_dir: Path | None) -> None:
    global _stopped
    if _stopped:
        raise Stopped(wanted.folder(out))
    try:
        train_wanted(wanted, out, device, data_dir, Watched())
    except KeyboardInterrupt:
        _stopped = True
        raise


@contextmanager
def _interrupted_children() -> Iterator[None]:
    """A request to terminate is an interrupt here; Ctrl-C reaches the processes by itself."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
