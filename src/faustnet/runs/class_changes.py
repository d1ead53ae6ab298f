"""Changes of the classes of a trained model, without training. Every function returns a changed copy of the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from faustnet.data import Images
from faustnet.errors import FaustnetError, require, unknown
from faustnet.methods import Faust
from faustnet.nn.references import REFERENCE_KINDS, references_from
from faustnet.runs.class_history import (
    ADD,
    ADD_IMAGES,
    LEARNED_SHARE,
    REMOVE,
    RENAME,
    Change,
    ClassHistory,
    ClassRecord,
)
from faustnet.runs.prediction import UNKNOWN
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import all_embeddings

if TYPE_CHECKING:
    from faustnet.runs.model import Model

SHOWN = 10  # class names in an error

Rows = dict[str, Tensor]  # of one or more classes, by the names of the method's tensors


def check_new_names(names: Sequence[str], present: Sequence[str]) -> None:
    """Refuse names of new classes that cannot be added to those that are present."""
    known = set(present)
    if taken := [name for name in names if name in known]:
        what = f"a class {taken[0]!r}" if len(taken) == 1 else f"classes {', '.join(map(repr, taken[:SHOWN]))}"
        more = f" and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
        others = "another name" if len(taken) == 1 else "other names"
        raise FaustnetError(f"The model already has {what}{more}: choose {others}.")
    for name in names:
        require(isinstance(name, str), f"The name of the new class must be a string, got {name!r}.")
        require(bool(name.strip()), f"The name of the new class must not be empty, got {name!r}.")
        require(
            name != UNKNOWN,
            f"The new class must not be named {UNKNOWN!r}, the prediction for rejected images: choose another name.",
        )


def class_number(model: "Model", name: str) -> int:
    """Return the number of a class by its name."""
    if name not in model.class_names:
        more = ", …" if len(model.class_names) > SHOWN else ""
        raise unknown("class", name, model.class_names, more, model.class_names[:SHOWN])
    return model.class_names.index(name)


@torch.no_grad()
def with_classes(model: "Model", method: Faust, examples: Mapping[str, Any], kind: str) -> "Model":
    """Add classes, whose references are computed from their examples; see `references_from` for the kind. All examples pass
    through the network together."""
    require(
        isinstance(examples, Mapping),
        "examples must be a dictionary of class names with the pixels of each class, such as {'new': pixels}, got "
        f"{type(examples).__name__}.",
    )
    require(len(examples) > 0, "examples must contain at least one class, got none.")
    check_new_names(list(examples), model.class_names)
    require(kind in REFERENCE_KINDS, f"kind must be {' or '.join(REFERENCE_KINDS)}, got {kind!r}.")
    images = [_examples(model, name, given) for name, given in examples.items()]
    pixels = torch.cat([own.all_pixels for own in images])
    source = model.source(Images(pixels, torch.zeros(len(pixels), dtype=torch.long, device=pixels.device)))
    embedded = all_embeddings(method, source)
    ends = [0, *torch.tensor([len(own) for own in images]).cumsum(0).tolist()]
    parts: list[Rows] = []
    records = []
    for name, (begin, end) in zip(examples, pairwise(ends), strict=True):
        own = [layer[begin:end] for layer in embedded]
        references = _references(own, method.count, kind)
        _require_finite(name, references)
        first = torch.arange(begin, min(begin + method.count, end), device=pixels.device)
        parts.append(method.new_class(source.plain(first), references))
        records.append(ClassRecord(None, end - begin, kind, _kept(own, method.count, kind)))
    state = {
        key: torch.cat([old, *(part[key] for part in parts)]) if key in parts[0] else old
        for key, old in method.state_dict().items()
    }
    names, history = (*model.class_names, *examples), model.class_history
    change = Change(ADD, tuple(examples), len(model.class_names), len(pixels), model.threshold)
    grown = replace(history, records=(*history.records, *records), changes=history.noted(change))
    return _loaded(model, state, names, grown)


@torch.no_grad()
def with_images(model: "Model", method: Faust, name: str, given: Any) -> "Model":
    """Add examples to a class, and compute its references from all of its examples."""
    number, history = class_number(model, name), model.class_history
    source, record = model.source(_examples(model, name, given)), history.records[number]
    embedded = all_embeddings(method, source)
    grown, references = _more_examples(method, number, record, embedded)
    _require_finite(name, references)
    present = method.count if record.trained_as is not None else min(record.examples, method.count)
    first = torch.arange(min(method.count, len(source.labels)), device=source.labels.device)
    rows = method.updated_class(number, present, source.plain(first), references)
    change = Change(
        ADD_IMAGES, (name,), number, len(source.labels), model.threshold, record, _rows(method, number, rows.keys())
    )
    records = (*history.records[:number], grown, *history.records[number + 1 :])
    changed = replace(history, records=records, changes=history.noted(change))
    return _rebuilt(model, lambda old, key: _put(old, rows[key], number), rows.keys(), model.class_names, changed)


def renamed(model: "Model", name: str, new: str) -> "Model":
    """Rename a class. The rejection threshold stays valid."""
    number, history = class_number(model, name), model.class_history
    check_new_names([new], model.class_names)
    noted = replace(history, changes=history.noted(Change(RENAME, (name, new), number)))
    return replace(model, class_names=_exchanged(model.class_names, number, new), history=noted)


@torch.no_grad()
def without_class(model: "Model", method: Faust, name: str) -> "Model":
    """Remove a class."""
    number, history = class_number(model, name), model.class_history
    require(len(model.class_names) > 1, f"The model must keep at least one class, and {name!r} is its last one.")
    record, rows = history.records[number], _rows(method, number, _class_keys(method))
    change = Change(REMOVE, (name,), number, 0, model.threshold, record, rows)
    removed = history.removed if record.trained_as is None else (*history.removed, record.trained_as)
    left = ClassHistory(_without(history.records, number), removed, history.noted(change))
    names = _without(model.class_names, number)
    return _rebuilt(model, lambda old, key: _cut(old, len(rows[key]), number, number + 1), rows.keys(), names, left)


def undone(model: "Model") -> "Model":
    """Return the model as it was before the last change of its classes."""
    history, names = model.class_history, model.class_names
    require(bool(history.changes), "There is no change of the classes to undo.")
    change, before = history.changes[-1], history.changes[:-1]
    method, number = model.method, change.number
    fits = number + len(change.names) == len(names) if change.action == ADD else number < len(names)
    if change.action == REMOVE:
        fits = number <= len(names) and isinstance(method, Faust) and set(change.rows) == set(_class_keys(method))
    require(fits, f"The last change, {change}, does not match the classes of the model: it cannot be undone.")
    if change.action == RENAME:
        changed = replace(model, class_names=_exchanged(names, number, change.names[0]))
        back = replace(history, changes=before)
    else:
        changed, back = _restored(model, change, replace(history, changes=before))
        changed = replace(changed, threshold=change.threshold)
    return replace(changed, history=back.unless_trained(changed.class_names))


@torch.no_grad()
def _restored(model: "Model", change: Change, history: ClassHistory) -> tuple["Model", ClassHistory]:
    """Return the model and its history before classes were added or removed, or a class got images."""
    method, names, number, rows = model.method, model.class_names, change.number, change.rows
    assert isinstance(method, Faust)  # the functions above and `read_history` make sure of it
    if change.action == ADD:
        sizes = {key: len(own) for key, own in _rows(method, 0, _class_keys(method)).items()}
        back = replace(history, records=history.records[:number])
        return _rebuilt(model, lambda old, key: old[: number * sizes[key]], sizes.keys(), names[:number], back), back
    record, others = change.record, history.records
    assert record is not None
    if change.action == ADD_IMAGES:
        back = replace(history, records=(*others[:number], record, *others[number + 1 :]))
        return _rebuilt(model, lambda old, key: _put(old, rows[key], number), rows.keys(), names, back), back
    removed = tuple(name for name in history.removed if name != record.trained_as)
    back = ClassHistory((*others[:number], record, *others[number:]), removed, history.changes)
    names = (*names[:number], change.names[0], *names[number:])
    return _rebuilt(model, lambda old, key: _insert(old, rows[key], number), rows.keys(), names, back), back


def _examples(model: "Model", name: str, given: Any) -> Images:
    images = model.images(given)
    what = "pixels" if model.tokeniser is None else "texts"
    require(len(images) > 0, f"{what} must contain at least one example of {name!r}, got none.")
    model.source(images)  # checks the shape
    return images


def _require_finite(name: str, references: Sequence[Tensor]) -> None:
    require(
        all(bool(rows.isfinite().all()) for rows in references),
        f"The examples of {name!r} contain values that are not finite or too large: replace them.",
    )


def _references(embedded: Sequence[Tensor], count: int, kind: str) -> list[Tensor]:
    """Return the references of an added class in each layer. They depend on the embeddings only. (n, e_i) → (K, e_i)"""
    if kind != "k-means":
        return [references_from(rows, count, kind) for rows in embedded]
    with seeded(0):  # for the random numbers of k-means
        return [references_from(rows, count, kind) for rows in embedded]


def _kept(embedded: Sequence[Tensor], count: int, kind: str) -> tuple[Tensor, ...]:
    """Return what a record of an added class keeps in each layer, from the embeddings of all of its examples. (n, e_i)"""
    if kind == "mean":
        return tuple(rows.sum(dim=0, keepdim=True).cpu() for rows in embedded)
    return tuple((rows[:count] if kind == "examples" else rows).cpu().clone() for rows in embedded)


def _more_examples(
    method: Faust, number: int, record: ClassRecord, embedded: Sequence[Tensor]
) -> tuple[ClassRecord, list[Tensor]]:
    """Return the record of a class with further examples, and its references. The embeddings of the new examples are
    (n, e_i), the references (K, e_i)."""
    examples, count = record.examples + len(embedded[0]), method.count
    if record.trained_as is not None:
        base = [layer[number].cpu() for layer in method.references] if not record.kept else [own[1:] for own in record.kept]
        sums = [rows.sum(dim=0, keepdim=True).cpu() for rows in embedded]
        if record.kept:
            sums = [old[:1] + new for old, new in zip(record.kept, sums, strict=True)]
        found = [method.blended(own, total / examples, LEARNED_SHARE) for own, total in zip(base, sums, strict=True)]
        kept = tuple(torch.cat(pair) for pair in zip(sums, base, strict=True))
    elif record.kind == "mean":
        kept = tuple(old + rows.sum(dim=0).cpu() for old, rows in zip(record.kept, embedded, strict=True))
        found = [(total / examples).expand(count, -1) for total in kept]
    else:
        together = [torch.cat([old, rows.cpu()]) for old, rows in zip(record.kept, embedded, strict=True)]
        kept = _kept(together, count, record.kind)
        found = _references(kept, count, record.kind)
    like = next(iter(method.references))
    return replace(record, examples=examples, kept=kept), [rows.to(like) for rows in found]


def _class_keys(method: Faust) -> Sequence[str]:
    """Return the names of the tensors of a method that have rows for every class."""
    return list(method.new_class(method.network.example[:1], [layer[0] for layer in method.references]))


def _rows(method: Faust, number: int, keys: Any) -> Rows:
    """Return copies of the rows of a class, on the CPU, by the names of the method's tensors."""
    state = method.state_dict()
    sizes = {key: len(state[key]) // method.classes for key in keys}
    return {key: state[key][number * size : (number + 1) * size].cpu().clone() for key, size in sizes.items()}


def _cut(old: Tensor, size: int, begin: int, end: int) -> Tensor:
    """Remove the rows of some classes, of `size` rows each."""
    return torch.cat([old[: begin * size], old[end * size :]])


def _insert(old: Tensor, rows: Tensor, number: int) -> Tensor:
    """Insert the rows of a class, so that it gets this number."""
    return torch.cat([old[: number * len(rows)], rows.to(old), old[number * len(rows) :]])


def _put(old: Tensor, rows: Tensor, number: int) -> Tensor:
    """Replace the rows of a class."""
    return _insert(_cut(old, len(rows), number, number + 1), rows, number)


def _without(items: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return (*items[:number], *items[number + 1 :])


def _exchanged(names: tuple[str, ...], number: int, name: str) -> tuple[str, ...]:
    return (*names[:number], name, *names[number + 1 :])


def _rebuilt(
    model: "Model",
    change: Callable[[Tensor, str], Tensor],
    keys: Any,
    names: tuple[str, ...],
    history: ClassHistory,
) -> "Model":
    """Return a model whose method has these tensors changed, with other classes and without a rejection threshold."""
    state = {key: change(old, key) if key in keys else old for key, old in model.method.state_dict().items()}
    return _loaded(model, state, names, history)


def _loaded(model: "Model", state: Rows, names: tuple[str, ...], history: ClassHistory) -> "Model":
    with seeded(0):  # to leave the user's random numbers as they are
        method = model.untrained(len(names)).to(next(model.method.parameters()).dtype)
    method.load_state_dict(state)
    return replace(model, method=method.eval(), class_names=names, threshold=None, history=history).to(model.device)
