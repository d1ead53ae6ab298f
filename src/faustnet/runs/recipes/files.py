"""Recipe files: TOML files of the user, and the recipes that come with the package."""

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from faustnet.errors import STEERING, FaustnetError, unknown
from faustnet.runs.recipes.recipe import Recipe
from faustnet.runs.recipes.tables import as_table
from faustnet.system.files import read_limited

FAMILIES = (
    "best/DATASET/NAME",
    "few-shot/DATASET/METHOD",
    "paper/METHOD",
    "tuned/DATASET/METHOD",
)  # of recipes that come with the package
LARGEST_FILE = 16 << 10  # bytes; parsing a key takes time quadratic in the number of its parts
FOLDER = Path(__file__).parent
CHOICES = "choices.json"  # in the folder of a family


def read_recipe(name: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or of a recipe that comes with the package, by name."""
    path = Path(name)
    try:
        if is_shipped(name):
            return shipped_recipe(str(name))
        return tomllib.loads(read_limited(path, LARGEST_FILE).decode())
    except FileNotFoundError:
        raise unknown("recipe", str(name), shipped_recipes(), " or a file", kinds_of_recipes()) from None
    except (OSError, ValueError, RecursionError) as error:
        raise FaustnetError(f"The recipe {name} cannot be read ({error}): fix the file.") from None


def is_shipped(name: str | Path) -> bool:
    """Return whether this is the name of a recipe that comes with the package, and not the path of a file."""
    return not Path(name).exists() and str(name) in shipped_recipes()


def shipped_recipe(name: str) -> dict[str, Any]:
    """Return the tables of a recipe that comes with the package."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def choice_of_recipe(name: str, family: str = "best") -> dict[str, Any] | None:
    """Return how a recipe of a family was chosen, by its name DATASET/NAME: what was tuned, and in how many trials. None for
    a recipe without trials."""
    return json.loads((FOLDER / family / CHOICES).read_text(encoding="utf-8")).get(name)


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return list(_shipped_names())


@cache
def _shipped_names() -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.toml")))


def kinds_of_recipes() -> list[str]:
    """Return the names of the recipes that come with the package, with patterns for the families."""
    return [*(name for name in shipped_recipes() if "/" not in name), *FAMILIES]


def write_recipe(recipe: Recipe) -> str:
    """Return the whole recipe as TOML, for `--recipe`."""
    return to_toml(as_table(recipe))


def to_toml(table: Mapping[str, Any]) -> str:
    """Return the tables of a recipe as TOML."""
    lines = [_line(key, value) for key, value in table.items() if not isinstance(value, dict)]
    for section, values in table.items():
        if isinstance(values, dict):  # TOML has no null: an option that is None is left out
            given = (_line(key, value) for key, value in values.items() if value is not None)
            lines += ["", f"[{section}]", *given]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    # JSON and TOML write strings, numbers, booleans and lists alike, except that TOML allows neither pairs of surrogates
    # nor unescaped control characters.
    written = json.dumps(value, ensure_ascii=False)
    return f"{key} = " + STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
