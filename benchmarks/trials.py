"""Train and store trials of recipes, evaluated on validation images. Shared by benchmarks/tuning.py and
benchmarks/best.py."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TypedDict

import torch

from faustnet.errors import require
from faustnet.reproduce.results import write_lines, writing_to
from faustnet.reproduce.worker import cached_data, end_with_parent
from faustnet.reproduce.workers import ignore_sigint
from faustnet.runs.recipes import Recipe
from faustnet.runs.session import set_up
from faustnet.system.environment import environment
from faustnet.training.loop import Diverged
from faustnet.training.signals import on_signals

INTERRUPTED = 128 + signal.SIGINT  # exit status
KILLED = (
    "A process was killed, perhaps because there was not enough memory: run the same command again, with a smaller --jobs "
    "if this happens again."
)
EQUAL, LEARNING_RATE = "equal", "learning-rate"  # tuning: the same draws for all arms; only the learning rate of twins
RECIPES = Path(__file__).parents[1] / "src/faustnet/runs/recipes"

Trial = dict[str, Any]  # its settings and its result


class Result(TypedDict, total=False):
    """Result of a trial. The accuracy is None if the trial was not trained yet, or if it failed."""

    validation_accuracy: float | None
    failed: str  # the reason
    seconds: float
    environment: dict[str, Any]


def read(path: Path) -> list[Trial]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def read_existing(path: Path) -> list[Trial]:
    """Return the trials of a file that has to exist."""
    require(path.exists(), f"FILE must be a file with trials, but {path} does not exist: add trials to it first.")
    return read(path)


def save(path: Path, trials: list[Trial]) -> None:
    write_lines(path, trials)


def run(
    path: Path,
    recipe_of: Callable[[Trial], Recipe],
    shown: Callable[[Trial], str],
    wanted: Callable[[Trial], bool],
    jobs: int,
    device: str,
    seconds: float,
) -> None:
    """Train the wanted trials without a result, beginning with the first of every study. The file is written after each
    trial. No trial is started after the given seconds. The last line says how many wanted trials have no result.

    At most `jobs` dense networks are trained at the same time. Another network counts as half of them, so that two are
    trained at the same time. A trial that fails is stored with the reason, and trained again by the next call.
    """
    chosen = list(filter(wanted, read_existing(path)))
    require(bool(chosen), f"{path} must have a trial of what is to run, got none: add trials, or choose other ones.")
    waiting = list(filter(is_open, chosen))
    studies = [{key: trial[key] for key in ("study", "method", "dataset") if key in trial} for trial in waiting]
    order = sorted(range(len(waiting)), key=lambda place: studies[:place].count(studies[place]))
    waiting = [waiting[place] for place in order]
    recipes = [recipe_of(trial) for trial in waiting]
    slots = [1 if recipe.network.kind == "dense" else max(1, jobs // 2) for recipe in recipes]
    failed = 0
    for number, result in results_of(measure, [(recipe, device) for recipe in recipes], slots, jobs, seconds):
        failed += result["validation_accuracy"] is None
        print(shown(record(path, waiting[number], result)), flush=True)
    print_left(path, wanted)
    if failed:
        raise SystemExit(f"{failed} trials failed; {path} has the reasons, and the same command trains them again.")


def is_open(trial: Trial) -> bool:
    """Whether a trial has no result."""
    return trial["validation_accuracy"] is None


def print_left(path: Path, wanted: Callable[[Trial], bool] = lambda trial: True) -> None:
    """Print how many wanted trials in a file have no result, if there are any."""
    if left := sum(is_open(trial) and wanted(trial) for trial in read(path)):
        print(f"{left} trial{'s' if left > 1 else ''} left: run the command again.")


def results_of(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], slots: Sequence[int], jobs: int, seconds: float
) -> Iterator[tuple[int, Any]]:
    """Call a function with each of these arguments, in processes, and yield the number and the result of each call as they
    end. A call takes some of `jobs` slots. None is begun after the given seconds. If some calls raise errors, the others go
    on, and then the first error is raised. If a process is killed, the calls that run at that time are lost, no others are
    begun, and the program ends. On Ctrl-C or SIGTERM no others are begun, and the program ends after those that run."""
    end, begun = time.monotonic() + seconds, 0
    running: dict[Future[Any], int] = {}
    errors: list[BaseException] = []
    interruption = Interruption()
    with on_signals(interruption), ProcessPoolExecutor(jobs, get_context("spawn"), begin_worker) as pool:
        while True:
            while begun < len(calls) and time.monotonic() < end and not (interruption.asked or any(map(_is_loss, errors))):
                if sum(slots[number] for number in running.values()) + slots[begun] > jobs:
                    break
                running[_submitted(pool, function, calls[begun])] = begun
                begun += 1
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number, error = running.pop(future), future.exception()
                if error is None:
                    yield number, future.result()
                else:
                    errors.append(error)
    if interruption.asked:
        raise SystemExit(INTERRUPTED)
    _raise_first(errors, len(calls))


class Interruption:
    """What a signal does: after the first one no calls are begun, and the second one ends the processes and the program."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> None:
        if self.asked:
            for process in active_children():
                process.terminate()
            raise SystemExit(INTERRUPTED)
        self.asked = True
        os.write(2, b"Interrupted: the runs that have begun are finished and stored; interrupt again to end them at once.\n")


def _submitted(pool: ProcessPoolExecutor, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
    """Begin a call in a process that ignores Ctrl-C. If a process was killed before, its future has the error."""
    try:
        with ignore_sigint():
            return pool.submit(function, *arguments)
    except BrokenProcessPool as error:
        lost: Future[Any] = Future()
        lost.set_exception(error)
        return lost


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, BrokenProcessPool)


def _raise_first(errors: Sequence[BaseException], calls: int) -> None:
    """Raise the first error of a call. If there are only losses, end the program with a sentence."""
    for error in errors:
        if not _is_loss(error):
            error.add_note(f"{len(errors)} of {calls} calls failed; this is the error of the first.")
            raise error
    if errors:
        raise SystemExit(KILLED)


def begin_worker() -> None:
    """Use one thread, and end with the process that started this one, on Linux."""
    torch.set_num_threads(1)
    end_with_parent()


def add_row(path: Path, row: Trial, keys: Sequence[str]) -> None:
    """Add a row to a file, in place of one with the same values of `keys`. Other programs may have added rows."""
    with writing_to(path.parent):
        others = [other for other in read(path) if any(other[key] != row[key] for key in keys)]
        save(path, [*others, row])


def record(path: Path, trial: Trial, result: Result) -> Trial:
    """Store the result of a trial in the file, to which other programs may have added trials and results."""
    with writing_to(path.parent):
        trials = read(path)
        (found,) = (other for other in trials if _identity(other) == _identity(trial))
        found.pop("failed", None)
        found |= result
        save(path, trials)
    return found


def _identity(trial: Trial) -> Trial:
    """Return what tells a trial from all others in a file."""
    return {key: trial[key] for key in ("study", "method", "dataset", "number") if key in trial}


def measure(recipe: Recipe, device: str) -> Result:
    """Return the result of a trial. A trial that diverged has an accuracy of 0; one that failed otherwise has none."""
    begin = time.perf_counter()
    where = torch.device(device)
    about = {"environment": environment(where, recipe.seed)}
    try:
        _, trainer = set_up(recipe, cached_data(recipe.dataset, None), where)
        trainer.run(lambda: None, lambda epoch: None)
        result = Result(validation_accuracy=trainer.history[-1].accuracy)
    except Diverged as error:
        result = Result(validation_accuracy=0.0, failed=str(error))
    except Exception as error:  # whatever it is, the other trials go on
        result = Result(validation_accuracy=None, failed=f"{type(error).__name__}: {error}")
        torch.cuda.empty_cache()
    return Result(**result, seconds=round(time.perf_counter() - begin, 2), **about)


def outcome(trial: Trial) -> str:
    """Return the accuracy and the time of a trial, or why it failed, for a line of text."""
    accuracy, seconds = trial["validation_accuracy"], trial.get("seconds", 0.0)
    figures = f"{'–':>7} {'':8}" if accuracy is None else f"{accuracy:7.2%} {seconds:6.1f} s"
    return figures + (f" failed ({trial['failed']})" if "failed" in trial else "")


def best_of(trials: list[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial["validation_accuracy"])


def write_recipe(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
