"""Data sets as folders of shards, which may be larger than memory: FOLDER/train/x-….npy with labels in y-….npy, the same in
FOLDER/test, and FOLDER/classes.txt if the labels are numbers of named classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from faustnet.data.images import DataSet, Images
from faustnet.data.npy_file import NpyFile, label_kind
from faustnet.data.stored_pixels import CHUNK, StoredPixels
from faustnet.errors import FaustnetError

PARTS = ("train", "test")
CLASSES = "classes.txt"


def is_sharded(folder: Path) -> bool:
    """Return whether a folder contains shards rather than images."""
    return any(any((folder / part).glob("[xy]-*.npy")) for part in PARTS)


def load_shards(folder: Path, stream: str = "auto") -> DataSet:
    """Read the labels and the headers of the images; the images are read when they are used. Images are uint8 or float32,
    (n, h, w), (n, h, w, c) or (n, c, h, w), or tables (n, columns); labels are integers or strings, (n,)."""
    train, test = (_Part.open(folder / part) for part in PARTS)
    for other in (*train.images, *test.images):
        first = train.images[0]
        if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
            raise FaustnetError(
                f"All shards need images of one shape and type, but {other.path} has {other.shape[1:]} of {other.dtype}, "
                f"and {first.path} has {first.shape[1:]} of {first.dtype}."
            )
    names, numbers = _class_numbers(folder, train, test)
    parts = []
    for part, labels in zip((train, test), numbers, strict=True):
        pixels = StoredPixels(tuple(part.images), np.arange(len(labels)), stream)
        parts.append(Images(pixels, torch.from_numpy(labels.astype(np.int64))))
    if train.images[0].dtype != np.uint8:
        for _ in parts[1].pixels.split(CHUNK):  # reading refuses NaN and infinity; the scaling reads the training images
            pass
    return DataSet(folder.name, names, *parts)


@dataclass(frozen=True)
class _Part:
    """Shards of the training images or of the test images."""

    images: Sequence[NpyFile]
    labels: Sequence[np.ndarray]  # of each file

    @classmethod
    def open(cls, folder: Path) -> "_Part":
        images = {path.name[2:]: path for path in sorted(folder.glob("x-*.npy"))}
        labels = {path.name[2:]: path for path in sorted(folder.glob("y-*.npy"))}
        if not images:
            raise FaustnetError(f"{folder} has no shards: save images as x-00000.npy, … and labels as y-00000.npy, ….")
        for name in sorted(images.keys() ^ labels.keys()):
            missing = ("y-" if name in images else "x-") + name
            raise FaustnetError(f"{folder / missing} is missing: every shard needs images in x-… and labels in y-….")
        pairs = [(_open_images(path), _read_labels(labels[name])) for name, path in images.items()]
        for (file, own), path in zip(pairs, labels.values(), strict=True):
            if len(own) != file.shape[0]:
                raise FaustnetError(
                    f"{path} must have one label for each image of {file.path}, got {len(own)} for {file.shape[0]} images."
                )
        pairs = [(file, own) for file, own in pairs if len(own)]
        if not pairs:
            raise FaustnetError(f"{folder} has shards but no images: add some.")
        return cls([file for file, _ in pairs], [own for _, own in pairs])


def _open_images(path: Path) -> NpyFile:
    file = NpyFile.open(path)
    if len(file.shape) not in (2, 3, 4) or not file.row_bytes or file.dtype not in (np.uint8, np.float32):
        raise FaustnetError(
            f"{path} must contain images or rows of numbers, as uint8 or float32, got shape {file.shape}, type {file.dtype}."
        )
    return file


def _read_labels(path: Path) -> np.ndarray:
    file = NpyFile.open(path)
    if len(file.shape) != 1 or file.dtype.kind not in "iuU":
        raise FaustnetError(
            f"{path} must contain labels, integers or strings, (n,), got shape {file.shape}, type {file.dtype}."
        )
    labels = np.load(path, allow_pickle=False)
    if label_kind(labels) is None:
        raise FaustnetError(f"{path} contains invalid Unicode: save labels that are integers or strings.")
    return labels


def _class_numbers(folder: Path, train: _Part, test: _Part) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """Return the names of the classes, and the class numbers of the training and the test images."""
    are_numbers = {own.dtype.kind in "iu" for part in (train, test) for own in part.labels}
    if len(are_numbers) > 1:
        raise FaustnetError(f"The labels in {folder} must be all integers or all strings, got both.")
    found = [np.concatenate(part.labels) for part in (train, test)]
    if (folder / CLASSES).exists():
        names = _read_names(folder / CLASSES)
        if are_numbers == {False}:
            raise FaustnetError(f"{folder} has strings as labels and a {CLASSES}: use line numbers as labels, or remove it.")
        for part in (train, test):
            _check_range(part, len(names))
        if len(missing := np.setdiff1d(np.arange(len(names)), found[0])):
            raise FaustnetError(
                f"{folder / CLASSES} names {names[missing[0]]!r}, but no training image has label {missing[0]}: add some."
            )
        return names, found
    known = np.unique(found[0])
    if len(known) < 2:
        raise FaustnetError(f"{folder} must have training images of at least two classes, got {len(known)}.")
    if len(unknown := np.setdiff1d(found[1], known)):
        raise FaustnetError(f"{folder} has test images but no training images of the class {unknown[0]}: add some.")
    return tuple(str(name) for name in known), [np.searchsorted(known, labels) for labels in found]


def _read_names(path: Path) -> tuple[str, ...]:
    names = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise FaustnetError(f"{path} must name at least two different classes, one in each line.")
    return tuple(names)


def _check_range(part: _Part, classes: int) -> None:
    for file, own in zip(part.images, part.labels, strict=True):
        if own.min() < 0 or own.max() >= classes:
            bad = own.min() if own.min() < 0 else own.max()
            raise FaustnetError(
                f"Labels must be from 0 to {classes - 1}, the lines of {CLASSES}, but an image in {file.path} has {bad}."
            )
