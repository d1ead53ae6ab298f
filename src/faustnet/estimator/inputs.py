"""The samples and labels that `FaustClassifier` takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from faustnet.data import Images
from faustnet.data.npy_file import channels_first
from faustnet.estimator.settings import BadInput


def as_array(values: Any) -> Any:
    """Return a tensor as an array; anything else is returned as it is. (n, …)"""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return values.float().numpy() if values.is_floating_point() and values.itemsize < 4 else values.numpy()


def array_kind(X: Any) -> dict[str, Any]:
    """Return how scikit-learn shall check samples: a table as float64, images as uint8 or float32."""
    if getattr(X, "ndim", None) in (3, 4) or (isinstance(X, list | tuple) and np.ndim(X) in (3, 4)):
        return {"ensure_2d": False, "allow_nd": True, "dtype": [np.float32, np.uint8]}
    return {"dtype": np.float64}


def to_pixels(X: np.ndarray, scaler: StandardScaler | None, *, as_rows: bool) -> Tensor:
    """Return samples as input of the model: images (n, h, w), (n, h, w, c) or (n, c, h, w), or a table (n, d), as
    (n, c, h, w), or a table as (n, d) if it is wanted `as_rows`."""
    if scaler is not None:
        X = scaler.transform(X)
        if as_rows:
            return torch.from_numpy(X.astype(np.float32))
    X = channels_first(X)
    return torch.from_numpy(np.array(X, order="C"))  # a copy, because torch needs writable memory


def labelled(pixels: Tensor, numbers: np.ndarray) -> Images:
    """Return samples with the positions of their classes, as input of a training. (n, …), (n,)"""
    return Images(pixels if pixels.dtype == torch.uint8 else pixels.float(), torch.from_numpy(numbers))


def layer_numbers(given: int | Sequence[int] | None, count: int) -> list[int]:
    """Return the numbers of the layers, from 1, whose embeddings are wanted; None for all."""
    numbers = list(range(1, count + 1))
    wanted = numbers if given is None else np.atleast_1d(given).tolist()
    if not wanted or not set(wanted) <= set(numbers):
        raise BadInput(f"transform_layers must be one or more numbers from 1 to {count}, got {wanted}.")
    return wanted


def positions(labels: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of labels in an array of classes, in any order, and which labels are not in it. (n,), (C,)"""
    order = np.argsort(classes)
    places = np.searchsorted(classes, labels, sorter=order).clip(max=len(order) - 1)
    return order[places], classes[order[places]] != labels


def same_kind(name: Any, classes: np.ndarray, argument: str = "name") -> np.ndarray:
    """Return a label as an array of the type of the others. → (1,)"""
    kind, known = classes.dtype.kind, type(classes[0]).__name__
    label = np.asarray([name], dtype=object if kind == "O" else None)
    if label.ndim != 1 or label.dtype.kind != kind or (kind == "O" and type(name).__name__ != known):
        raise BadInput(f"{argument} must be of type {known}, like the other labels, got {name!r}.")
    return label
