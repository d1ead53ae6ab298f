"""Data sets in memory: arrays, pandas tables, data sets and data loaders of PyTorch."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from faustnet.data.image_file import image_pixels
from faustnet.data.images import DataSet, Images
from faustnet.data.npy_file import channels_first
from faustnet.data.sources import as_tensor, pair
from faustnet.data.table_columns import check_columns, columns_of_pair
from faustnet.data.tokens import Tokeniser, check_ids
from faustnet.errors import FaustnetError, require

MEMORY = "memory"  # name of the data set
HELD_OUT = 0.2  # fraction of the samples that are test samples if none are given
LARGEST_CLASSES = 100_000  # more labels than this are most likely not classes
SHOWN = 5  # class names in an error


def data_in_memory(train: Any, test: Any = None, *, tokens: bool = False) -> DataSet:
    """Return the user's data as a data set.

    Arrays and tensors of images have the shape (n, h, w), (n, c, h, w) or (n, h, w, c), and tables (n, columns). Four
    dimensions are channels-last if the last is 1 or 3 and the second is neither. uint8 images stay bytes, and everything
    else becomes float32.

    Args:
        train: A pair (x, y) of arrays, tensors or pandas tables; a map-style data set; an iterable data set or a data
            loader. All samples are read once.
        test: Test data of the same kinds; a table must have the columns of the training data in the same order. None: a
            fifth of the samples of each class.
        tokens: Whether whole numbers (n, T) are token ids, where 0 is padding, in place of a table.
    """
    columns = columns_of_pair(train)
    check_columns(columns_of_pair(test), columns, "test", "data")
    x, labels = _read(train, "data")
    names, numbers = _numbered(labels)
    tokeniser = _tokeniser(x) if tokens else None
    first = Images(_prepared(x, tokeniser, "data"), numbers)
    if test is None:
        first, second = _split(first, names)
    else:
        other, labels = _read(test, "test")
        second = Images(_prepared(other, tokeniser, "test"), _known(labels, names))
    require(
        first.shape == second.shape,
        f"data and test must have samples of one shape, got {first.shape} and {second.shape}.",
    )
    require(
        first.pixels.dtype == second.pixels.dtype,
        f"data and test must have the same type, got {first.pixels.dtype} and {second.pixels.dtype}: convert one of them.",
    )
    return DataSet(MEMORY, tuple(map(str, names)), first, second, tokeniser=tokeniser, columns=columns)


def data_digest(data: DataSet) -> str:
    """Return the SHA-256 of all samples, labels and class names."""
    found = hashlib.sha256(repr(data.class_names).encode())
    for part in (data.train, data.test):
        pixels = part.all_pixels
        found.update(repr((tuple(pixels.shape), str(pixels.dtype))).encode())
        found.update(pixels.contiguous().numpy().data)
        found.update(part.labels.contiguous().numpy().data)
    return found.hexdigest()


def _read(data: Any, name: str) -> tuple[Tensor, np.ndarray]:
    """Return all samples, (n, …), and their labels as the user has them, (n,)."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, tuple | list) and len(data) == 2:
        x, labels = as_tensor(data[0]).detach().cpu(), _labels(data[1], name)
    elif isinstance(data, DataLoader):
        batches = [pair(batch, f"Batch {number} of {name}") for number, batch in enumerate(data, start=1)]
        require(bool(batches), f"{name} must have at least one batch, got none.")
        x = torch.cat([as_tensor(one).detach().cpu() for one, _ in batches])
        labels = np.concatenate([_labels(some, name) for _, some in batches])
    elif isinstance(data, IterableDataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        count = len(data) if hasattr(data, "__len__") else None
        items = iter(data) if isinstance(data, IterableDataset) else (data[position] for position in range(count or 0))
        found = [pair(item, f"Item {number} of {name}") for number, item in enumerate(items)]
        require(bool(found), f"{name} must have at least one sample, got none.")
        x, labels = _stacked([one for one, _ in found], name), _labels([_plain(label) for _, label in found], name)
    else:
        kind = type(data).__name__
        raise FaustnetError(f"{name} must be a pair of arrays (x, y), a data set with labels or a data loader, got {kind}.")
    require(
        x.dim() > 0 and len(x) == len(labels),
        f"{name} must have one label per sample, got {len(x) if x.dim() else 0} samples and {len(labels)} labels.",
    )
    require(len(labels) > 0, f"{name} must have at least one sample, got none.")
    return x, labels


def _split(everything: Images, names: np.ndarray) -> tuple[Images, Images]:
    """Hold out a fifth of the samples of each class."""
    single = [repr(str(name)) for name in names[torch.bincount(everything.labels).numpy() == 1]]
    more = f" and {len(single) - SHOWN} more" if len(single) > SHOWN else ""
    require(
        not single,
        f"data must have at least 2 samples of each class if test is not given, got 1 of {', '.join(single[:SHOWN])}{more}: "
        "add samples, leave out such classes, or give test.",
    )
    least = math.floor((len(names) - 1) / HELD_OUT) + 1  # so that as many samples as classes are held out
    require(
        len(everything) >= least,
        f"data must have at least {least} samples for {len(names)} classes if test is not given, got {len(everything)}: add "
        "samples, or give test.",
    )
    return everything.split(HELD_OUT, seed=0)


def _stacked(samples: Sequence[Any], name: str) -> Tensor:
    """Stack the samples of a data set. Images of Pillow become bytes. → (n, …)"""
    found = [
        _bytes(one, f"Item {number} of {name}") if hasattr(one, "getbands") else as_tensor(one).detach().cpu()
        for number, one in enumerate(samples)
    ]
    for position, one in enumerate(found):
        require(
            one.shape == found[0].shape,
            f"All samples of {name} must have one shape, but item 0 has {tuple(found[0].shape)} and item {position} "
            f"{tuple(one.shape)}: resize them.",
        )
    return torch.stack(found)


def _bytes(image: Any, name: str) -> Tensor:
    """Return an image of Pillow as grey or RGB. 16 bits become 8, as in an image file. → (c, h, w), bytes"""
    if image.mode.startswith(("I", "F")):  # Pillow would clip at 255
        return image_pixels(image, (1, image.height, image.width), name)
    pixels = torch.from_numpy(np.array(image.convert("L" if image.mode in ("1", "L") else "RGB")))
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1)


def _plain(label: Any) -> Any:
    """Return the label of one sample as a plain value."""
    return label.item() if hasattr(label, "item") and getattr(label, "ndim", 1) == 0 else label


def _labels(labels: Any, name: str) -> np.ndarray:
    """Return labels of any type as an array of whole numbers, booleans, strings or objects. (n,)"""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    found = np.asarray(labels.to_numpy() if hasattr(labels, "to_numpy") else labels)
    require(found.ndim == 1, f"The labels of {name} must have shape (n,), got {found.shape}.")
    if found.dtype.kind == "f":
        whole = np.isfinite(found) & (found == np.floor(found))
        require(
            bool(whole.all()),
            f"The labels of {name} must be whole numbers or names of classes, got {found[~whole][:1].tolist()}: number the "
            "classes.",
        )
        return found.astype(np.int64)
    return found


def _numbered(labels: np.ndarray) -> tuple[np.ndarray, Tensor]:
    """Return the different labels in order, and the position of each label among them. (n,) → (C,), (n,)"""
    try:
        names, numbers = np.unique(labels, return_inverse=True)
    except TypeError:  # of several types
        kinds = sorted({type(label).__name__ for label in labels})
        raise FaustnetError(f"The labels of data must be of one type, got {' and '.join(kinds)}: convert them.") from None
    require(len(names) > 1, f"data must have samples of at least two classes, got {len(names)}.")
    require(len(names) <= LARGEST_CLASSES, f"data must have at most {LARGEST_CLASSES:,} classes, got {len(names):,}.")
    require(len(set(map(str, names))) == len(names), "The labels of data must have different names: rename some of them.")
    return names, torch.from_numpy(numbers)


def _known(labels: np.ndarray, names: np.ndarray) -> Tensor:
    """Return the position of each test label among the names of the classes. (n,) → (n,)"""
    numbers = {name: number for number, name in enumerate(names.tolist())}
    unknown = [label for label in labels.tolist() if label not in numbers]
    require(
        not unknown,
        f"test must have only labels that data has, got {unknown[:1]}: add samples of this class to data.",
    )
    return torch.tensor([numbers[label] for label in labels.tolist()])


def _tokeniser(x: Tensor) -> Tokeniser | None:
    """Return the tokeniser of token ids (n, T); None if the samples are something else."""
    if x.dim() != 2 or x.is_floating_point() or x.dtype == torch.bool:
        return None
    return Tokeniser.of_ids(int(x.max()) + 1, x.shape[1])


def _prepared(x: Tensor, tokeniser: Tokeniser | None, name: str) -> Tensor:
    """Return samples as a data set stores them."""
    if tokeniser is None:
        return _pixels(x, name)
    check_ids(x, tokeniser.vocabulary, f"The token ids of {name}")
    return x.to(tokeniser.dtype)


def _pixels(x: Tensor, name: str) -> Tensor:
    """Return images or a table as (n, c, h, w): bytes if they are images of uint8, otherwise float32."""
    require(
        x.dim() in (2, 3, 4) and not x.is_complex() and x.numel() > 0,
        f"{name} must be images (n, h, w), (n, c, h, w) or (n, h, w, c), or a table (n, columns), got shape "
        f"{tuple(x.shape)}, type {x.dtype}.",
    )
    is_bytes = x.dtype == torch.uint8 and x.dim() > 2
    array = channels_first(x.numpy() if is_bytes else x.float().numpy())
    require(
        bool(np.isfinite(array).all()),
        f"{name} must contain finite values only, got NaN, infinity or values beyond the range of float32: replace them.",
    )
    return torch.from_numpy(np.ascontiguousarray(array))
