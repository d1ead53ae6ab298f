"""Attributes of a package that are imported when they are first used, because torch and scikit-learn are slow to import."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, names: Mapping[str, str], modules: tuple[str, ...] = ()) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `names`: the module that each name comes from; `modules`: submodules."""

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name in names:
            return getattr(import_module(names[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
