"""Recipes: all settings that determine a run, as dataclasses, tables and TOML files."""

from faustnet.runs.recipes.effects import check_data_effects, check_effects, states_all
from faustnet.runs.recipes.files import (
    FAMILIES,
    choice_of_recipe,
    is_shipped,
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
    "check_data_effects", "check_effects", "choice_of_recipe", "differences", "dotted", "is_shipped", "kinds_of_recipes",
    "put", "read_recipe", "recipe_from", "set_key", "shipped_recipe", "shipped_recipes", "states_all", "to_toml",
    "write_recipe",
]  # fmt: skip
