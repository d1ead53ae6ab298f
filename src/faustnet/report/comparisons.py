"""Rows of the strongest recipes beside their backprop twins, and of what each piece of a recipe gives."""

from collections.abc import Iterable, Sequence
from typing import Any

from faustnet.report.paper import TITLES
from faustnet.report.table1 import ours, signed

Cells = Sequence[dict[str, Any]]

PAIR_COLUMNS = ("recipe", "local", "backprop twin", "difference", "trunk", "parameters", "seconds")
CHANGE_COLUMNS = ("changed", "validation accuracy", "difference")


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns but the first hold numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pair_rows(cells: Cells) -> list[list[str]]:
    """One for each recipe that has a result of its own: its figure, its twin's, and what both take."""
    twins = {cell["of"]: cell for cell in cells if cell["twin"]}
    return [_pair_row(cell, twins.get(cell["name"])) for cell in in_order(cells) if not cell["twin"]]


def in_order(cells: Cells) -> Cells:
    """By data set as the paper has them, then by name."""
    return sorted(cells, key=lambda cell: (list(TITLES).index(cell["dataset"]), cell["name"]))


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
    """One for each change of a base recipe, and the base itself."""
    return [
        [cell["change"], ours(cell), "–" if cell["difference"] is None else signed(cell["difference"])] for cell in cells
    ]
