"""Whether the facts in a run's JSON files are what they were when they were written, whoever has had them since."""

import json
import math
from dataclasses import fields
from types import NoneType
from typing import Any

from faustnet.training.history import Epoch


def parse_json(text: str) -> Any:
    """JSON of finite numbers."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def is_consistent(metrics: dict[str, Any]) -> bool:
    """Whether figures of each voter are of as many voters, and a confusion has a row and a column for each class."""
    voters, confusion = metrics["voters"], metrics["confusion"]
    by_voter = (metrics["layer_accuracy"], metrics["first_layers_accuracy"])
    return (
        all(type(name) is str for name in voters)
        and all(len(values) == len(voters) and all(type(value) is float for value in values) for values in by_voter)
        and all(type(row) is list and len(row) == len(confusion) for row in confusion)
        and all(type(count) is int and count >= 0 for row in confusion for count in row)
        and any(map(any, confusion))
        and type(metrics.get("validation_accuracy")) in (float, NoneType)
    )


def is_epoch(found: Any) -> bool:
    """Whether this is a line of the history as it was written."""
    if not isinstance(found, dict) or found.keys() != {field.name for field in fields(Epoch)}:
        return False
    lists = [found[name] for name in ("losses", "layer_accuracy", "first_layers_accuracy")]
    numbers = [found["accuracy"], *(number for values in lists if type(values) is list for number in values)]
    return (
        type(found["epoch"]) is int
        and all(type(values) is list for values in lists)
        and all(type(number) in (float, NoneType) for number in numbers)
        and all(type(found[name]) in (float, int) for name in ("learning_rate", "seconds"))
    )


def is_epoch_of(found: Any, learners: int, voters: int) -> bool:
    """The same of a training with so many learners and voters; an epoch that was not measured has no accuracies."""
    accuracies = ("layer_accuracy", "first_layers_accuracy")
    return (
        is_epoch(found) and len(found["losses"]) == learners and all(len(found[name]) in (0, voters) for name in accuracies)
    )


def is_environment(found: Any) -> bool:
    """Whether these are facts of one machine."""
    return (
        isinstance(found, dict)
        and "earlier" not in found
        and isinstance(found.get("commit"), str | None)
        and all(_is_shallow(value, 2) for value in found.values())
    )


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else []
    return not inner or (levels > 0 and all(_is_shallow(one, levels - 1) for one in inner))
