"""Import paths of version 0.1, which still work and emit a DeprecationWarning that names the new path.

Pickles that version 0.1 wrote are read through these paths too. docs/versions.md has the deprecation policy.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

REMOVAL = "0.4"  # the version without these paths

MODULES = {
    "faustnet.blocks": "faustnet.nn.bodies",
    "faustnet.checkpoints": "faustnet.runs.checkpoints",
    "faustnet.devices": "faustnet.system.devices",
    "faustnet.distributed": "faustnet.training.distributed",
    "faustnet.environment": "faustnet.system.environment",
    "faustnet.evaluation": "faustnet.training.evaluation",
    "faustnet.facts": "faustnet.runs.validation",
    "faustnet.files": "faustnet.system.files",
    "faustnet.history": "faustnet.training.history",
    "faustnet.inspection": "faustnet.runs.analysis",
    "faustnet.kernels": "faustnet.nn.kernels",
    "faustnet.layers": "faustnet.nn.layers",
    "faustnet.locks": "faustnet.system.locks",
    "faustnet.methods.objective": "faustnet.losses",
    "faustnet.model": "faustnet.runs.model",
    "faustnet.network": "faustnet.nn.network",
    "faustnet.optimisers": "faustnet.training.optimisers",
    "faustnet.paper": "faustnet.report.paper",
    "faustnet.precision": "faustnet.nn.precision",
    "faustnet.progress": "faustnet.runs.progress",
    "faustnet.randomness": "faustnet.system.randomness",
    "faustnet.read_outs": "faustnet.nn.readout",
    "faustnet.recipes": "faustnet.runs.recipes",
    "faustnet.references": "faustnet.nn.references",
    "faustnet.running": "faustnet.runs.session",
    "faustnet.schedules": "faustnet.training.schedules",
    "faustnet.slices": "faustnet.nn.row_shard",
    "faustnet.stacks": "faustnet.nn.batched",
    "faustnet.tables": "faustnet.report.tables",
    "faustnet.tracking": "faustnet.runs.tensorboard",
}

NAMES = {  # that moved to another module than the rest of their old module
    "faustnet.layers": {
        "BatchNorm": "faustnet.nn.modules",
        "DenseLayer": "faustnet.nn.old_names",
        "Linear": "faustnet.nn.modules",
    },
    "faustnet.losses": {"exact": "faustnet.losses.formulas"},
    "faustnet.methods.base": {"LocalMethod": "faustnet.methods.local", "MixUp": "faustnet.methods.mixup"},
    "faustnet.network": {
        "NetworkSettings": "faustnet.nn.architectures",
        "Shape": "faustnet.nn.architectures",
        "embedding_network": "faustnet.nn.architectures",
        "rms_network": "faustnet.nn.architectures",
    },
    "faustnet.methods.faust": {
        "FaustPrototype": "faustnet.methods.prototype",
        "FaustTriplet": "faustnet.methods.vanilla",
        "FaustTuplet": "faustnet.methods.vanilla",
    },
}


def install() -> None:
    """Make the old module paths importable. Modules that exist are found first."""
    sys.meta_path.append(_Finder())


def moved_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of an existing module, for the names that it had in version 0.1."""

    def find(name: str) -> Any:
        if name not in NAMES.get(module, {}):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", f"{NAMES[module][name]}.{name}")
        return getattr(import_module(NAMES[module][name]), name)

    return find


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of MODULES and, where they are packages, the modules in them."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        new = _new_path(name)
        if new is None:
            return None
        try:
            found = find_spec(new)
        except ModuleNotFoundError:
            return None
        return spec_from_loader(name, self, is_package=found.submodule_search_locations is not None) if found else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill an empty module, whose attributes are those of the module at the new path."""
        old, new = module.__name__, str(_new_path(module.__name__))
        target = import_module(new)
        _warn(old, new)

        def find(name: str) -> Any:
            return getattr(target, name) if hasattr(target, name) else moved_names(old)(name)

        vars(module).update(__doc__=target.__doc__, __getattr__=find, __dir__=lambda: dir(target))


def _new_path(old: str) -> str | None:
    """Return the new path of an old module: faustnet.optimisers.settings → faustnet.training.optimisers.settings."""
    parts = old.split(".")
    for count in range(len(parts), 1, -1):
        if new := MODULES.get(".".join(parts[:count])):
            return ".".join([new, *parts[count:]])
    return None


def _warn(old: str, new: str) -> None:
    text = f"{old} has moved to {new}; the old path will be removed in version {REMOVAL}."
    warnings.warn(text, DeprecationWarning, stacklevel=3)
