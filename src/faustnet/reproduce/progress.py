"""Progress of the jobs of a command."""

import sys
from collections.abc import Collection
from typing import Any, Protocol

from faustnet.reproduce.estimate import TimeLeft, in_words
from faustnet.reproduce.jobs import Job
from faustnet.reproduce.results import accuracy


class JobProgress(Protocol):
    """Receives the events of the jobs of a command."""

    def start(self, jobs: int, pending: Collection[Job]) -> None:
        """Called first, with the number of all jobs and the jobs without a result, a view that changes during training."""

    def event(self, job: Job, event: str) -> None: ...
    def begin(self, job: Job) -> None: ...
    def result(self, job: Job, result: dict[str, Any]) -> None: ...


class PrintedProgress:
    """Prints one line per event to standard error. `after` is that of `TimeLeft`."""

    def __init__(self, after: float = 0.0) -> None:
        self.after = after
        self.start(0, ())

    def start(self, jobs: int, pending: Collection[Job]) -> None:
        self.jobs, self.pending, self.time = jobs, pending, TimeLeft(self.after)

    def event(self, job: Job, event: str) -> None:
        print(f"{self.jobs - len(self.pending)}/{self.jobs} {job}: {event}", file=sys.stderr, flush=True)

    def begin(self, job: Job) -> None:
        self.time.begin(job)
        self.event(job, "training")

    def result(self, job: Job, result: dict[str, Any]) -> None:
        self.time.end(job, result["seconds"])
        seconds = self.time.of(self.pending)
        left = f", about {in_words(seconds)} left" if seconds else ""
        self.event(job, f"{accuracy(result):.2%} in {result['seconds']:.0f} s{left}")
