"""Checks that the JSON files of a run contain what was written into them."""

import json
import math
from dataclasses import fields
from itertools import chain
from types import NoneType
from typing import Any

from faustnet.training.history import Epoch


def parse_json(text: str) -> Any:
    """Parse JSON. NaN and infinity are errors."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def is_consistent(metrics: dict[str, Any]) -> bool:
    """Return whether there is one accuracy per voter, and the confusion matrix is square and not empty."""
    voters, confusion = metrics["voters"], metrics["confusion"]
    by_voter = (metrics["layer_accuracy"], metrics["first_layers_accuracy"])
    return (
        all(type(name) is str for name in voters)
        and all(len(values) == len(voters) and all(type(value) is float for value in values) for values in by_voter)
        and all(type(row) is list and len(row) == len(confusion) for row in confusion)
        and all(type(count) is int and count >= 0 for row in confusion for count in row)
        and any(map(any, confusion))
        and type(metrics.get("validation_accuracy")) in (float, NoneType)
        and are_epoch_changes(metrics.get("epoch_changes", []))
    )


def is_epoch(found: Any, learners: int | None = None, voters: int | None = None) -> bool:
    """Return whether this is one epoch of a history; of a training with these numbers of learners and voters, if they are
    given. An epoch without evaluation has no accuracies."""
    if not isinstance(found, dict) or found.keys() != {field.name for field in fields(Epoch)}:
        return False
    losses, *accuracies = lists = [found[name] for name in ("losses", "layer_accuracy", "first_layers_accuracy")]
    return (
        type(found["epoch"]) is int
        and all(type(values) is list for values in lists)
        and all(type(number) in (float, NoneType) for number in [found["accuracy"], *chain(*lists)])
        and all(type(found[name]) in (float, int) for name in ("learning_rate", "seconds"))
        and (learners is None or len(losses) == learners)
        and (voters is None or all(len(values) in (0, voters) for values in accuracies))
    )


def are_epoch_changes(found: Any) -> bool:
    """Return whether these are changes of the number of epochs."""
    return isinstance(found, list) and all(
        isinstance(one, dict) and one.keys() == {"after", "from", "to"} and all(type(n) is int for n in one.values())
        for one in found
    )


def is_environment(found: Any) -> bool:
    """Return whether this describes the environment of one session."""
    return (
        isinstance(found, dict)
        and "earlier" not in found
        and isinstance(found.get("commit"), str | None)
        and all(_is_shallow(value, 2) for value in found.values())
    )


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else []
    return not inner or (levels > 0 and all(_is_shallow(one, levels - 1) for one in inner))
