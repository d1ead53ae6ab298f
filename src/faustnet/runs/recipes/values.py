"""Conversion of the values in a recipe to the annotated types of its keys."""

import math
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, get_args, get_origin

import numpy as np

from faustnet.errors import FaustnetError, require

LARGEST_NUMBER = 2**32  # magnitude of a whole number in a recipe
USUAL = {  # keys in other programs
    "lr": "learning_rate",
    "bs": "batch_size",
    "batch": "batch_size",
    "wd": "weight_decay",
    "hidden": "widths",
    "units": "widths",
    "layers": "widths",
}
KINDS: dict[type, tuple[str, str]] = {  # what one value is called, and several
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    bool: ("true or false", "booleans"),
}


def convert_values(
    table: Mapping[str, Any], types: Mapping[str, Any], section: str = "", all_keys: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the values of a table, each converted to the type of its key. Unknown keys are errors; `section` is the
    dotted name of the table in error messages, which may suggest one of `all_keys`, the dotted keys of all tables."""
    return {
        key: _convert(value, _type_of(key, types, section, all_keys), dotted(section, key)) for key, value in table.items()
    }


def dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _type_of(key: str, types: Mapping[str, Any], section: str, all_keys: Sequence[str]) -> Any:
    if key in types:
        return types[key]
    whole = dotted(section, key)
    if key in all_keys and "." in key:
        inside, _, last = key.rpartition(".")
        raise FaustnetError(f"There is no recipe key {whole!r} at this place: set {last} in the section {inside}.")
    names = [dotted(section, name) for name in types]
    close = [dotted(section, name) for name in get_close_matches(key, types, n=1)]
    near = _same_key(key, all_keys) or close or _similar_key(key, all_keys)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose {', '.join(names) or 'none'}."
    raise FaustnetError(f"There is no recipe key {whole!r}: {hint}")


def _same_key(key: str, all_keys: Sequence[str]) -> list[str]:
    """Return the dotted keys that end in a key, or in what other programs call it."""
    last = key.rpartition(".")[2]
    return [known for known in all_keys if known.rpartition(".")[2] == USUAL.get(last, last)]


def _similar_key(key: str, all_keys: Sequence[str]) -> list[str]:
    """Return the dotted keys that end almost like a key."""
    similar = get_close_matches(key.rpartition(".")[2], {known.rpartition(".")[2] for known in all_keys}, n=1, cutoff=0.8)
    return _same_key(similar[0], all_keys) if similar else []


def _convert(value: Any, kind: Any, key: str) -> Any:
    if isinstance(value, np.generic | np.ndarray):  # parameter grids often contain them
        value = value.tolist()
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if NoneType in get_args(kind):
        if value is None:
            return None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) in (tuple, Sequence):
        item = get_args(kind)[0]
        several = KINDS[item][1] if item in KINDS else "values"
        require(isinstance(value, list | tuple), f"{key} must be a list of {several}, got {shown(value)}.")
        return tuple(_convert(one, item, f"Item {number} of {key}") for number, one in enumerate(value, start=1))
    if kind is float and type(value) is int and abs(value) <= LARGEST_NUMBER:
        value = float(value)
    if kind in KINDS:
        require(type(value) is kind, f"{key} must be {KINDS[kind][0]}, got {shown(value)}.")
        _check_size(value, key)
    return value


def _check_size(value: Any, key: str) -> None:
    if isinstance(value, int):
        limits = f"from -{LARGEST_NUMBER} to {LARGEST_NUMBER}"
        require(abs(value) <= LARGEST_NUMBER, f"{key} must be {limits}, got a number outside of that range.")
    elif isinstance(value, float):
        require(math.isfinite(value), f"{key} must be finite, got {value}.")
    else:
        encodable = value.encode(errors="ignore").decode() == value  # a file name may have bytes that are not UTF-8
        require(encodable, f"{key} contains invalid Unicode, got {value!a}: use another name.")


def shown(value: Any) -> str:
    """Return a short form of any value, for an error message."""
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return "a very large number"
    try:
        return repr(value[:40]) if isinstance(value, str) else str(value)[:40]
    except (ValueError, RecursionError):  # a number of too many digits inside it, or nested too deeply
        return type(value).__name__
