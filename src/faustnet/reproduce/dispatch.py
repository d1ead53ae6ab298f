"""Trains all jobs of a command that have no result yet, and writes their table.

Several commands may share one --out: each trains the jobs that no living process has claimed, and waits for the others.
"""

import functools
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from faustnet.errors import FaustnetError, require
from faustnet.reproduce.claims import BEAT, remove_dead, repeating
from faustnet.reproduce.jobs import Job
from faustnet.reproduce.progress import JobProgress, PrintedProgress
from faustnet.reproduce.results import ResultTable, is_done, read_result, writing_to
from faustnet.reproduce.worker import JobSpec, Outcome, Status, answer, attempt
from faustnet.reproduce.workers import Pool, Workers
from faustnet.training.signals import on_signals

ATTEMPTS = 2  # at a job whose worker dies while others run; one more follows with no other job running
TABLE_SHARE = 0.1  # of the time, at most, for writing the table during training: a large table takes a second
NO_WORKERS = (
    "The worker processes ended before they started to train: check that there is enough memory, or use fewer --jobs."
)


def _interrupt() -> None:
    raise KeyboardInterrupt


class Dispatcher:
    """Trains the jobs of one command that have no result. `on_result` is called after each new result."""

    def __init__(
        self,
        jobs: Sequence[Job],
        out: Path,
        workers: Workers,
        on_result: Callable[[], object] = lambda: None,
        progress: JobProgress | None = None,
    ):
        self.jobs, self.workers, self.on_result = jobs, workers, on_result
        self.progress = progress or PrintedProgress()
        data_dir = workers.data_dir.absolute() if workers.data_dir else None
        self.spec = JobSpec(out.absolute(), workers.device, data_dir, uuid4().hex[:12], ATTEMPTS)
        self.trained: set[Job] = set()  # by this command
        self.pending = {job: None for job in jobs if not is_done(job, out)}  # no result seen yet
        self.missing = len(self.pending)
        self.failures: dict[Job, str] = {}  # with the reason
        self.lost: list[Job] = []  # failed because their workers died: tried once more at the end
        self.reported: set[tuple[Job, str]] = set()  # events that are reported once
        self.error: Exception | None = None
        self.stopped, self.looking = False, threading.Lock()
        self.progress.start(len(jobs), self.pending.keys())

    def _report_once(self, job: Job, event: str = "") -> None:
        """Report that a job has begun, or another event."""
        if (job, event) in self.reported:
            return
        self.reported.add((job, event))
        if event:
            self.progress.event(job, event)
        else:
            self.progress.begin(job)

    def run(self) -> None:
        """Train all jobs. One that diverges, or whose workers die, does not stop the others; any other error does."""
        if not self.pending:
            return
        self.spec.claim.take()  # nobody else has its name
        with self.spec.claim:
            remove_dead(self.spec.out)
            if self.workers.here and min(self.workers.jobs or 1, self.missing) == 1:
                with on_signals(_interrupt):
                    self._train_all(self.jobs, self._train_here)
            else:
                self._train_by_workers()
        if self.failures:
            (job, reason), *others = self.failures.items()
            more = f" and {len(others)} more" if others else ""
            raise FaustnetError(f"{job}{more} could not be trained, but all other runs are finished: {reason}")

    def _train_all(self, jobs: Sequence[Job], train: Callable[[list[Job]], bool]) -> None:
        """Train unclaimed jobs until each has a result or has failed. `train` returns whether a worker died."""
        deaths = 0  # in a row, with no result between them
        while (left := [job for job in jobs if self._is_open(job)]) and not self.stopped:
            free = [job for job in left if job not in self.trained and not self.spec.claim_of(job).held]
            died = train(free) if free else self._wait_for(left)
            self._look_for_results()
            no_result = all(map(self._is_open, left))
            deaths = deaths + 1 if died and no_result else 0
            if free and no_result and not died:
                time.sleep(BEAT)  # other commands have just claimed them
            require(deaths <= ATTEMPTS, NO_WORKERS)
            require(
                self.stopped or self.spec.claim.file.exists(),
                f"{self.spec.claim.file} was deleted: run the same command again.",
            )

    def _is_open(self, job: Job) -> bool:
        return job in self.pending and job not in self.failures

    def _wait_for(self, left: list[Job]) -> bool:
        """Wait a moment for other commands. When one dies, its jobs are free."""
        for job in left:
            if job not in self.trained:
                self._report_once(job, f"being trained by {self.spec.claim_of(job).holder}")
        time.sleep(BEAT)
        return False

    def _train_here(self, free: list[Job]) -> bool:
        for job in free:
            try:
                self._handle(attempt(self.spec, job, functools.partial(self._report_once, job)))
            finally:
                self._look_for_results()  # an interrupted job may have a result
        return False

    def _train_by_workers(self) -> None:
        with on_signals(self._interrupted), self.workers.open(self.missing) as pool:
            if pool.children:
                self.spec = replace(self.spec, parent=os.getpid())
            with repeating(self._look):
                self._train_all(self.jobs, functools.partial(self._train_by, pool, self.spec, pool.jobs))
                for job in self.lost:  # there may have been too little memory for several at a time
                    del self.failures[job]
                    self._train_all([job], functools.partial(self._train_by, pool, replace(self.spec, attempts=1), 1))
        if self.error is not None:
            raise self.error
        if self.stopped:
            raise KeyboardInterrupt

    def _train_by(self, pool: Pool, spec: JobSpec, jobs: int, free: list[Job]) -> bool:
        arguments = ((spec, job) for job in itertools.takewhile(lambda job: not self.stopped, free))
        try:
            for outcome in pool.call(answer, arguments, jobs):
                self._guarded(self._handle, outcome)
        except pool.lost:
            return True
        return False

    def _handle(self, outcome: Outcome) -> None:
        """Note the outcome of an attempt. Jobs that were stopped or are trained elsewhere stay open."""
        job, status = outcome.job, outcome.status
        if status is Status.DONE:
            self.trained.add(job)
        elif status in (Status.DIVERGED, Status.LOST):
            self.failures[job] = str(outcome.error)
            if status is Status.LOST and job not in self.lost:
                self.lost.append(job)
        elif status is Status.REFUSED and outcome.error is not None:
            raise outcome.error
        elif status is Status.NO_COMMAND and not self.stopped and self.spec.claim.file.exists():
            raise FaustnetError(
                f"The worker on {outcome.host} cannot find the files of this command in {self.spec.out}: use a folder as "
                "--out that all workers share."
            )

    def _look(self) -> None:
        self._guarded(self._look_for_results)
        self._guarded(self._look_for_claims)

    def _guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        """Call a function; an error stops the workers and is raised once they have stopped."""
        try:
            do(*arguments)
        except Exception as error:
            self.error = self.error or error
            self._stop()

    def _look_for_results(self) -> None:
        """Report new results, of this command's workers and of others."""
        out = self.spec.out
        with self.looking:
            folders = {job.file(out).parent for job in self.pending}
            there = {path for folder in folders for path in folder.glob("*.json")}
            for job in [job for job in self.pending if job.file(out) in there and is_done(job, out)]:
                del self.pending[job]
                self.progress.result(job, read_result(job.file(out)))
                self.on_result()

    def _look_for_claims(self) -> None:
        """Report the jobs that this command's workers have begun."""
        with self.looking:
            there = {path.name for path in self.spec.claim.file.parent.iterdir()}
            claims = {job: self.spec.claim_of(job) for job in self.pending}
            for job, claim in claims.items():
                if claim.notes_file.name in there and claim.notes.get("command") == self.spec.command:
                    self._report_once(job)

    def _stop(self) -> None:
        """Ask the workers to save their state and stop."""
        self.stopped = True
        with suppress(OSError):
            self.spec.claim.file.unlink()

    def _interrupted(self) -> None:
        """Stop the workers at the first signal, and end at once at the second."""
        if self.stopped:
            raise KeyboardInterrupt
        self._stop()


def results_of(
    jobs: Sequence[Job],
    out: Path,
    workers: Workers,
    on_result: Callable[[], object] = lambda: None,
    progress: JobProgress | None = None,
) -> list[dict[str, Any]]:
    """Train the jobs that have no result, and return the results of all."""
    with writing_to(out):  # fails now if the folder is not writable
        pass
    for job in jobs:
        if is_done(job, out):
            shutil.rmtree(job.folder(out), ignore_errors=True)  # left by a process killed right after it wrote the result
    Dispatcher(jobs, out, workers, on_result, progress).run()
    return [read_result(job.file(out)) for job in jobs]


def reproduce(
    table: ResultTable, jobs: Sequence[Job], out: Path, workers: Workers, progress: JobProgress | None = None
) -> list[dict[str, Any]]:
    """Train the jobs that have no result, and write the table of all results in the folder.

    The table is also updated during training. Returns the cells that these jobs belong to.
    """
    table.read(out)  # fails now if the table could not be written in the end
    try:
        results = results_of(jobs, out, workers, _at_most(TABLE_SHARE, lambda: table.write(out)), progress)
    finally:
        cells = table.write(out)
    asked = {table.key(cell) for cell in table.cells(results)}
    return [cell for cell in cells if table.key(cell) in asked]


def _at_most(share: float, do: Callable[[], object]) -> Callable[[], None]:
    """Return a function that skips its call when the calls before it took more than a share of the time."""
    begin, spent = time.monotonic(), 0.0

    def called() -> None:
        nonlocal spent
        now = time.monotonic()
        if spent <= share * (now - begin):
            do()
            spent += time.monotonic() - now

    return called
