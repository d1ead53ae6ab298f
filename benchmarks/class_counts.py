"""Write docs/class-counts.md from the files in a folder of results, or from those that are there already."""

import json
from pathlib import Path
from typing import Any

import coarse_groups
from faustnet.report.table1 import over_seeds
from faustnet.report.tables import markdown
from faustnet.reproduce.best import LOCAL, ROLES, difference
from faustnet.reproduce.class_counts import TABLE
from faustnet.reproduce.results import grouped

FIGURE = "figures/class-counts.svg"
NOTHING = "There are no results yet."

PAGE = """# Accuracy by the number of classes

Does training with a loss in every layer fall behind backprop when there are more classes? This page compares FAUST with its
twins on some of the classes of CIFAR-100: with backprop, and with deep supervision, which has the same losses on every layer
and a gradient through all layers.

<!-- not run: takes long -->
```sh
{commands}
```

A seed draws the classes, and all three arms of a seed have the same ones. The classes of a smaller number are among those of
a larger one. Every run has the recipe that was chosen for all classes, with its number of epochs. With fewer classes, an
epoch has fewer images and fewer steps, so the accuracies of different numbers of classes are not comparable; those in one
row are.

{counts}

{groups}
"""
COUNTS = """{figure}Test accuracy in % after the last epoch, mean ± standard deviation over {seeds}. ± after a difference
is its 95 % interval (Welch's t); ○ marks an interval that includes zero, where neither side is better. *seeds* are those of
the recipe and of its twins, in the order of the columns. `python benchmarks/results.py` writes this page from
`results/class-counts.json`; `results/class-counts/` has one file per run.

{table}

{reading}"""


def page(folder: Path) -> str:
    """Return the page."""
    cells, rows = (_read(folder / name) for name in ("class-counts.json", "coarse-groups.json"))
    groups = coarse_groups.section(rows) or f"{coarse_groups.HEADING}\n\n{NOTHING}"
    counts = _counts(cells, folder) if cells else NOTHING
    return PAGE.format(commands="\n".join(_commands(cells)), counts=counts, groups=groups)


def _commands(cells: list[dict[str, Any]]) -> list[str]:
    """Return the commands that make these cells, or the command that makes the first ones."""
    options = [
        f"--base {about['of']} --counts {','.join(map(str, counts_of(mine)))} --seeds {max(one['seeds'] for one in mine)}"
        for about, mine in grouped(cells, "of")
    ]
    first = "--base cifar100/cnn --counts 10,20,50,100"
    return [f"faustnet reproduce class-counts {words} --out results --jobs 3" for words in options or [first]]


def counts_of(cells: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of classes of these cells."""
    return sorted({cell["count"] for cell in cells})


def _counts(cells: list[dict[str, Any]], folder: Path) -> str:
    figure = f"![Accuracy by the number of classes](../results/{FIGURE})\n\n" if (folder / FIGURE).exists() else ""
    table = markdown(TABLE.columns, TABLE.rows(cells))
    reading = "\n".join(text for _, mine in grouped(cells, "of") if (text := in_words(mine)))
    return COUNTS.format(figure=figure, seeds=over_seeds(cells), table=table, reading=reading).rstrip()


def in_words(cells: list[dict[str, Any]]) -> str:
    """Say how the differences between one recipe and its twins change from the fewest classes to the most."""
    found = {(cell["count"], cell["role"]): cell for cell in cells}
    said = []
    for twin in ROLES.values():
        counts = sorted(count for count, role in found if role == twin and (count, LOCAL) in found)
        if len(counts) > 1:
            few, many = (difference(found[count, LOCAL], found[count, twin]) for count in (counts[0], counts[-1]))
            name = twin.replace("-", " ")
            said.append(f"to {name} is {few} with {counts[0]} classes and {many} with {counts[-1]}")
    return f"- **{cells[0]['of']}**: the difference {'; that '.join(said)}." if said else ""


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
