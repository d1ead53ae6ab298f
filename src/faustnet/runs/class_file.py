"""The history of the classes in a model file: JSON in its header, and tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from faustnet.methods import Faust, Method
from faustnet.nn.references import REFERENCE_KINDS
from faustnet.runs.class_history import ACTIONS, ADD, RENAME, Change, ClassHistory, ClassRecord
from faustnet.runs.tensor_file import Tensors

OF_HISTORY = ("classes.", "changes.")  # prefixes of its tensors


def history_contents(history: ClassHistory) -> tuple[dict[str, Any], Tensors]:
    """Return the history as values for JSON, and its tensors. The rows that all classes keep are one tensor per layer."""
    records = history.records
    kept = [[record.kept[i] for record in records if record.kept] for i in range(max(len(r.kept) for r in records))]
    tensors = {f"classes.{i}": torch.cat(rows) for i, rows in enumerate(kept)}
    for number, change in enumerate(history.changes):
        tensors |= {f"changes.{number}.rows.{key}": rows for key, rows in change.rows.items()}
        if change.record is not None:
            tensors |= {f"changes.{number}.kept.{i}": rows for i, rows in enumerate(change.record.kept)}
    about = {
        "trained_as": [record.trained_as for record in records],
        "examples": [record.examples for record in records],
        "kinds": [record.kind for record in records],
        "removed": list(history.removed),
        "changes": [_change_contents(change) for change in history.changes],
    }
    return about, tensors


def _change_contents(change: Change) -> dict[str, Any]:
    record = change.record
    return {
        "action": change.action,
        "names": list(change.names),
        "number": change.number,
        "examples": change.examples,
        "threshold": change.threshold,
        "record": None if record is None else [record.trained_as, record.examples, record.kind],
    }


def read_history(about: dict[str, Any], tensors: Tensors, names: Sequence[str], method: Method) -> ClassHistory:
    """Return the history from the header and the tensors of a model file. Anything that does not fit is a ValueError or a
    similar error."""
    count = method.count if isinstance(method, Faust) else None
    sizes = [layer.shape[-1] for layer in method.references] if isinstance(method, Faust) else []
    columns = (about["trained_as"], about["examples"], about["kinds"])
    bare = [_record(*values) for values in zip(*columns, strict=True)]
    _check(len(bare) == len(names), "its records do not match its classes")
    _check(count is not None or not any(record.examples for record in bare), "its method has no references")
    rows = [record.kept_rows(count or 0) for record in bare]
    together = [tensors[f"classes.{i}"] if sum(rows) else torch.zeros(0, size) for i, size in enumerate(sizes)]
    for kept, size in zip(together, sizes, strict=True):
        _check_rows(kept, (sum(rows), size))
    parts = zip(*(kept.split(rows) for kept in together), strict=True) if together else ((),) * len(bare)
    records = [
        ClassRecord(one.trained_as, one.examples, one.kind, tuple(own)) if one.examples else one
        for one, own in zip(bare, parts, strict=True)
    ]
    changes = [_change(number, found, tensors, method) for number, found in enumerate(about["changes"])]
    return ClassHistory(tuple(records), tuple(map(str, about["removed"])), tuple(changes))


def _record(trained_as: Any, examples: Any, kind: Any) -> ClassRecord:
    _check(trained_as is None or isinstance(trained_as, str), "a class has no name")
    _check(type(examples) is int and examples >= (trained_as is None), "a class has no examples")
    _check(kind in REFERENCE_KINDS, "a class has unknown references")
    return ClassRecord(trained_as, examples, kind)


def _change(number: int, about: dict[str, Any], tensors: Tensors, method: Method) -> Change:
    action, names, first, examples = (about[key] for key in ("action", "names", "number", "examples"))
    _check(action in ACTIONS and bool(names) and all(isinstance(name, str) for name in names), "a change is unknown")
    _check(len(names) == (2 if action == RENAME else 1) or (action == ADD and first >= 1), "a change has other classes")
    _check(type(first) is type(examples) is int and min(first, examples) >= 0, "a change has no number")
    threshold = None if about["threshold"] is None else float(about["threshold"])
    if action == RENAME:
        return Change(action, tuple(names), first, examples, threshold)
    if not isinstance(method, Faust):
        raise ValueError("its method has no references")
    if action == ADD:
        return Change(action, tuple(names), first, examples, threshold)
    record = _record(*about["record"])
    rows, state = _prefixed(tensors, f"changes.{number}.rows."), method.state_dict()
    keys = {f"references.layer_{i}" for i in range(len(method.network))}
    _check(keys <= set(rows) <= set(state), "a change has other tensors")
    for key, own in rows.items():
        size = len(state[key]) // method.classes
        _check(size > 0 and own.dtype.is_floating_point == state[key].dtype.is_floating_point, f"{key} has another type")
        _check_rows(own, (size, *state[key].shape[1:]))
    kept = _prefixed(tensors, f"changes.{number}.kept.")
    count = record.kept_rows(method.count)
    _check(len(kept) == (len(method.network) if count else 0), "a change has other tensors")
    for i, layer in enumerate(method.references if count else ()):
        _check_rows(kept[str(i)], (count, layer.shape[-1]))
    found = ClassRecord(record.trained_as, record.examples, record.kind, tuple(kept[str(i)] for i in range(len(kept))))
    return Change(action, tuple(names), first, examples, threshold, found, rows)


def _prefixed(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _check_rows(rows: Tensor, shape: tuple[int, ...]) -> None:
    _check(tuple(rows.shape) == shape and bool(rows.isfinite().all()), "the rows of a class have another shape")


def _check(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)
