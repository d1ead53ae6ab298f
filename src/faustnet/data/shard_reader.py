"""Data sets as folders of shards, which may be larger than memory: FOLDER/train/x-….npy with labels in y-….npy, the same in
FOLDER/test, and FOLDER/classes.txt if the labels are numbers of named classes."""

from pathlib import Path

import numpy as np
import torch

from faustnet.data.images import DataSet, Images
from faustnet.data.npy_file import BadLabels, NpyFile, different_labels, label_kind
from faustnet.data.stored_pixels import CHUNK, StoredPixels
from faustnet.errors import FaustnetError, require

PARTS = ("train", "test")
CLASSES = "classes.txt"

Shard = tuple[NpyFile, np.ndarray]  # the images and their labels


def is_sharded(folder: Path) -> bool:
    """Return whether a folder contains shards rather than images."""
    return any(any((folder / part).glob("[xy]-*.npy")) for part in PARTS)


def load_shards(folder: Path, stream: str = "auto") -> DataSet:
    """Read the labels and the headers of the images; the images are read when they are used. Images are uint8 or float32,
    (n, h, w), (n, h, w, c) or (n, c, h, w), or tables (n, columns); labels are integers or strings, (n,)."""
    train, test = (_open_part(folder / part) for part in PARTS)
    first = train[0][0]
    for other, _ in train + test:
        if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
            raise FaustnetError(
                f"All shards need images of one shape and type, but {other.path} has {other.shape[1:]} of {other.dtype}, "
                f"and {first.path} has {first.shape[1:]} of {first.dtype}."
            )
    names, numbers = _class_numbers(folder, train, test)
    parts = []
    for shards, labels in zip((train, test), numbers, strict=True):
        pixels = StoredPixels(tuple(file for file, _ in shards), np.arange(len(labels)), stream)
        parts.append(Images(pixels, torch.from_numpy(labels.astype(np.int64))))
    if first.dtype != np.uint8:
        for _ in parts[1].pixels.split(CHUNK):  # reading refuses NaN and infinity; the scaling reads the training images
            pass
    return DataSet(folder.name, names, *parts)


def _open_part(folder: Path) -> list[Shard]:
    """Return the shards of the training images or of the test images, without empty ones."""
    images = {path.name[2:]: path for path in sorted(folder.glob("x-*.npy"))}
    labels = {path.name[2:]: path for path in sorted(folder.glob("y-*.npy"))}
    require(bool(images), f"{folder} has no shards: save images as x-00000.npy, … and labels as y-00000.npy, ….")
    for name in sorted(images.keys() ^ labels.keys()):
        missing = ("y-" if name in images else "x-") + name
        raise FaustnetError(f"{folder / missing} is missing: every shard needs images in x-… and labels in y-….")
    shards = [(_open_images(path), _read_labels(labels[name])) for name, path in images.items()]
    for (file, own), path in zip(shards, labels.values(), strict=True):
        require(
            len(own) == file.shape[0],
            f"{path} must have one label for each image of {file.path}, got {len(own)} for {file.shape[0]} images.",
        )
    shards = [(file, own) for file, own in shards if len(own)]
    require(bool(shards), f"{folder} must have at least one image in its shards, got none: add images.")
    return shards


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
            f"{path} must contain labels in one dimension, integers or strings, got shape {file.shape}, type {file.dtype}."
        )
    labels = np.load(path, allow_pickle=False)
    if label_kind(labels) is None:
        raise FaustnetError(f"{path} contains invalid Unicode: save labels that are integers or strings.")
    return labels


def _class_numbers(folder: Path, train: list[Shard], test: list[Shard]) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """Return the names of the classes, and the class numbers of the training and the test images."""
    are_numbers = {own.dtype.kind in "iu" for _, own in train + test}
    require(len(are_numbers) == 1, f"The labels in {folder} must be all integers or all strings, got both.")
    found = [np.concatenate([own for _, own in shards]) for shards in (train, test)]
    path = folder / CLASSES
    if not path.exists():
        known = different_labels(folder, *found)
        return tuple(map(str, known)), [np.searchsorted(known, labels) for labels in found]
    names = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise FaustnetError(f"{path} must name at least two different classes, one in each line, got {names}.")
    if are_numbers == {False}:
        raise FaustnetError(
            f"{folder} has labels that are strings and a {CLASSES}: use line numbers from 0 as labels, or remove {CLASSES}."
        )
    for file, own in train + test:
        if len(bad := own[(own < 0) | (own >= len(names))]):
            raise BadLabels(
                f"Labels must be from 0 to {len(names) - 1}, the lines of {CLASSES}, but an image in {file.path} "
                f"has {bad[0]}."
            )
    if len(missing := np.setdiff1d(np.arange(len(names)), found[0])):
        raise BadLabels(
            f"{path} names {names[missing[0]]!r}, but no training image has label {missing[0]}: add training images of it."
        )
    return tuple(names), found
