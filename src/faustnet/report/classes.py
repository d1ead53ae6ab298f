"""Rows of the tables of new classes and of rejection."""

from collections.abc import Mapping, Sequence
from typing import Any

from faustnet.report.paper import dataset_rank, dataset_title
from faustnet.report.table1 import ours, signed

Cells = Sequence[dict[str, Any]]

ADDED_COLUMNS = (
    "data set, references per class", "kind", "examples", "new class", "minimum", "old classes before", "after",
    "difference", "all classes",
)  # fmt: skip
REJECTION_COLUMNS = (
    "known, unknown data set", "method", "score", "AUROC", "AUROC on validation images", "known accepted", "unknown rejected"
)  # fmt: skip


def added_rows(cells: Cells) -> list[list[str]]:
    """Return one row per kind of reference and number of examples."""
    return [
        [
            f"{dataset_title(cell['dataset'])}, {cell['references']}",
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
    return dataset_rank(cell["dataset"]), cell["references"], cell["examples"]


def rejection_rows(cells: Cells, titles: Mapping[str, str]) -> list[list[str]]:
    """Return one row per method and score, with the titles of methods."""
    return [
        [
            f"{dataset_title(cell['dataset'])}, {dataset_title(cell['strange'])}",
            titles.get(cell["method"], cell["method"]),
            cell["score"],
            ours(cell),
            *(f"{cell[key]:.2f}" for key in ("validation_auroc", "accepted", "rejected")),
        ]
        for cell in sorted(cells, key=lambda cell: (dataset_rank(cell["dataset"]), cell["method"] == "backprop"))
    ]
