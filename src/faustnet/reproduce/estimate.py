"""Estimate of the time that the jobs of a command still need."""

import math
import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

from faustnet.reproduce.jobs import Job


class TimeLeft:
    """Estimates the time left from the jobs that have finished.

    A job is expected to take as long as finished jobs that differ from it in the seed only, or else as long as the mean of
    all finished jobs. The number of jobs that run at the same time is measured, because several commands may share one
    folder and other programs may use the machine. `after` is the time that the command needs after its jobs, as a multiple
    of the mean of all finished jobs.
    """

    def __init__(self, after: float = 0.0, clock: Callable[[], float] = time.monotonic):
        self.after, self.clock, self.start = after, clock, clock()
        self.began: dict[Job, float] = {}
        self.seconds: dict[Job, float] = {}  # of finished jobs

    def begin(self, job: Job) -> None:
        self.began.setdefault(job, self.clock())

    def end(self, job: Job, seconds: float) -> None:
        self.seconds[job] = seconds

    def of(self, pending: Collection[Job]) -> float | None:
        """Return the seconds until the end of the command, or None before the first result."""
        now = self.clock()
        if not self.seconds or now <= self.start:
            return None
        spent = {job: now - self.began[job] for job in pending if job in self.began}
        rest = [self._rest(job, spent.get(job, 0.0)) for job in pending]
        at_once = (sum(self.seconds.values()) + sum(spent.values())) / (now - self.start)
        return max(sum(rest) / at_once, *rest, 0.0) + self.after * statistics.mean(self.seconds.values())

    def _rest(self, job: Job, spent: float) -> float:
        """Return the seconds that one job still needs. One that takes longer than expected is expected to end soon."""
        alike = [seconds for done, seconds in self.seconds.items() if _kind(done) == _kind(job)]
        return max(statistics.mean(alike or self.seconds.values()) - spent, spent / 10)


def _kind(job: Job) -> tuple[Any, ...]:
    """Return what identifies a job except its seed."""
    return type(job), *(value for key, value in job.facts.items() if key != "seed")


def in_words(seconds: float) -> str:
    """Return a time in seconds, in steps of five, or from two minutes on in minutes, rounded up."""
    return f"{max(5, 5 * math.ceil(seconds / 5))} s" if seconds <= 115 else f"{math.ceil(seconds / 60)} min"
