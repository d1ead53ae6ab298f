"""Table 1 of the paper: train what is missing, show the table as it fills, write it."""

import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from faustnet.errors import FaustnetError
from faustnet.report.paper import dataset_rank, reported
from faustnet.report.table1 import as_latex, as_markdown, as_text, families
from faustnet.reproduce.dispatch import JobLog, reproduce
from faustnet.reproduce.jobs import Job, Table1Job
from faustnet.reproduce.results import Cells, ResultTable, grouped, is_done, method_titles, percent, read_result
from faustnet.reproduce.workers import Workers


def summary(results: Iterable[dict[str, Any]]) -> Cells:
    """Return the cells of the table: test accuracy in %, mean and standard deviation over the seeds."""
    cells = [
        {
            "method": about["method"],
            "dataset": about["dataset"],
            "network": about["network"],
            "recipe": about["family"],
            **percent(found),
            "seeds": len(found),
            "paper": reported(about["method"], about["dataset"], about["network"]),
        }
        for about, found in grouped(results, "method", "dataset", "network", "family")
    ]
    return sorted(cells, key=TABLE.key)


def tables(cells: Cells, width: int) -> list[Table]:
    """Return one table per family of recipes, or per family and data set where that is too wide."""
    found = []
    for family in families(cells):
        whole = as_text(cells, family, method_titles())
        if Console(width=1000).measure(whole).maximum <= width:
            found.append(whole)
            continue
        for dataset in sorted({cell["dataset"] for cell in cells if cell["recipe"] == family}, key=dataset_rank):
            found.append(as_text([cell for cell in cells if cell["dataset"] == dataset], family, method_titles()))
    return found


def texts(cells: Cells) -> dict[str, str]:
    return {
        suffix: "\n\n".join(text(cells, family, method_titles()) for family in families(cells)) + "\n"
        for suffix, text in (("md", as_markdown), ("tex", as_latex))
    }


TABLE = ResultTable(Table1Job, summary, ("method", "dataset", "network", "recipe"), texts=texts, folders="*/")


def reproduce_table1(jobs: list[Table1Job], out: Path, workers: Workers) -> None:
    if not jobs:
        raise FaustnetError("Nothing to train: give at least one of --methods, --datasets, --networks and --recipes.")
    live = LiveTable(jobs, out)
    with live.live if live.console.is_terminal else nullcontext():
        cells = reproduce(TABLE, jobs, out, workers, live)
    there = len(jobs) - live.trained
    count = f"{live.trained} runs were trained, {there} were there already" if there else f"{live.trained} runs"
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for table in tables(cells, console.width):
        console.print(table)
    below = "; below, the paper's figure and the difference" if any(cell["paper"] is not None for cell in cells) else ""
    console.print(
        f"Test accuracy in % after the last epoch, mean ± standard deviation over the seeds{below}. {count}; the table is "
        f"in {out}/table1.json, .md and .tex.",
        markup=False,
    )


class LiveTable(JobLog):
    """The table during training. On a terminal it is updated in place; elsewhere one line is printed per run."""

    def __init__(self, jobs: list[Table1Job], out: Path):
        super().__init__(out)
        self.jobs = jobs
        self.results = [read_result(job.file(out)) for job in jobs if is_done(job, out)]
        self.running: dict[Job, str] = {}
        self.trained = 0
        self.start = time.monotonic()
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=2, get_renderable=self._picture, transient=True)

    def begun(self, job: Job) -> None:
        self.running[job] = ""

    def epoch(self, job: Job, done: int, epochs: int) -> None:
        self.running[job] = f", epoch {done} of {epochs}"

    def elsewhere(self, job: Job, who: str) -> None:
        self.running[job] = f", by {who}"
        super().elsewhere(job, who)

    def result(self, job: Job) -> None:
        self.results.append(read_result(job.file(self.out)))
        self.running.pop(job, None)
        self.trained += 1
        super().result(job)

    def failed(self, job: Job) -> None:
        self.running.pop(job, None)

    def say(self, job: Job, event: str) -> None:
        if not self.console.is_terminal:
            print(f"{self._count()} {job}: {event}", file=sys.stderr)

    def _count(self) -> str:
        return f"{len(self.results)}/{len(self.jobs)}"

    def _picture(self) -> Group:
        """Return running jobs above the table, because a terminal cuts off what is too long at the bottom."""
        left = ""
        if self.trained:
            seconds = (time.monotonic() - self.start) / self.trained * (len(self.jobs) - len(self.results))
            left = f", about {seconds / 60:.0f} min left" if seconds > 90 else ", about a minute left"
        lines = [f"{self._count()} runs done{left}", *(f"  {job}{epoch}" for job, epoch in self.running.copy().items())]
        return Group(Text("\n".join(lines)), *tables(summary(self.results), self.console.width))
