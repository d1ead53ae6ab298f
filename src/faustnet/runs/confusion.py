"""Confusion matrices in the metrics of a run. Those of many classes are stored without zeros, because they are large."""

from itertools import pairwise
from typing import Any

WHOLE = 200  # classes, up to which the whole matrix is stored
MOST = 5_000  # classes of a matrix without zeros

Matrix = list[list[int]]  # rows: true classes; columns: predicted classes


def stored_matrix(confusion: Matrix) -> Matrix | dict[str, Any]:
    """Return a matrix as values for JSON: as it is, or the counts that are not 0, each with its row and column."""
    if len(confusion) <= WHOLE:
        return confusion
    counts = [[i, j, count] for i, row in enumerate(confusion) for j, count in enumerate(row) if count]
    return {"classes": len(confusion), "counts": counts}


def restored_matrix(stored: Any) -> Any:
    """Return the matrix that `stored_matrix` stored. Anything else is returned as it is, or is a ValueError."""
    if not isinstance(stored, dict):
        return stored
    classes, counts = stored.get("classes"), stored.get("counts")
    if type(classes) is not int or not WHOLE < classes <= MOST or type(counts) is not list:
        raise ValueError("it has no matrix")
    matrix = [[0] * classes for _ in range(classes)]
    for entry in counts:
        if type(entry) is not list or [type(number) for number in entry] != [int] * 3:
            raise ValueError("it has an entry that is not three numbers")
        i, j, count = entry
        if not (0 <= i < classes and 0 <= j < classes and count > 0):
            raise ValueError("it has an entry beyond the classes")
        matrix[i][j] = count
    if any(one[:2] >= other[:2] for one, other in pairwise(counts)):
        raise ValueError("its entries are not in order")
    return matrix
