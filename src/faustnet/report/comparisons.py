"""Rows of the table of the strongest recipes next to their backprop twins, and of the table of ablations."""

from collections.abc import Iterable, Sequence
from typing import Any

from faustnet.report.paper import dataset_rank
from faustnet.report.table1 import ours, signed

Cells = Sequence[dict[str, Any]]

PAIR_COLUMNS = ("recipe", "local", "backprop twin", "difference", "trunk parameters", "parameters", "seconds")
CHANGE_COLUMNS = ("changed", "validation accuracy", "difference")


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pair_rows(cells: Cells) -> list[list[str]]:
    """Return one row per recipe: its accuracy, its twin's, and the parameters and seconds of both."""
    twins = {cell["of"]: cell for cell in cells if cell["twin"]}
    return [_pair_row(cell, twins.get(cell["name"])) for cell in in_order(cells) if not cell["twin"]]


def in_order(cells: Cells) -> Cells:
    """Return the cells by data set, then by name."""
    return sorted(cells, key=lambda cell: (dataset_rank(cell["dataset"]), cell["name"]))


def _pair_row(cell: dict[str, Any], twin: dict[str, Any] | None) -> list[str]:
    both = [cell] if twin is None else [cell, twin]
    return [
        cell["name"],
        ours(cell),
        "–" if twin is None else ours(twin),
        "–" if twin is None else signed(cell["mean"] - twin["mean"]),
        "–" if cell["trunk_parameters"] is None else f"{cell['trunk_parameters']:,}",
        " / ".join(f"{one['parameters']:,}" for one in both),
        " / ".join(f"{one['seconds']:.0f}" for one in both),
    ]


def change_rows(cells: Cells) -> list[list[str]]:
    """Return one row per change of a base recipe, and one for the unchanged base."""
    return [
        [cell["change"], ours(cell), "–" if cell["difference"] is None else signed(cell["difference"])] for cell in cells
    ]
