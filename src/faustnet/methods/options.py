"""Options of methods."""

import inspect
from functools import cache
from typing import Any, get_type_hints

from faustnet.errors import require


@cache
def options_of(method: type) -> dict[str, Any]:
    """Return the options of a method, the keyword-only arguments of its constructor, and their defaults."""
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


@cache
def option_types_of(method: type) -> dict[str, Any]:
    """Return the annotated types of the options."""
    hints = get_type_hints(method.__init__)  # type: ignore[misc]
    for name in options_of(method):
        require(
            name in hints, f"Option {name!r} of {method.__name__} has no type annotation: add one, such as {name}: float."
        )
    return {name: hints[name] for name in options_of(method)}
