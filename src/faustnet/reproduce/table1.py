"""Table I: train what is missing, show the table while it fills, write it down."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from faustnet.errors import FaustnetError
from faustnet.report.table1 import as_latex, as_markdown, as_text, families
from faustnet.reproduce.results import alone_in, is_done, read_result, read_results, summary
from faustnet.reproduce.runner import Work
from faustnet.reproduce.wanted import Wanted
from faustnet.runs import write_whole


def reproduce_table1(wanted: list[Wanted], out: Path, device: str, data_dir: Path | None, jobs: int) -> None:
    if not wanted:
        raise FaustnetError("There is nothing to train: name a method, a data set, a network and a family of recipes.")
    with alone_in(out):
        read_results(out)  # to find out now whether the table can be written in the end
        done = [one for one in wanted if is_done(one, out)]
        for one in done:
            shutil.rmtree(one.folder(out), ignore_errors=True)  # it may have been killed just before
        missing = [one for one in wanted if one not in set(done)]
        board = Board(wanted, done, out)
        with board.shown():
            Work(missing, out, device, data_dir, board.epoch, board.result).do(jobs)
        write_table1(out)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for family in dict.fromkeys(one.family for one in wanted):
        console.print(as_text(board.cells, family))
    print(f"% of the test images at the last epoch, mean ± standard deviation; below, the paper's. In {out}/table1.json.")


def write_table1(out: Path) -> None:
    """table1.json, .md and .tex, of all results that are there."""
    cells = summary(read_results(out))
    names = families(cells)
    texts = {
        "json": "[\n" + ",\n".join(f" {json.dumps(cell)}" for cell in cells) + "\n]\n",
        "md": "\n\n".join(as_markdown(cells, family) for family in names) + "\n",
        "tex": "\n\n".join(as_latex(cells, family) for family in names) + "\n",
    }
    for ending, text in texts.items():
        write_whole(out / f"table1.{ending}", text.encode())


class Board:
    """The table as far as it has come. On a terminal it stays in place; elsewhere there is a line for each run."""

    def __init__(self, wanted: list[Wanted], done: list[Wanted], out: Path):
        self.wanted, self.out = wanted, out
        self.results = [read_result(one.file(out)) for one in done]
        self.trained = 0
        self.begin = time.monotonic()
        self.now = ""
        self.live = Live(console=Console(stderr=True, highlight=False), refresh_per_second=4, get_renderable=self._picture)

    @property
    def cells(self) -> list[dict]:
        return summary(self.results)

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self.live.console.is_terminal:
            yield
            return
        with self.live:
            yield

    def epoch(self, wanted: Wanted, done: int, epochs: int) -> None:
        self.now = f"{wanted}: epoch {done} of {epochs}"

    def result(self, wanted: Wanted) -> None:
        result = read_result(wanted.file(self.out))
        self.results.append(result)
        self.trained += 1
        if not self.live.console.is_terminal:
            accuracy, seconds = result["test_accuracy"], result["seconds"]
            self.live.console.print(f"{self._count()} {wanted}: {accuracy:.2%} in {seconds:.0f} s", soft_wrap=True)

    def _count(self) -> str:
        return f"{len(self.results)}/{len(self.wanted)}"

    def _picture(self) -> Group:
        passed = time.monotonic() - self.begin
        left = (
            f", about {passed / self.trained * (len(self.wanted) - len(self.results)) / 60:.0f} min left"
            if self.trained
            else ""
        )
        tables = [as_text(self.cells, family) for family in families(self.cells)]
        return Group(*tables, Text(f"{self._count()} runs done{left}  {self.now}"))
