"""Table I: train what is missing, show the table while it fills, write it down."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from faustnet.errors import FaustnetError
from faustnet.report.paper import TITLES
from faustnet.report.table1 import as_latex, as_markdown, as_text, families
from faustnet.reproduce.results import RESULTS, ResultTable, is_done, read_result, summary, wanted_of
from faustnet.reproduce.wanted import Job, Wanted
from faustnet.reproduce.work import reproduced
from faustnet.reproduce.workers import Workers


def reproduce_table1(wanted: list[Wanted], out: Path, workers: Workers) -> None:
    if not wanted:
        raise FaustnetError("There is nothing to train: name a method, a data set, a network and a family of recipes.")
    board = Board(wanted, out)
    with board.shown():
        cells = reproduced(TABLE, wanted, out, workers, board)
    asked = {(one.method, one.dataset, one.network, one.family) for one in wanted}
    there = len(wanted) - board.trained
    count = f"{board.trained} runs were trained, {there} were there already" if there else f"{board.trained} runs"
    shown = [cell for cell in cells if (cell["method"], cell["dataset"], cell["network"], cell["recipe"]) in asked]
    show(shown, f"{count}; the table is in {out}/table1.json, .md and .tex.")


def show(cells: list[dict[str, Any]], last: str) -> None:
    """Print the tables: with all data sets side by side where there is room, or else one after the other."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for table in tables(cells, console.width):
        console.print(table)
    below = "; below, the paper's figure and the difference" if any(cell["paper"] is not None for cell in cells) else ""
    console.print(f"% of the test images at the last epoch, mean ± standard deviation{below}. {last}", markup=False)


def tables(cells: list[dict[str, Any]], width: int) -> list[Table]:
    """One for each family, or for each family and data set."""
    found = []
    for family in families(cells):
        whole = as_text(cells, family)
        if Console(width=1000).measure(whole).maximum <= width:
            found.append(whole)
            continue
        for dataset in sorted({cell["dataset"] for cell in cells}, key=list(TITLES).index):
            found.append(as_text([cell for cell in cells if cell["dataset"] == dataset], family))
    return found


def texts(cells: list[dict[str, Any]]) -> dict[str, str]:
    names = families(cells)
    return {
        "md": "\n\n".join(as_markdown(cells, family) for family in names) + "\n",
        "tex": "\n\n".join(as_latex(cells, family) for family in names) + "\n",
    }


TABLE = ResultTable("table1", RESULTS, "table 1", wanted_of, summary, texts)


class Board:
    """The table as far as it has come. On a terminal it stays in place; elsewhere there is a line for each run."""

    def __init__(self, wanted: list[Wanted], out: Path):
        self.wanted, self.out = wanted, out
        self.results = [read_result(one.file(out)) for one in wanted if is_done(one, out)]
        self.running: dict[Job, str] = {}
        self.trained = 0
        self.start = time.monotonic()
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=2, get_renderable=self._picture, transient=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with self.live:
            yield

    def begun(self, wanted: Job) -> None:
        self.running[wanted] = ""

    def epoch(self, wanted: Job, done: int, epochs: int) -> None:
        self.running[wanted] = f", epoch {done} of {epochs}"

    def elsewhere(self, wanted: Job, who: str) -> None:
        self.running[wanted] = f", by {who}"
        if not self.console.is_terminal:
            self.console.print(f"{self._count()} {wanted}: being trained by {who}", soft_wrap=True)

    def result(self, wanted: Job) -> None:
        result = read_result(wanted.file(self.out))
        self.results.append(result)
        self.running.pop(wanted, None)
        self.trained += 1
        if not self.console.is_terminal:
            accuracy, seconds = result["test_accuracy"], result["seconds"]
            self.console.print(f"{self._count()} {wanted}: {accuracy:.2%} in {seconds:.0f} s", soft_wrap=True)

    def ended(self, wanted: Job) -> None:
        self.running.pop(wanted, None)

    def _count(self) -> str:
        return f"{len(self.results)}/{len(self.wanted)}"

    def _picture(self) -> Group:
        """What is going on comes first: a table that is too long for the screen is cut below."""
        left = ""
        if self.trained:
            seconds = (time.monotonic() - self.start) / self.trained * (len(self.wanted) - len(self.results))
            left = f", about {seconds / 60:.0f} min left" if seconds > 90 else ", about a minute left"
        lines = [
            f"{self._count()} runs done{left}",
            *(f"  {wanted}{epoch}" for wanted, epoch in self.running.copy().items()),
        ]
        return Group(Text("\n".join(lines)), *tables(summary(self.results), self.console.width))
