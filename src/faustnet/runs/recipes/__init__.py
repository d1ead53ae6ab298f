"""Recipes: everything that decides a run, as frozen dataclasses, read from TOML and written back to it."""

import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from faustnet.data import STREAM, Augmentation
from faustnet.errors import STEERING, FaustnetError, unknown
from faustnet.methods import PredictionSettings, method_named
from faustnet.nn.network import NetworkSettings
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings

FAMILIES = ("best/DATASET/NAME", "paper/METHOD", "tuned/DATASET/METHOD")  # of recipes that come with the package
_ITEMS: dict[type, str] = {int: "whole numbers", float: "numbers", str: "words"}
LARGEST_NUMBER = 2**32  # of any whole number in a recipe
LARGEST_FILE = 16 << 10  # bytes of a recipe; a key of many parts takes time by the square of their number
LARGEST_IMAGE = 512  # pixels along a side of the user's own images


@dataclass(frozen=True)
class DataSettings:
    """How images are read and distorted. `flip` makes mirror images, at random; `crop` and `cutout` are in pixels,
    `rotation` in degrees either way, `zoom` a share of each side. `image_size` and `strict` are for the user's own
    folders: 0 keeps a small common size; files that cannot be read are refused in place of being left out. `stream` is for
    folders of shards: whether images are read while training, "always", "never" or, "auto", if they do not fit in memory."""

    flip: bool = False
    crop: int = 0
    cutout: int = 0
    rotation: float = 0.0
    zoom: float = 0.0
    image_size: int = 0
    strict: bool = False
    stream: str = "auto"

    def __post_init__(self) -> None:
        if self.stream not in STREAM:
            raise unknown("way to stream", self.stream, STREAM)
        for what, pixels in (("crop", self.crop), ("cut-out", self.cutout)):
            if pixels < 0:
                raise FaustnetError(f"A {what} is a number of pixels, not {pixels}.")
        if not 0 <= self.rotation <= 180:
            raise FaustnetError(f"Images are turned by up to so many degrees, from 0 to 180, not {self.rotation}.")
        if not 0 <= self.zoom < 1:
            raise FaustnetError(f"The zoom is a share of an image's sides, from 0 to below 1, not {self.zoom}.")
        if not 0 <= self.image_size <= LARGEST_IMAGE:
            raise FaustnetError(f"The image size is a number of pixels up to {LARGEST_IMAGE}, not {self.image_size}.")

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(self.flip, self.crop, self.cutout, self.rotation, self.zoom)


@dataclass(frozen=True)
class Recipe:
    dataset: str = "digits"
    method: str = "faust-representative"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method
    network: NetworkSettings = field(default_factory=NetworkSettings)
    data: DataSettings = field(default_factory=DataSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    prediction: PredictionSettings = field(default_factory=PredictionSettings)

    def __post_init__(self) -> None:
        method = method_named(self.method)
        given = _fitting(self.options, method.option_types(), f"the method {self.method}")
        object.__setattr__(self, "options", method.options() | given)  # also the defaults, so that a run has them all
        if self.seed < 0:
            raise FaustnetError(f"The seed is 0 or more, not {self.seed}.")
        if self.training.schedule == "greedy" and self.data.augmentation:
            raise FaustnetError(
                "training.schedule greedy caches activations, so it cannot augment images: use another schedule, or leave "
                "out flip, crop, cutout, rotation and zoom."
            )


def recipe_from(table: Mapping[str, Any], defaults: Recipe | None = None) -> Recipe:
    """A recipe from nested tables that say what differs from `defaults`; unknown keys are errors.

    The options of another method than the defaults' are not taken over.
    """
    if not isinstance(table, Mapping):
        raise FaustnetError(f"A recipe is a table, such as {{'dataset': 'digits'}}, not {_shown(table)}.")
    base = as_table(defaults or Recipe())
    if table.get("method", base["method"]) != base["method"]:
        base["options"] = {}
    return _dataclass_from(Recipe, _merged(base, table, "a recipe"), "a recipe")


def as_table(recipe: Recipe) -> dict[str, Any]:
    """Nested plain tables, as TOML and JSON have them."""
    return json.loads(json.dumps(asdict(recipe)))


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The same with other values of some dotted keys. Another method keeps the options that both have."""
    table: dict[str, Any] = {}
    for key, value in changes.items():
        put(table, key, value)
    method = table.get("method", recipe.method)
    kept = {key: value for key, value in recipe.options.items() if key in method_named(method).options()}
    return recipe_from(table, replace(recipe, method=method, options=kept))


def dotted(recipe: Recipe) -> dict[str, Any]:
    """All values of a recipe, by `section.key`."""
    return _flat(as_table(recipe))


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two recipes differ, with the values that they have."""
    a, b = dotted(one), dotted(other)
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}


def read_recipe(name: str | Path) -> dict[str, Any]:
    """The tables of a TOML file, or of one of the recipes that come with the package, by name."""
    path = Path(name)
    try:
        if not path.exists() and str(name) in shipped_recipes():
            return shipped_recipe(str(name))
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            raise ValueError(f"it is no file of at most {LARGEST_FILE:,} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise unknown("recipe", str(name), shipped_recipes(), " or a file", kinds_of_recipes()) from None
    except (OSError, ValueError, RecursionError) as error:
        raise FaustnetError(f"The recipe {name} cannot be read ({error}): mend it.") from None


def shipped_recipe(name: str) -> dict[str, Any]:
    """The tables of one that comes with the package."""
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))


def shipped_recipes() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(_names_in(files(__name__)))


def kinds_of_recipes() -> list[str]:
    """The same in short."""
    return [*(name for name in shipped_recipes() if "/" not in name), *FAMILIES]


def _names_in(folder: Traversable) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from (f"{entry.name}/{name}" for name in _names_in(entry))
        elif entry.name.endswith(".toml"):
            yield entry.name.removesuffix(".toml")


def write_recipe(recipe: Recipe) -> str:
    """The whole recipe as TOML, ready for `--recipe`."""
    return to_toml(as_table(recipe))


def to_toml(table: Mapping[str, Any]) -> str:
    """The tables of a recipe as a file has them."""
    lines = [_line(key, value) for key, value in table.items() if not isinstance(value, dict)]
    for section, values in table.items():
        if isinstance(values, dict):  # TOML has no null: an option that is None is left out
            given = (_line(key, value) for key, value in values.items() if value is not None)
            lines += ["", f"[{section}]", *given]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    # JSON and TOML write strings, numbers, booleans and lists alike, except that TOML has no pairs of surrogates, and no
    # control characters as they are.
    written = json.dumps(value, ensure_ascii=False)
    return f"{key} = " + STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


def set_key(table: dict[str, Any], assignment: str) -> None:
    """Apply `section.key=value`."""
    put(table, *assigned(assignment))


def assigned(assignment: str) -> tuple[str, Any]:
    """The key and the value of `section.key=value`, the value as TOML has it; a bare word is a string."""
    key, separator, text = assignment.partition("=")
    if not separator:
        raise FaustnetError(f"{assignment!r} sets nothing: write it as section.key=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    return key.strip(), value


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set `section.key` in nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise FaustnetError(f"{key!r} sets nothing: {section!r} is not a section of a recipe.")
    table[last] = value


def _merged(base: Mapping[str, Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    merged = dict(base)
    for key, value in table.items():
        if isinstance(base.get(key), dict):
            if not isinstance(value, dict):
                raise FaustnetError(f"{key!r} is a section of {where}, not a value: write [{key}].")
            value = _merged(base[key], value, f"[{key}]")
        merged[key] = value
    return merged


def _dataclass_from(kind: type, table: Mapping[str, Any], where: str) -> Any:
    values = _fitting(table, get_type_hints(kind), where)
    for entry in fields(kind):
        if is_dataclass(hint := get_type_hints(kind)[entry.name]) and isinstance(hint, type):
            values[entry.name] = _dataclass_from(hint, table[entry.name], f"[{entry.name}]")
    return kind(**values)


def _fitting(table: Mapping[str, Any], types: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values as the types want them, or an error that says which does not fit."""
    values = {}
    for key, value in table.items():
        if key not in types:
            raise unknown(f"key in {where} called", key, types)
        values[key] = _converted(value, types[key], f"{key!r} in {where}")
    return values


def _converted(value: Any, kind: Any, what: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if NoneType in get_args(kind):
        if value is None:
            return None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) in (tuple, Sequence):
        item_kind = get_args(kind)[0]
        if isinstance(value, list | tuple):
            return tuple(_converted(item, item_kind, f"each of {what}") for item in value)
        raise FaustnetError(f"{what} must be a list of {_ITEMS.get(item_kind, 'values')}, got {_shown(value)}.")
    if kind is float and type(value) is int and abs(value) <= LARGEST_NUMBER:
        return float(value)
    if kind in (int, float, str, bool) and type(value) is not kind:
        words = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
        raise FaustnetError(f"{what} is {words[kind]}, not {_shown(value)}.")
    if kind is int and abs(value) > LARGEST_NUMBER:
        raise FaustnetError(f"{what} is far too large: stay below {LARGEST_NUMBER}.")
    if kind is float and not math.isfinite(value):
        raise FaustnetError(f"{what} is a finite number, not {value}.")
    if kind is str and not _is_text(value):
        raise FaustnetError(f"{what} cannot be written as text: give it another name.")
    return value


def _shown(value: Any) -> str:
    """A value in an error message, which may be anything at all."""
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return "such a large number"
    try:
        return repr(value[:40]) if isinstance(value, str) else str(value)[:40]
    except (ValueError, RecursionError):  # numbers in it have more digits than Python writes, or it is nested too deep
        return "what it is"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeError:  # a file name with bytes in it that are no characters
        return False
    return True


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
