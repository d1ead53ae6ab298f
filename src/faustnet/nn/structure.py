"""Structures: what one layer passes to the next, a tensor or several.

A structure is a tensor, or a tuple, list or dictionary of structures. Its first tensor is the activation. All of its tensors
have the rows of the batch as their first dimension. Other entries, such as None, are passed on as they are.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from faustnet.errors import FaustnetError

Structure = Any  # Tensor | tuple[Structure, …] | list[Structure] | dict[str, Structure]


def tensors(structure: Structure) -> Iterator[Tensor]:
    """Yield all tensors of a structure in order."""
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, tuple | list | dict):
        for part in structure.values() if isinstance(structure, dict) else structure:
            yield from tensors(part)


def activation(structure: Structure) -> Tensor:
    """Return the first tensor of a structure, the activation."""
    if isinstance(structure, Tensor):
        return structure
    found = next(tensors(structure), None)
    if found is None:
        raise FaustnetError(
            f"A body must return a tensor, or a tuple or dictionary that contains one, got {type(structure).__name__}."
        )
    return found


def padding_mask(structure: Structure) -> Tensor | None:
    """Return the tensor after the activation (R, T, d) if it is a padding mask: boolean, (R, T), True at padding."""
    if isinstance(structure, Tensor):
        return None
    first, *others = tensors(structure)
    if others and others[0].dtype == torch.bool and others[0].shape == first.shape[:2]:
        return others[0]
    return None


def map_tensors(function: Callable[..., Any], structure: Structure, *others: Structure) -> Structure:
    """Apply a function to each tensor of a structure, or to the tensors of several structures of the same form."""
    if isinstance(structure, Tensor):
        return function(structure, *others)
    if isinstance(structure, dict):
        return {key: map_tensors(function, part, *(other[key] for other in others)) for key, part in structure.items()}
    if isinstance(structure, tuple | list):
        parts = [map_tensors(function, *pair) for pair in zip(structure, *others, strict=True)]
        if hasattr(structure, "_fields"):  # a named tuple
            return type(structure)(*parts)
        return type(structure)(parts)
    return structure


def detached(structure: Structure) -> Structure:
    """Cut a structure off from the graph that computed it."""
    return structure.detach() if isinstance(structure, Tensor) else map_tensors(Tensor.detach, structure)


def select_rows(structure: Structure, index: Tensor | slice) -> Structure:
    """Return the rows at some positions."""
    return map_tensors(lambda tensor: tensor[index], structure)


def copy_into(target: Structure, source: Structure) -> None:
    """Copy the values of one structure into another of the same form."""
    for old, new in zip(tensors(target), tensors(source), strict=True):
        old.copy_(new)


def as_vectors(rows: Tensor) -> Tensor:
    """Flatten the rows of a tensor, feature maps pixel by pixel. (R, …) → (R, d), (R, c, h, w) → (R, h · w · c)"""
    return (rows.permute(0, 2, 3, 1) if rows.dim() == 4 else rows).flatten(1)


def empty_rows(like: Tensor, rows: int) -> Tensor:
    """Return an uninitialised tensor with this number of rows, and the other dimensions, the type and the memory format of
    another. (R, …) → (rows, …)"""
    empty = like.new_empty(rows, *like.shape[1:])
    return empty.contiguous(memory_format=_memory_format(like))


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return the values of a tensor in the order of memory, as a view of it if it is in one of the two memory formats."""
    if _memory_format(tensor) == torch.channels_last:
        return tensor.permute(0, 2, 3, 1).flatten()
    return tensor.contiguous().flatten()


def _memory_format(tensor: Tensor) -> torch.memory_format:
    pictures = tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if pictures else torch.contiguous_format
