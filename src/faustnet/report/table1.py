"""The paper's table with our figures: as text, Markdown and LaTeX."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from faustnet.report.paper import TITLES

Cells = Sequence[dict[str, Any]]


class Grid:
    """A family's cells by row and column, in the paper's order."""

    def __init__(self, cells: Cells, family: str):
        chosen = [cell for cell in cells if cell["recipe"] == family]
        order = list(TITLES)
        self.cells = {(cell["method"], cell["dataset"], cell["network"]): cell for cell in chosen}
        self.methods = sorted({cell["method"] for cell in chosen}, key=order.index)
        columns = {(cell["dataset"], cell["network"]) for cell in chosen}
        self.columns = sorted(columns, key=lambda column: (order.index(column[0]), column[1]))
        self.over = over_seeds(chosen)

    def cell(self, method: str, column: tuple[str, str]) -> dict[str, Any] | None:
        return self.cells.get((method, *column))


def over_seeds(cells: Cells) -> str:
    """How many seeds the figures are of."""
    least, most = (function(cell["seeds"] for cell in cells) for function in (min, max))
    return f"{least} seed{'s' if least > 1 else ''}" if least == most else f"{least} to {most} seeds"


def families(cells: Cells) -> list[str]:
    return sorted({cell["recipe"] for cell in cells})


def as_text(cells: Cells, family: str) -> Table:
    """For a terminal: ours above, the paper's and the difference below."""
    grid = Grid(cells, family)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"{family}, {grid.over}")
    for dataset, network in grid.columns:
        table.add_column(f"{TITLES[dataset]}\n{_shown(network)}", justify="right", no_wrap=True)
    for method in grid.methods:
        table.add_row(TITLES[method], *(_text(grid.cell(method, column)) for column in grid.columns))
    return table


def _text(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    return ours(cell) if cell["paper"] is None else f"{ours(cell)}\n{cell['paper']:.2f} {difference(cell)}"


def as_markdown(cells: Cells, family: str) -> str:
    grid = Grid(cells, family)
    titles = [f"{TITLES[dataset]} {_shown(network)}" for dataset, network in grid.columns]
    lines = [f"| {family}, {grid.over} | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(titles)]
    for method in grid.methods:
        row = (_markdown(grid.cell(method, column)) for column in grid.columns)
        lines.append(f"| {TITLES[method]} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _markdown(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    paper = "" if cell["paper"] is None else f"<br>{cell['paper']:.2f} ({difference(cell)})"
    return f"**{ours(cell)}**{paper}"


def as_latex(cells: Cells, family: str) -> str:
    """For the booktabs package: ours, and in the row below the paper's and the difference."""
    grid = Grid(cells, family)
    datasets = list(dict.fromkeys(dataset for dataset, _ in grid.columns))
    spans = [sum(column[0] == dataset for column in grid.columns) for dataset in datasets]
    heads = [rf"\multicolumn{{{span}}}{{c}}{{{TITLES[name]}}}" for name, span in zip(datasets, spans, strict=True)]
    lines = [
        rf"% {family} recipes, mean and standard deviation over {grid.over}; below, the paper's figure and the difference",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        " & ".join(["Method", *heads]) + r" \\",
        " & ".join(["", *(network.replace("x", "/") for _, network in grid.columns)]) + r" \\",
        r"\midrule",
    ]
    for method in grid.methods:
        row = [grid.cell(method, column) for column in grid.columns]
        lines.append(" & ".join([TITLES[method], *(_latex_ours(cell) for cell in row)]) + r" \\")
        if any(cell and cell["paper"] is not None for cell in row):
            lines.append(" & ".join([r"\quad paper", *(_latex_paper(cell) for cell in row)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_ours(cell: dict[str, Any] | None) -> str:
    return "--" if cell is None else ours(cell).replace("±", r"$\pm$")


def _latex_paper(cell: dict[str, Any] | None) -> str:
    if cell is None or cell["paper"] is None:
        return "--"
    return f"{cell['paper']:.2f} (${cell['mean'] - cell['paper']:+.2f}$)"


def ours(cell: dict[str, Any]) -> str:
    """Mean and standard deviation."""
    return f"{cell['mean']:.2f}" + ("" if cell["std"] is None else f" ± {cell['std']:.2f}")


def difference(cell: dict[str, Any]) -> str:
    """Ours less the paper's."""
    return signed(cell["mean"] - cell["paper"])


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _shown(network: str) -> str:
    return network.replace("x", "×")
