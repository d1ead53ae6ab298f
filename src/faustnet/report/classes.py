"""Rows of classes that were added without training, and of images that are of no known class."""

from collections.abc import Sequence
from typing import Any

from faustnet.report.paper import TITLES
from faustnet.report.table1 import ours, signed

Cells = Sequence[dict[str, Any]]

ADDED_COLUMNS = (
    "data set, references of a class", "made by", "examples", "new class", "its least", "old classes before", "after",
    "difference", "all classes",
)  # fmt: skip
REJECTION_COLUMNS = (
    "known, strange", "method", "score", "AUROC", "on validation images", "known accepted", "strange rejected"
)  # fmt: skip


def added_rows(cells: Cells) -> list[list[str]]:
    """One for each kind of references and number of examples."""
    return [
        [
            f"{TITLES[cell['dataset']]}, {cell['references']}",
            cell["kind"] if cell["examples"] > 1 else "any",
            str(cell["examples"]),
            ours(cell),
            *(f"{cell[key]:.2f}" for key in ("least", "before", "old")),
            signed(cell["old"] - cell["before"]),
            f"{cell['all']:.2f}",
        ]
        for cell in sorted(cells, key=_place)
    ]


def _place(cell: dict[str, Any]) -> tuple[Any, ...]:
    return list(TITLES).index(cell["dataset"]), cell["references"], cell["examples"]


def rejection_rows(cells: Cells) -> list[list[str]]:
    """One for each method and score."""
    return [
        [
            f"{TITLES[cell['dataset']]}, {TITLES[cell['strange']]}",
            TITLES[cell["method"]],
            cell["score"],
            ours(cell),
            *(f"{cell[key]:.2f}" for key in ("validation_auroc", "accepted", "rejected")),
        ]
        for cell in sorted(cells, key=lambda cell: (list(TITLES).index(cell["dataset"]), cell["method"] == "backprop"))
    ]
