"""What a layer keeps outside of parameters and buffers: a forward pass that changes it cannot be repeated or undone."""

from collections import deque

from torch import Tensor, nn


def attributes(module: nn.Module) -> dict[str, object]:
    """Return what the modules of a layer keep outside of parameters and buffers, by name."""
    hidden = ("_parameters", "_buffers", "_modules", "training")
    return {
        f"{name}.{key}" if name else key: _contents(value)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in hidden
    }


def _contents(value: object) -> object:
    """Return a value that is equal to an attribute's earlier one only if the attribute was not changed, also in place."""
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, list | deque):
        return tuple(map(id, value))
    if isinstance(value, dict):
        return tuple((key, id(entry)) for key, entry in value.items())
    if isinstance(value, set):
        return tuple(sorted(map(id, value)))
    return value


def changed_attribute(before: dict[str, object], after: dict[str, object]) -> str | None:
    """Return the name of an attribute that was set to something else."""
    for name, value in after.items():
        if name not in before:
            return name
        old = before[name]
        plain = isinstance(value, int | float | str | bool | tuple) and type(value) is type(old)
        if value is not old and not (plain and value == old):
            return name
    return None
