"""Recipes: all settings that determine a run, as dataclasses, tables and TOML files."""

from faustnet.runs.recipes.files import (
    FAMILIES,
    choice_of_recipe,
    kinds_of_recipes,
    read_recipe,
    shipped_recipe,
    shipped_recipes,
    to_toml,
    write_recipe,
)
from faustnet.runs.recipes.recipe import LARGEST_IMAGE, DataSettings, Recipe, StartSettings
from faustnet.runs.recipes.tables import as_table, assigned, changed, differences, dotted, put, recipe_from, set_key

__all__ = [
    "FAMILIES", "LARGEST_IMAGE", "DataSettings", "Recipe", "StartSettings", "as_table", "assigned", "changed",
    "choice_of_recipe", "differences", "dotted", "kinds_of_recipes", "put", "read_recipe", "recipe_from", "set_key",
    "shipped_recipe", "shipped_recipes", "to_toml", "write_recipe",
]  # fmt: skip
