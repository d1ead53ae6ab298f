"""Table 1 of the paper with our results next to the paper's: as text, Markdown and LaTeX.

`titles` are the titles of methods by name, in the order of the rows; methods without one come last, by their names.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from faustnet.report.paper import dataset_rank, dataset_title
from faustnet.report.tables import markdown

Cells = Sequence[dict[str, Any]]
Titles = Mapping[str, str]


class Grid:
    """The cells of one family of recipes by row (method) and column (data set and network)."""

    def __init__(self, cells: Cells, family: str, titles: Titles):
        chosen = [cell for cell in cells if cell["recipe"] == family]
        self.cells = {(cell["method"], cell["dataset"], cell["network"]): cell for cell in chosen}
        names = {cell["method"] for cell in chosen}
        rows = [*(name for name in titles if name in names), *sorted(names - titles.keys())]
        self.methods = {name: titles.get(name, name) for name in rows}
        columns = {(cell["dataset"], cell["network"]) for cell in chosen}
        self.columns = sorted(columns, key=lambda column: (dataset_rank(column[0]), column[1]))
        self.seeds_differ = len({cell["seeds"] for cell in chosen}) > 1
        self.over = over_seeds(chosen) + (" (in brackets)" if self.seeds_differ else "")

    def ours(self, cell: dict[str, Any]) -> str:
        """Return the mean and standard deviation of a cell, and its number of seeds if not all cells have the same."""
        return ours(cell) + (f" ({cell['seeds']})" if self.seeds_differ else "")

    def rows(self, show: Callable[[dict[str, Any]], str], missing: str = "–") -> list[list[str]]:
        """Return one row per method: its title, and its cells as `show` formats them."""
        keys = [[(method, *column) for column in self.columns] for method in self.methods]
        shown = [[show(self.cells[key]) if key in self.cells else missing for key in row] for row in keys]
        return [[title, *row] for title, row in zip(self.methods.values(), shown, strict=True)]


def over_seeds(cells: Cells) -> str:
    """Return the number of seeds that the cells are means over."""
    least, most = (function(cell["seeds"] for cell in cells) for function in (min, max))
    return f"{least} seed{'s' if least > 1 else ''}" if least == most else f"{least} to {most} seeds"


def families(cells: Cells) -> list[str]:
    return sorted({cell["recipe"] for cell in cells})


def as_text(cells: Cells, family: str, titles: Titles) -> Table:
    """Return a table for a terminal: our accuracy, and below it the paper's and the difference."""
    grid = Grid(cells, family, titles)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"{family}, {grid.over}")
    for dataset, network in grid.columns:
        table.add_column(f"{dataset_title(dataset)}\n{_shown(network)}", justify="right", no_wrap=True)
    for row in grid.rows(lambda cell: grid.ours(cell) + _below(cell, "\n{:.2f} {}")):
        table.add_row(*row)
    return table


def _below(cell: dict[str, Any], form: str) -> str:
    """Return the paper's accuracy and the difference, if there are any."""
    return "" if cell["paper"] is None else form.format(cell["paper"], difference(cell))


def as_markdown(cells: Cells, family: str, titles: Titles) -> str:
    grid = Grid(cells, family, titles)
    heads = [f"{dataset_title(dataset)} {_shown(network)}" for dataset, network in grid.columns]
    rows = grid.rows(lambda cell: f"**{grid.ours(cell)}**{_below(cell, '<br>{:.2f} ({})')}")
    return markdown([f"{family}, {grid.over}", *heads], rows)


def as_latex(cells: Cells, family: str, titles: Titles) -> str:
    """Return a table for the booktabs package: our accuracy, and in the row below the paper's and the difference."""
    grid = Grid(cells, family, titles)
    datasets = list(dict.fromkeys(dataset for dataset, _ in grid.columns))
    spans = [sum(column[0] == dataset for column in grid.columns) for dataset in datasets]
    names = map(_escaped, map(dataset_title, datasets))
    heads = [rf"\multicolumn{{{span}}}{{c}}{{{name}}}" for name, span in zip(names, spans, strict=True)]
    lines = [
        rf"% {family} recipes, mean and standard deviation over {grid.over}; below it, the paper's accuracy "
        "and the difference",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        " & ".join(["Method", *heads]) + r" \\",
        " & ".join(["", *(network.replace("x", "/") for _, network in grid.columns)]) + r" \\",
        r"\midrule",
    ]
    mine = grid.rows(lambda cell: grid.ours(cell).replace("±", r"$\pm$"), "--")
    for (title, *row), (_, *paper) in zip(mine, grid.rows(_latex_paper, "--"), strict=True):
        lines.append(" & ".join([_escaped(title), *row]) + r" \\")
        if set(paper) != {"--"}:
            lines.append(" & ".join([r"\quad paper", *paper]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _escaped(title: str) -> str:
    return re.sub(r"([&%$#_{}])", r"\\\1", title)


def _latex_paper(cell: dict[str, Any]) -> str:
    return "--" if cell["paper"] is None else f"{cell['paper']:.2f} (${cell['mean'] - cell['paper']:+.2f}$)"


def ours(cell: dict[str, Any]) -> str:
    """Return the mean and standard deviation of a cell."""
    return f"{cell['mean']:.2f}" + ("" if cell["std"] is None else f" ± {cell['std']:.2f}")


def difference(cell: dict[str, Any]) -> str:
    """Return our accuracy minus the paper's."""
    return signed(cell["mean"] - cell["paper"])


def signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")  # −0.0 + 0.0 is 0.0


def _shown(network: str) -> str:
    return network.replace("x", "×")
