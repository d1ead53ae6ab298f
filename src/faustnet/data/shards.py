"""Data sets as folders of shards, which may be larger than memory: FOLDER/train/x-….npy with labels in y-….npy, FOLDER/test
likewise, and FOLDER/classes.txt where labels are numbers of names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from faustnet.data.arrays import ArrayFile, kind_of_labels
from faustnet.data.images import DataSet, Images
from faustnet.data.stored import CHUNK, StoredPixels
from faustnet.errors import FaustnetError

PARTS = ("train", "test")
CLASSES = "classes.txt"


def is_sharded(folder: Path) -> bool:
    """Whether this is a folder of shards, and not one of images."""
    return any(any((folder / part).glob("[xy]-*.npy")) for part in PARTS)


def load_shards(folder: Path, stream: str = "auto") -> DataSet:
    """Labels are read, and headers of images: all else when it is used. Images are bytes or float32, (n, h, w), (n, h, w, c)
    or (n, c, h, w), or tables (n, columns); labels whole numbers or words, (n,)."""
    train, test = (_Part.open(folder / part) for part in PARTS)
    for other in (*train.images, *test.images):
        first = train.images[0]
        if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
            raise FaustnetError(
                f"{other.path} has rows of {other.shape[1:]} and type {other.dtype}, but {first.path} of {first.shape[1:]} "
                f"and {first.dtype}: make all shards alike."
            )
    names, numbers = _numbered(folder, train, test)
    parts = []
    for part, labels in zip((train, test), numbers, strict=True):
        pixels = StoredPixels(tuple(part.images), np.arange(len(labels)), stream)
        parts.append(Images(pixels, torch.from_numpy(labels.astype(np.int64))))
    if train.images[0].dtype != np.uint8:
        for _ in parts[1].pixels.split(CHUNK):  # reading refuses what is not finite; the training part is read for scaling
            pass
    return DataSet(folder.name, names, *parts)


@dataclass(frozen=True)
class _Part:
    """What is trained, or tested, on."""

    images: Sequence[ArrayFile]
    labels: Sequence[np.ndarray]  # of each file

    @classmethod
    def open(cls, folder: Path) -> "_Part":
        images = {path.name[2:]: path for path in sorted(folder.glob("x-*.npy"))}
        labels = {path.name[2:]: path for path in sorted(folder.glob("y-*.npy"))}
        if not images:
            raise FaustnetError(f"{folder} has no shards: put images in x-00000.npy, …, and labels in y-00000.npy, ….")
        for name in sorted(images.keys() ^ labels.keys()):
            have, lack = ("images", "labels") if name in images else ("labels", "images")
            lacking = ("y-" if name in images else "x-") + name
            raise FaustnetError(f"{folder / lacking} is missing: shard {name[:-4]} has {have} but no {lack}.")
        pairs = [(_images(path), _labels(labels[name])) for name, path in images.items()]
        for (file, own), path in zip(pairs, labels.values(), strict=True):
            if len(own) != file.shape[0]:
                raise FaustnetError(f"{file.path} has {file.shape[0]} images but {path} {len(own)} labels: give each one.")
        pairs = [(file, own) for file, own in pairs if len(own)]
        if not pairs:
            raise FaustnetError(f"{folder} has shards but no image in them: add some.")
        return cls([file for file, _ in pairs], [own for _, own in pairs])


def _images(path: Path) -> ArrayFile:
    file = ArrayFile.open(path)
    if len(file.shape) not in (2, 3, 4) or not file.row or file.dtype not in (np.uint8, np.float32):
        raise FaustnetError(
            f"{path} has shape {file.shape} and type {file.dtype}: give images or rows of numbers, as uint8 or float32."
        )
    return file


def _labels(path: Path) -> np.ndarray:
    file = ArrayFile.open(path)
    if len(file.shape) != 1 or file.dtype.kind not in "iuU":
        raise FaustnetError(f"{path} has shape {file.shape} and type {file.dtype}: give labels, whole numbers or words.")
    labels = np.load(path, allow_pickle=False)
    if kind_of_labels(labels) is None:
        raise FaustnetError(f"{path} holds characters that there are none of: give labels, whole numbers or words.")
    return labels


def _numbered(folder: Path, train: _Part, test: _Part) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The names of the classes, and both parts' labels as their numbers."""
    kinds = {own.dtype.kind in "iu" for part in (train, test) for own in part.labels}
    if len(kinds) > 1:
        raise FaustnetError(f"{folder} has labels that are numbers and labels that are words: make them alike.")
    found = [np.concatenate(part.labels) for part in (train, test)]
    if (folder / CLASSES).exists():
        names = _names(folder / CLASSES)
        if kinds == {False}:
            raise FaustnetError(f"{folder} has words as labels and a {CLASSES}: give numbers of its lines, or remove it.")
        for part in (train, test):
            _check_range(part, len(names))
        if len(missing := np.setdiff1d(np.arange(len(names)), found[0])):
            raise FaustnetError(
                f"{folder / CLASSES} names {names[missing[0]]!r}, but no training image is labelled {missing[0]}: add some."
            )
        return names, found
    known = np.unique(found[0])
    if len(known) < 2:
        raise FaustnetError(f"{folder} has training images of {len(known)} class: give images of two classes or more.")
    if len(unknown := np.setdiff1d(found[1], known)):
        raise FaustnetError(f"{folder} has test images of class {unknown[0]} but none to train on: add some.")
    return tuple(str(name) for name in known), [np.searchsorted(known, labels) for labels in found]


def _names(path: Path) -> tuple[str, ...]:
    names = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise FaustnetError(f"{path} needs a name in each line, of two different classes or more.")
    return tuple(names)


def _check_range(part: _Part, classes: int) -> None:
    for file, own in zip(part.images, part.labels, strict=True):
        if own.min() < 0 or own.max() >= classes:
            bad = own.min() if own.min() < 0 else own.max()
            raise FaustnetError(
                f"An image in {file.path} has the label {bad}, but {CLASSES} names classes 0 to {classes - 1}: mend one."
            )
