"""The command compare."""

from pathlib import Path
from typing import Annotated, Any

import typer

from faustnet.cli.options import AsJson, print_json
from faustnet.cli.spelling import Command
from faustnet.errors import require


class CompareCommand(Command):
    """Command whose option --with takes all folders after it. An option of Typer takes one value at a time."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        a, b, options = _groups(args)
        for name, folders in (("A", a), ("B", b)):
            require(
                bool(folders) or "--help" in options,
                f"Each group needs at least one run folder: faustnet compare A… --with B…, got none for {name}.",
            )
        return super().parse_args(ctx, [*a, *(word for folder in b for word in ("--with", folder)), *options])


def _groups(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the folders before and after --with, and the other options."""
    a, b, options = list[str](), list[str](), list[str]()
    group = a
    for word in words:
        name, _, value = word.partition("=")
        if name == "--with":
            group = b
            b += [value] if value else []
        elif word.startswith("-"):
            options.append(word)
        else:
            group.append(word)
    return a, b, options


def compare(
    a: Annotated[list[Path], typer.Argument(help="Folders of finished runs: the first group.")],
    b: Annotated[
        list[Path],
        typer.Option(
            "--with", help="Folders of finished runs on the same data set: the second group. It takes all folders after it."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare the test accuracy of two groups of runs, A and B, such as the seeds of two recipes.

    The table has the difference A − B with its 95% interval (Welch's t interval over the runs), of all layers together and
    layer by layer. A group is only called better if the interval does not include zero.
    """
    from faustnet.report.comparison import compare_groups
    from faustnet.report.tables import print_groups
    from faustnet.runs.groups import read_groups

    first, second, notes = read_groups(a, b)
    found = compare_groups(first, second)
    about = {"dataset": first[0]["dataset"], "a": [run["run"] for run in first], "b": [run["run"] for run in second]}
    result = {**about, **found, "notes": notes + found["notes"]}
    if as_json:
        print_json(result)
    else:
        print_groups(result, [sorted({run["method"] for run in group}) for group in (first, second)])
