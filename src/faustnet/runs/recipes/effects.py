"""Refuse what a user has set for a new training, and what would have no effect on it."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from faustnet.data import DataSet
from faustnet.errors import require
from faustnet.methods import method_named
from faustnet.nn.architectures import NetworkSettings
from faustnet.runs.recipes.recipe import Recipe
from faustnet.runs.recipes.tables import dotted, flat
from faustnet.system.randomness import seeded

OF_ALL = {"kind", "widths"}  # settings of the network that every method uses
WITH_MOMENTUM = ("sgd", "muon")
OF_TEXTS = ("tokens", "vocabulary", "text_column", "label_column")  # in the section `data`


class WatchedSettings(NetworkSettings):
    """Network settings that note which of them are read."""

    def __getattribute__(self, name: str) -> Any:
        super().__getattribute__("__dict__").setdefault("read", set()).add(name)
        return super().__getattribute__(name)

    @classmethod
    def of(cls, settings: NetworkSettings) -> "WatchedSettings":
        """Return the same settings, none of which has been read."""
        found = cls(**asdict(settings))
        vars(found)["read"] = set()
        return found


def check_effects(recipe: Recipe, stated: Mapping[str, Any]) -> None:
    """Refuse keys in nested tables that have no effect on a training with this recipe. Default values are accepted, and so
    are tables for which `states_all` is true."""
    if states_all(stated):
        return
    values, usual = dotted(recipe), dotted(Recipe(method=recipe.method))
    keys = [key for key in values if key in flat(stated) and values[key] != usual[key]]
    _check_network(recipe, [key.removeprefix("network.") for key in keys if key.startswith("network.")])
    optimiser, options = recipe.optimiser, recipe.options
    if "optimiser.momentum" in keys:
        require(
            optimiser.name in WITH_MOMENTUM,
            f"optimiser.momentum has no effect with optimiser.name={optimiser.name}, got {optimiser.momentum}: set "
            f"optimiser.name to {' or '.join(WITH_MOMENTUM)}, or leave it out.",
        )
    for name, other in method_named(recipe.method).unused_options(options).items():
        require(
            f"options.{name}" not in keys,
            f"options.{name} has no effect with options.{other}={options.get(other)!r}, got {options.get(name)!r}: set "
            f"options.{other} to another value, or leave out options.{name}.",
        )


def states_all(table: Mapping[str, Any]) -> bool:
    """Return whether a table has every key about the optimiser and the training, as recipes of runs have. Those
    of version 0.1 have fewer keys about the data and the network."""
    return {key for key in dotted(Recipe()) if key.startswith(("optimiser.", "training."))} <= flat(table).keys()


def _check_network(recipe: Recipe, names: list[str]) -> None:
    """Refuse settings of the network, by name, that the method does not use to build it."""
    used = used_settings(recipe) | OF_ALL if set(names) - OF_ALL else OF_ALL
    for name in names:
        require(
            name in used,
            f"network.{name} has no effect on {recipe.method} with network.kind={recipe.network.kind}, got "
            f"{getattr(recipe.network, name)!r}: leave it out.",
        )


def used_settings(recipe: Recipe) -> set[str]:
    """Return the names of the settings that the method reads to build the network. It builds a narrow one for small images.
    If that fails, all names are returned: what is wrong is reported when the network is built for the data."""
    settings = recipe.network
    narrow = replace(settings, widths=(2 * settings.heads,) * len(settings.widths))
    watched, side = WatchedSettings.of(narrow), settings.patch * 2 ** max(1, len(settings.pools))
    try:
        with seeded(0):
            method_named(recipe.method).make_network((3, side, side), 1, watched)
    except Exception:  # any, because the method is any
        return {field.name for field in fields(NetworkSettings)}
    return vars(watched)["read"]


def check_data_effects(recipe: Recipe, data: DataSet) -> None:
    """Refuse settings of texts for a training on images, and the size of images for data that are not a folder of images."""
    settings, usual = recipe.data, Recipe().data
    for name in OF_TEXTS:
        value = getattr(settings, name)
        require(
            data.tokeniser is not None or value == getattr(usual, name),
            f"data.{name} is for texts, and has no effect on {data.name}, got {value!r}: leave it out.",
        )
    require(
        data.paths is not None or settings.image_size == 0,
        f"data.image_size is for folders of images, and has no effect on {data.name}, got {settings.image_size}: leave it "
        "out.",
    )
