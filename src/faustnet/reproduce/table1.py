"""Table 1 of the paper: train what is missing, write the table and print it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from faustnet.errors import FaustnetError
from faustnet.report.paper import dataset_rank, reported
from faustnet.report.table1 import as_latex, as_markdown, as_text, families
from faustnet.reproduce.dispatch import reproduce
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.results import Cells, ResultTable, grouped, is_done, method_titles, percent
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
        raise FaustnetError("--methods, --datasets, --networks and --recipes must each contain at least one name.")
    there = sum(is_done(job, out) for job in jobs)
    cells = reproduce(TABLE, jobs, out, workers)
    count = f"{len(jobs) - there} runs were trained, {there} were already finished" if there else f"{len(jobs)} runs"
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for table in tables(cells, console.width):
        console.print(table)
    below = "; below it, the paper's accuracy and the difference" if any(cell["paper"] is not None for cell in cells) else ""
    console.print(
        f"Test accuracy in % after the last epoch, mean ± standard deviation over the seeds{below}. {count}; the table is "
        f"in {out}/table1.json, .md and .tex.",
        markup=False,
    )
