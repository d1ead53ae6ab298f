"""The table of `faustnet demo`, which fills up during training."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from faustnet.report.table1 import ours
from faustnet.reproduce.estimate import in_words
from faustnet.reproduce.jobs import Job, Table1Job
from faustnet.reproduce.progress import PrintedProgress
from faustnet.reproduce.results import is_done, method_titles, percent, read_result

AFTER = 3.0  # the steps after the table take about as long as this many jobs of the table


class DemoTable:
    """Table of the methods, as a `JobProgress`.

    On a terminal it is drawn again after each result. Elsewhere, lines on standard error show the progress, and the table is
    printed at the end.
    """

    def __init__(self, jobs: Sequence[Table1Job], out: Path, console: Console):
        self.results: dict[Job, dict[str, Any]] = {job: read_result(job.file(out)) for job in jobs if is_done(job, out)}
        self.methods = {job.method: sum(other.method == job.method for other in jobs) for job in jobs}
        self.printed = PrintedProgress(AFTER)
        self.terminal = console.is_terminal
        self.live = Live(console=console, get_renderable=self._drawn, refresh_per_second=2)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def start(self, jobs: int, pending: Collection[Job]) -> None:
        self.printed.start(jobs, pending)

    def event(self, job: Job, event: str) -> None:
        if not self.terminal:
            self.printed.event(job, event)

    def begin(self, job: Job) -> None:
        if self.terminal:
            self.printed.time.begin(job)
        else:
            self.printed.begin(job)

    def result(self, job: Job, result: dict[str, Any]) -> None:
        self.results[job] = result
        if self.terminal:
            self.printed.time.end(job, result["seconds"])
        else:
            self.printed.result(job, result)

    def passes(self, method: str) -> int:
        """Return the number of forward passes for a prediction of a method that has a result."""
        return next(result["forward_passes"] for result in self.results.values() if result["method"] == method)

    def _drawn(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading, side in (
            ("method", "left"),
            ("test accuracy, %", "right"),
            ("answers from", "left"),
            ("passes", "right"),
        ):
            table.add_column(heading, justify=side)  # type: ignore[arg-type]
        for method, title in method_titles().items():
            if method in self.methods:
                table.add_row(title, *self._cells(method))
        pending = self.printed.pending
        return Group(table, f"  {self._left()}") if self.terminal and pending else table

    def _cells(self, method: str) -> tuple[str, str, str]:
        found = [result for result in self.results.values() if result["method"] == method]
        if not found:
            return "…", "", ""
        voters = found[0]["voters"]
        more = " …" if len(found) < self.methods[method] else ""
        answers = f"layers 1 to {len(voters)}" if len(voters) > 1 else f"{voters[0]} only"
        return ours(percent(found)) + more, answers, str(found[0]["forward_passes"])

    def _left(self) -> str:
        time, done = self.printed.time, self.printed.jobs - len(self.printed.pending)
        seconds = time.of(self.printed.pending)
        if seconds is None:
            return "training …"
        return f"{done} of {self.printed.jobs} runs, about {in_words(seconds)} left until the end of the demo"
