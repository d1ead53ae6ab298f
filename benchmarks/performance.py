"""Write the tables and the figure of docs/performance.md from the result files in results/.

    python benchmarks/performance.py

requires matplotlib (`pip install -c constraints.txt -e '.[figures]'`). `faustnet bench --out FILE.json` writes
bench-cpu.json and bench-h200.json; `faustnet bench convolutions --out FILE.json` writes the files that end in
-convolutions.json; benchmarks/time_to_accuracy.py and benchmarks/own_model.py write the others. The part of a table
that is not in the files is left out.
"""

import re
from collections.abc import Callable
from pathlib import Path

import performance_steps
import performance_tables
from performance_figure import caption, draw
from performance_files import Results, read
from performance_summary import costs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURE = ROOT / "docs" / "performance.svg"
TABLES: dict[str, Callable[[Results], str]] = {
    "costs": costs,
    "figure": caption,
    "sources": performance_tables.sources,
    "starts": performance_steps.starts,
    "own model": performance_tables.own_model,
    "steps": performance_steps.steps,
    "compiled": performance_steps.compiled,
    "scaling": performance_steps.scaling,
    "many classes": performance_steps.many_classes,
    "convolutions": performance_steps.convolutions,
    "training": performance_tables.training,
    "accuracy": performance_tables.accuracy,
    "prediction": performance_tables.prediction,
    "early exit": performance_tables.early_exit,
    "memory": performance_tables.memory,
    "residual memory": performance_tables.residual_memory,
    "convolution memory": performance_tables.convolution_memory,
}


def with_tables(page: str, found: Results) -> str:
    """Return the page with the text between each pair of marks replaced."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: benchmarks/performance.py -->\n", "\n<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(page), f"the page has no marks for {name}"
        page = pattern.sub(lambda _, text=begin + make(found) + end: text, page, count=1)
    return page


def main() -> None:
    found = read()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    draw(found, FIGURE)
    print(*(f"wrote {path.relative_to(ROOT)}" for path in (PAGE, FIGURE)), sep="\n")


if __name__ == "__main__":
    main()
