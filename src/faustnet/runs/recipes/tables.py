"""Recipes as nested tables: what TOML files, JSON and `--set` contain."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, get_type_hints

from faustnet.errors import FaustnetError, require
from faustnet.methods import METHODS, method_named
from faustnet.runs.recipes.recipe import Recipe
from faustnet.runs.recipes.values import convert_values, shown
from faustnet.runs.recipes.values import dotted as dotted_key


def recipe_from(table: Mapping[str, Any], defaults: Recipe | None = None) -> Recipe:
    """Return the recipe that differs from `defaults` in the values of nested tables. Unknown keys are errors.

    If the table names another method, the options of the defaults are not used.
    """
    if not isinstance(table, Mapping):
        raise FaustnetError(f"A recipe must be a dictionary such as {{'dataset': 'digits'}}, got {shown(table)}.")
    base = as_table(defaults or Recipe())
    if table.get("method", base["method"]) != base["method"]:
        base["options"] = {}
    return _dataclass_from(Recipe, _merged(base, table), _all_keys(str(table.get("method", base["method"]))))


def as_table(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as nested tables of plain values, as in TOML and JSON."""
    return json.loads(json.dumps(asdict(recipe)))


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with other values of some dotted keys. If the method changes, options that both methods have
    are kept."""
    table: dict[str, Any] = {}
    for key, value in changes.items():
        put(table, key, value)
    method = table.get("method", recipe.method)
    kept = {key: value for key, value in recipe.options.items() if key in method_named(method).options()}
    return recipe_from(table, replace(recipe, method=method, options=kept))


def dotted(recipe: Recipe) -> dict[str, Any]:
    """Return all values of a recipe by dotted key, such as training.epochs."""
    return flat(as_table(recipe))


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys in which two recipes differ, with both values."""
    a, b = dotted(one), dotted(other)
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}


def set_key(table: dict[str, Any], assignment: str) -> None:
    """Apply an assignment such as training.epochs=3 to nested tables."""
    put(table, *assigned(assignment))


def assigned(assignment: str) -> tuple[str, Any]:
    """Return the key and the value of an assignment. The value is TOML; anything else is a string."""
    key, separator, text = assignment.partition("=")
    require(
        bool(separator),
        f"A recipe key must be set with --set KEY=VALUE, such as --set training.epochs=3, got {assignment!r}.",
    )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    return key.strip(), value


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise FaustnetError(f"There is no recipe key {key!r}: {section} is a single value, so set {section} itself.")
    table[last] = value


def _merged(base: Mapping[str, Any], table: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    merged = dict(base)
    for key, value in table.items():
        if isinstance(base.get(key), dict):
            name = dotted_key(section, key)
            require(isinstance(value, Mapping), f"{name} must be a section with keys, got {shown(value)}.")
            value = _merged(base[key], value, name)
        merged[key] = value
    return merged


def _all_keys(method: str) -> list[str]:
    """Return the dotted keys of a recipe with this method."""
    options = METHODS[method].options() if method in METHODS else {}
    return [*(key for key in dotted(Recipe()) if not key.startswith("options.")), *(f"options.{name}" for name in options)]


def _dataclass_from(kind: type, table: Mapping[str, Any], all_keys: Sequence[str], section: str = "") -> Any:
    types = get_type_hints(kind)
    values = convert_values(table, types, section, all_keys)
    for entry in fields(kind):
        if is_dataclass(hint := types[entry.name]) and isinstance(hint, type):
            values[entry.name] = _dataclass_from(hint, table[entry.name], all_keys, dotted_key(section, entry.name))
    return kind(**values)


def flat(table: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted key."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = dotted_key(section, key)
        found |= flat(value, name) if isinstance(value, Mapping) else {name: value}
    return found
