"""Sources of the user's own data: arrays, pandas tables, data sets and data loaders of PyTorch.

A source gives a method its samples by their positions; see `faustnet.methods.Source`. Samples get the type of the network's
example, and are not scaled.
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from faustnet.errors import FaustnetError, require

STREAM_SAMPLE = 4096  # samples of a stream that are kept, for representatives, references and statistics
DIGEST_SAMPLES = 100  # samples, at most, that the digest of a source is computed from
MOST_16_BIT = 65_535  # the largest value of a pixel of 16 bits
CHECKED_TARGETS = 8  # samples whose labels are compared with `dataset.targets`


class ArraySource:
    """Samples in memory.

    Args:
        x: Samples on the device. (n, …)
        labels: Their classes, int64, on the same device. (n,)
        class_names: Name of each class.
    """

    def __init__(self, x: Tensor, labels: Tensor, class_names: Sequence[str]):
        self.x, self.labels, self.class_names = x, labels, class_names

    def plain(self, index: Tensor) -> Tensor:
        """Return samples. (b,) → (b, …)"""
        return self.x[index]

    augmented = plain


class DatasetItems:
    """Samples of a map-style data set, which are read when they are used. Reading is done by one thread at a time."""

    def __init__(self, dataset: Dataset[Any], like: Tensor):
        self.dataset, self.like = dataset, like  # (1, …)
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), *self.like.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.like.dtype

    def read(self, index: np.ndarray, out: np.ndarray) -> None:
        """Read the samples at these positions into an array. (b,), (b, …)"""
        with self.lock:
            for row, position in enumerate(index.tolist()):
                out[row] = self.sample(position)[0].numpy()

    def sample(self, position: int) -> tuple[Tensor, Any]:
        """Return one sample, and its label as the data set has it."""
        x, label = pair(self.dataset[position], f"Item {position} of the data set")
        found = converted(as_tensor(x), self.like.dtype, f"Item {position} of the data set")
        require(
            found.shape == self.like.shape[1:],
            f"All samples must have the shape of the network's example, {tuple(self.like.shape[1:])}, but item {position} "
            f"of the data set has {tuple(found.shape)}: resize it in the data set.",
        )
        _check_finite(found, f"Item {position} of the data set")
        return found, label


class DatasetSource:
    """Samples of a map-style data set, read ahead by a thread while training. Random augmentation in the data set differs
    from epoch to epoch."""

    def __init__(self, items: DatasetItems, labels: Tensor, class_names: Sequence[str]):
        self.items, self.labels, self.class_names = items, labels, class_names

    def plain(self, index: Tensor) -> Tensor:
        """Read samples now. (b,) → (b, …)"""
        out = torch.empty(len(index), *self.items.shape[1:], dtype=self.items.dtype)
        self.items.read(index.cpu().numpy(), out.numpy())
        return out.to(self.labels.device)

    augmented = plain

    def augmented_of(self, samples: Tensor, index: Tensor) -> Tensor:
        """Return samples that have been read already. (m, …), (b,) → (b, …)"""
        return samples[index]


class StreamSource(ArraySource):
    """Batches of a stream, for training, and a sample of them in memory, for everything else. Only the last batch may be
    incomplete, or that of each worker if the workers read an iterable data set."""

    def __init__(self, loader: DataLoader[Any], sample: ArraySource, classes: int):
        super().__init__(sample.x, sample.labels, sample.class_names)
        self.loader, self.classes = loader, classes
        self.batch_size: int = loader.batch_size or len(next(iter(loader))[1])
        self.ends = max(1, loader.num_workers) if isinstance(loader.dataset, IterableDataset) else 1

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch, on the CPU. An incomplete last batch is dropped. (B, …), (B,)"""
        incomplete: list[tuple[int, int]] = []  # numbers and sizes of incomplete batches
        for number, batch in enumerate(self.loader, start=1):
            x, labels = pair(batch, f"Batch {number} of the data loader")
            x = converted(as_tensor(x), self.x.dtype, f"Batch {number} of the data loader")
            y = checked_labels(labels, self.classes, "train")
            if len(incomplete) == self.ends:
                self._refuse_size(*incomplete[0])
            if len(y) > self.batch_size:
                self._refuse_size(number, len(y))
            if len(y) < self.batch_size:
                incomplete.append((number, len(y)))
                continue
            _check_shape(x, self.x, "train")
            _check_finite(x, f"Batch {number} of the data loader")
            yield x, y

    def _refuse_size(self, number: int, size: int) -> None:
        raise FaustnetError(
            f"train must have batches of {self.batch_size} samples, and only the last may have fewer, got {size} in batch "
            f"{number}: make batches of one size."
        )


Source = ArraySource | DatasetSource | StreamSource


def source_from(data: Any, name: str, example: Tensor, classes: int, batch_size: int = 64) -> Source:
    """Return the source of a user's data, on the device of the example.

    Args:
        data: A pair of arrays (x, y); a map-style data set; an iterable data set or a data loader; or a source.
        name: Name of the argument, for error messages.
        example: Input of a network, (1, …): samples get its type and device.
        classes: Number of classes; labels are from 0 to this.
        batch_size: Size of the batches of an iterable data set.
    """
    if hasattr(data, "plain") and hasattr(data, "labels"):
        checked_labels(data.labels, classes, name)
        return data
    if isinstance(data, DataLoader | IterableDataset):
        loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size)
        return StreamSource(loader, _sampled(loader, name, example, classes, STREAM_SAMPLE), classes)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, str | dict):
        raise FaustnetError(
            f"{name} must be a pair of arrays (x, y), a data set with labels or a data loader, got {type(data).__name__}."
        )
    if isinstance(data, tuple | list) and len(data) == 2:
        return _array_source(data[0], data[1], name, example, classes)
    is_table = isinstance(data, Tensor | np.ndarray) or hasattr(data, "to_numpy")  # without labels
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not is_table:
        return _dataset_source(data, name, example, classes)
    raise FaustnetError(
        f"{name} must be a pair of arrays (x, y), a data set with labels or a data loader, got {type(data).__name__}."
    )


def all_in_memory(source: Source, name: str, example: Tensor, classes: int) -> Source:
    """Read a whole stream, so that it can be evaluated. Other sources are returned as they are."""
    if not isinstance(source, StreamSource):
        return source
    return _sampled(source.loader, name, example, classes, None)


def _array_source(x: Any, y: Any, name: str, example: Tensor, classes: int) -> ArraySource:
    samples = converted(as_tensor(x), example.dtype, name).to(example.device)
    labels = checked_labels(y, classes, name)
    require(
        len(samples) == len(labels),
        f"{name} must have one label per sample, got {len(samples)} samples and {len(labels)} labels.",
    )
    require(len(labels) > 0, f"{name} must have at least one sample, got none.")
    _check_shape(samples, example, name)
    _check_finite(samples, name)
    return ArraySource(samples, labels.to(example.device), class_names(classes))


def _dataset_source(dataset: Any, name: str, example: Tensor, classes: int) -> DatasetSource:
    require(len(dataset) > 0, f"{name} must have at least one sample, got none.")
    items = DatasetItems(dataset, example.cpu())
    known = _targets(dataset)
    positions = range(0, len(dataset), max(1, len(dataset) // CHECKED_TARGETS))
    if known is None or any(not _equal(items.sample(position)[1], known[position]) for position in positions):
        known = [items.sample(position)[1] for position in range(len(dataset))]
    labels = checked_labels(known, classes, name)
    return DatasetSource(items, labels.to(example.device), class_names(classes))


def _targets(dataset: Any) -> Any:
    """Return the labels that a data set has as a list, in the manner of torchvision, if it has."""
    if isinstance(dataset, Subset):
        inner = _targets(dataset.dataset)
        return None if inner is None else [inner[position] for position in dataset.indices]
    found = getattr(dataset, "targets", None)
    return found if found is not None and len(found) == len(dataset) else None


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False


def _sampled(loader: DataLoader[Any], name: str, example: Tensor, classes: int, most: int | None) -> ArraySource:
    """Read the first samples of a stream, or all of them."""
    parts: list[tuple[Tensor, Tensor]] = []
    for number, batch in enumerate(loader):
        x, labels = pair(batch, f"Batch {number + 1} of {name}")
        samples = converted(as_tensor(x), example.dtype, f"Batch {number + 1} of {name}")
        parts.append((samples, checked_labels(labels, classes, name)))
        if most is not None and sum(len(y) for _, y in parts) >= most:
            break
    require(bool(parts), f"{name} must have at least one batch, got none.")
    x, y = (torch.cat(tensors)[:most] for tensors in zip(*parts, strict=True))
    return _array_source(x, y, name, example, classes)


def pair(item: Any, what: str) -> tuple[Any, Any]:
    """Return a sample and its label."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        found = f"{len(item)} entries" if isinstance(item, tuple | list) else type(item).__name__
        raise FaustnetError(f"{what} must be a pair (x, label), got {found}: training needs labels.")
    return item[0], item[1]


def as_tensor(value: Any) -> Tensor:
    """Return an array, a pandas table, an image of Pillow or a tensor as a tensor on the CPU or where it is."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "to_numpy"):  # pandas
        value = np.array(value.to_numpy())  # which may be read-only, unlike the copy
    elif hasattr(value, "getbands"):  # Pillow
        return _from_pillow(value)
    try:
        if isinstance(value, list | tuple) and value and not isinstance(value[0], list | tuple | int | float):
            return torch.stack([as_tensor(part) for part in value])
        return torch.as_tensor(np.require(value, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise FaustnetError(
            f"Samples must be tensors or arrays of numbers, got {type(value).__name__} ({error}): convert them."
        ) from None


def converted(x: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Return samples with the type of the network's example. If that is a type of whole numbers, such as token ids, other
    values are an error."""
    found = x.to(dtype)
    if dtype == x.dtype or dtype.is_floating_point or dtype.is_complex:
        return found
    kept = found.to(x.dtype) == x  # not if x is a fraction, NaN or too large
    if not bool(kept.all()):
        raise FaustnetError(
            f"{what} must contain whole numbers that fit into {dtype}, the type of the network's example, got "
            f"{x[~kept][0].item()}: convert them."
        )
    return found


def _from_pillow(image: Any) -> Tensor:
    """Return the values of an image of Pillow, from 0 to 1. A palette becomes RGB. → (c, h, w), float32"""
    require(
        image.mode != "F",
        "Images of Pillow must have whole numbers as pixels, got mode F, whose range is unknown: convert them to arrays.",
    )
    deep = image.mode.startswith("I")
    if image.mode in ("1", "P", "PA"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    values = np.array(image).astype(np.float32)
    require(
        not deep or bool(((values >= 0) & (values <= MOST_16_BIT)).all()),
        f"Images of Pillow must have pixels from 0 to {MOST_16_BIT} if their mode is I, got {values.min():g} to "
        f"{values.max():g}: convert them to arrays.",
    )
    pixels = torch.from_numpy(values) / (MOST_16_BIT if deep else 255)
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1)


def checked_labels(labels: Any, classes: int, name: str) -> Tensor:
    """Return labels as int64. (n,)"""
    try:
        found = torch.as_tensor(np.array(labels.to_numpy()) if hasattr(labels, "to_numpy") else labels)
    except (TypeError, ValueError, RuntimeError):
        raise FaustnetError(
            f"The labels of {name} must be whole numbers from 0 to {classes - 1}, got {type(labels).__name__} of other "
            "values: number the classes."
        ) from None
    require(found.dim() == 1, f"The labels of {name} must have shape (n,), got {tuple(found.shape)}.")
    require(
        not found.is_floating_point() and not found.is_complex() and found.dtype != torch.bool,
        f"The labels of {name} must be whole numbers from 0 to {classes - 1}, got {found.dtype}: convert them to int64.",
    )
    found = found.long()  # torch cannot compare all types of integers
    if len(found) and not bool(((found >= 0) & (found < classes)).all()):
        wrong = found[(found < 0) | (found >= classes)][0].item()
        raise FaustnetError(
            f"The labels of {name} must be from 0 to {classes - 1}, because the method has {classes} classes, got {wrong}."
        )
    return found


def class_names(classes: int) -> list[str]:
    return [str(number) for number in range(classes)]


def digest(source: Source) -> str:
    """Return a hash of all labels and, if the samples are in memory, of some of these."""
    found = hashlib.sha256(source.labels.cpu().numpy().tobytes())
    if isinstance(source, ArraySource):
        some = source.x[:: -(-len(source.x) // DIGEST_SAMPLES)]
        found.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _check_finite(x: Tensor, what: str) -> None:
    require(
        not x.is_floating_point() or bool(x.isfinite().all()),
        f"{what} must contain finite values only, got NaN or infinity: replace them.",
    )


def _check_shape(x: Tensor, example: Tensor, name: str) -> None:
    require(
        x.shape[1:] == example.shape[1:],
        f"The samples of {name} must have the shape of the network's example, {tuple(example.shape[1:])}, got "
        f"{tuple(x.shape[1:])}.",
    )
