"""Names of the columns of pandas tables, whose values are used by position."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from faustnet.errors import FaustnetError


def columns_of(table: Any) -> tuple[str, ...]:
    """Return the names of the columns of a pandas table, and none of anything else."""
    found = getattr(table, "columns", None) if hasattr(table, "to_numpy") else None
    return () if found is None else tuple(map(str, found))


def columns_of_pair(data: Any) -> tuple[str, ...]:
    """Return the names of the columns of data (x, y) in which x is a pandas table, and none of other data."""
    return columns_of(data[0]) if isinstance(data, tuple | list) and len(data) == 2 else ()


def check_columns(columns: Sequence[str], wanted: Sequence[str], name: str, owner: str) -> None:
    """Refuse a table with other columns than wanted, or with another order, if the names of both are known."""
    if not columns or not wanted or tuple(columns) == tuple(wanted):
        return
    pairs = enumerate(zip_longest(columns, wanted), start=1)
    number, (got, expected) = next((number, both) for number, both in pairs if both[0] != both[1])
    raise FaustnetError(
        f"{name} must have the columns of {owner} in the same order, got {_named(got)} in place of {_named(expected)} as "
        f"column {number}: select the columns by name."
    )


def _named(column: str | None) -> str:
    return "no column" if column is None else repr(column)
