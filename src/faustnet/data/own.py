"""The user's own data: a folder of class folders of images, or an .npz file."""

import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from faustnet.data.arrays import as_images, kind_of_labels, read_header
from faustnet.data.files import find_images, is_clutter, opened, read_image
from faustnet.data.images import DataSet, Images
from faustnet.errors import FaustnetError

GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"}
HELD_OUT = 0.2  # of a folder that is not divided into train and test
KEPT_SIZE = 64  # images that all have one size up to this keep it
COMMON_SIZE = 32  # others are brought to this
PARTS = ("train", "test")
OTHER_PARTS = ("val", "valid", "validation")  # that folders may be divided into
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
ZIPPED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy writes; others are unpacked without a limit
EXPANSION = 100  # times its size that an .npz file may unpack to
ALWAYS = 128 << 20  # bytes that it may in any case
SHOWN = 5  # files that are named before the rest is counted

Files = dict[str, list[Path]]  # of each class
T = TypeVar("T")


@dataclass
class Attempts:
    """What is tried with files. One that cannot be read is refused if `strict`, and otherwise remembered and left out."""

    strict: bool
    failed: list[str] = field(default_factory=list)

    def each(self, files: Files, work: Callable[[Path], T]) -> tuple[Files, list[T]]:
        """The files with which it went well, and what came of them, class by class."""
        good: Files = {name: [] for name in files}
        results = []
        for name, paths in files.items():
            for path in paths:
                try:
                    results.append(work(path))
                except FaustnetError as error:
                    if self.strict:
                        raise
                    self.failed.append(str(error))
                else:
                    good[name].append(path)
        return good, results


@dataclass(frozen=True)
class FolderFiles:
    """The image files of a folder of class folders, and the shape that all of their images get."""

    place: Path  # of the classes' folders
    train: Files
    test: Files
    shape: tuple[int, int, int]
    attempts: Attempts
    others: Sequence[Path]  # files that are no images
    unused: Sequence[Path]  # folders

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.train)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not read, and why, in a few lines."""
        return tuple(_told(self.attempts.failed, self.others, self.unused))


def find_files(
    folder: Path, image_size: int = 0, *, shape: tuple[int, int, int] | None = None, strict: bool = False
) -> FolderFiles:
    """FOLDER/CLASS/image files, of which a fifth is held out; or FOLDER/train/CLASS/… and FOLDER/test/CLASS/…. Images may
    lie in folders below a class's. Files that cannot be read are left out, or refused if `strict`.
    All images get one shape: `shape`, (channels, height, width), or what suits them."""
    divided = all((folder / part).is_dir() for part in PARTS)
    place = folder / PARTS[0] if divided else folder
    train_files, others = _class_files(place)
    test_files, more = _class_files(folder / PARTS[1]) if divided else ({}, [])
    if unknown := sorted(set(test_files) - set(train_files)):
        raise FaustnetError(f"{folder} has test images of {unknown[0]!r} but none to train on: add some.")
    attempts = Attempts(strict)
    train_files, train_headers = attempts.each(train_files, _header)
    test_files, test_headers = attempts.each(test_files, _header)
    shape = shape or _common_shape(train_headers + test_headers, image_size)
    if not divided:
        train_files, test_files = _divided(train_files, folder)
    unused = [folder / name for name in OTHER_PARTS if divided and (folder / name).is_dir()]
    return FolderFiles(place, train_files, test_files, shape, attempts, others + more, unused)


def load_folder(
    folder: Path, image_size: int = 0, *, shape: tuple[int, int, int] | None = None, strict: bool = False
) -> DataSet:
    """All images of a folder of class folders; what is there is as `find_files` says."""
    found = find_files(folder, image_size, shape=shape, strict=strict)
    train, test = (_read_all(files, found.names, found.shape, found.attempts) for files in (found.train, found.test))
    for number, name in enumerate(found.names):
        if number not in train.labels:
            raise FaustnetError(f"{found.place / name} holds no image to train on that can be read: add some, or remove it.")
    if not len(test):
        raise FaustnetError(f"{folder} has too few images to hold some out: add more, or make folders train and test.")
    return DataSet(folder.name, found.names, train, test, left_out=found.left_out)


def _divided(files: Files, folder: Path) -> tuple[Files, Files]:
    """About a fifth of each class for testing, by the files' names: where a file goes does not change when others come
    or go, so no model is ever tested on what it was trained on. Every class keeps an image for training."""
    train, test = {}, {}
    for name, paths in files.items():
        places = {path: path.relative_to(folder).as_posix().encode(errors="replace") for path in paths}
        held = {path for path, place in places.items() if zlib.crc32(place) < HELD_OUT * 2**32}
        if paths and len(held) == len(paths):
            held.discard(paths[0])
        train[name] = [path for path in paths if path not in held]
        test[name] = [path for path in paths if path in held]
    return train, test


def _class_files(folder: Path) -> tuple[Files, list[Path]]:
    """Every class's image files, both in order of their names; and files that are not images."""
    found, others = {}, []
    for entry in sorted(folder.iterdir()):
        if not is_clutter(entry.name) and entry.is_dir():
            found[entry.name], not_images = find_images(entry)
            others += not_images
    for name, paths in found.items():
        if not paths:
            raise FaustnetError(f"{folder / name} holds no image: add some, or remove the folder.")
        if name in (*PARTS, *OTHER_PARTS) and not any(path.parent == folder / name for path in paths):
            raise FaustnetError(
                f"{folder / name} holds folders and no images of its own: if {folder} is divided already, call the parts "
                "train and test."
            )
    if len(found) < 2:
        raise FaustnetError(f"{folder} needs a folder of images for each of two classes or more; it holds {len(found)}.")
    return found, others


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    """The mode and the size of an image; no more of it is read."""
    with opened(path) as image:
        return image.mode, image.size


def _common_shape(headers: Sequence[tuple[str, tuple[int, int]]], image_size: int) -> tuple[int, int, int]:
    """Grey only if every image is; the images' own size if they share one that is small."""
    modes, sizes = {mode for mode, _ in headers}, {size for _, size in headers}
    channels = 1 if modes <= GREY_MODES else 3
    if image_size:
        return channels, image_size, image_size
    if len(sizes) == 1:
        ((width, height),) = sizes
        if max(width, height) <= KEPT_SIZE:
            return channels, height, width
    return channels, COMMON_SIZE, COMMON_SIZE


def _read_all(files: Files, names: Sequence[str], shape: tuple[int, int, int], attempts: Attempts) -> Images:
    good, pixels = attempts.each(files, lambda path: read_image(path, shape))
    labels = [names.index(name) for name, paths in good.items() for _ in paths]
    together = torch.stack(pixels) if pixels else torch.empty(0, *shape, dtype=torch.uint8)
    return Images(together, torch.tensor(labels, dtype=torch.long))


def _told(failed: Sequence[str], others: Sequence[Path], unused: Sequence[Path]) -> list[str]:
    """What was not read, and why, in a few lines."""
    lines = list(failed[:SHOWN])
    if len(failed) > SHOWN:
        lines.append(f"{len(failed) - SHOWN} more images that cannot be read; --strict stops at the first")
    if others:
        kinds = Counter(path.suffix.lower() or "without an ending" for path in others).most_common(SHOWN)
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds)
        lines.append(f"{len(others)} files that are no images by their names ({listed})")
    return lines + [f"{path}, for only train and test are used" for path in unused]


def load_npz(path: Path) -> DataSet:
    """x_train, y_train, x_test, y_test: images (n, h, w), (n, h, w, c) or (n, c, h, w), or tables (n, columns)."""
    x_train, y_train, x_test, y_test = _arrays(path)
    if kind_of_labels(y_train) is None or kind_of_labels(y_train) != kind_of_labels(y_test):
        raise FaustnetError(
            f"y_train has labels of type {y_train.dtype} in {path}, and y_test of {y_test.dtype}: give numbers or words."
        )
    for part, y in (("train", y_train), ("test", y_test)):
        if y.dtype.kind == "f" and len(broken := y[y != np.floor(y)]):  # NaN is not itself
            raise FaustnetError(f"y_{part} in {path} has a label {broken[0]}: give whole numbers or words.")
    names = np.unique(y_train)
    if len(names) < 2:
        raise FaustnetError(f"y_train in {path} names {len(names)} classes: give images of two classes or more.")
    if len(unknown := np.setdiff1d(y_test, names)):
        raise FaustnetError(f"{path} has test images of class {unknown[0]} but none to train on: add some.")
    parts = []
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if y.ndim != 1 or x.ndim < 1 or len(x) != len(y) or not len(y):
            raise FaustnetError(f"x_{part} is {x.shape} and y_{part} is {y.shape} in {path}: give each image a label.")
        parts.append(Images(_pixels(x, f"x_{part} in {path}"), torch.from_numpy(np.searchsorted(names, y))))
    train, test = parts
    if train.shape != test.shape:
        raise FaustnetError(f"{path} has images of {train.shape} to train on but {test.shape} to test on: make them alike.")
    return DataSet(path.stem, tuple(str(name) for name in names), train, test)


def _arrays(path: Path) -> list[np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [name for name in ARRAYS if f"{name}.npy" not in archive.NameToInfo]
            if not missing:
                members = [archive.getinfo(f"{name}.npy") for name in ARRAYS]
                size, most = sum(member.file_size for member in members), max(ALWAYS, EXPANSION * path.stat().st_size)
                if size > most:
                    raise ValueError(f"it expands to {size >> 20:,} MiB, and to {most >> 20:,} it may")
                return [_array(archive, member) for member in members]
    except Exception as error:  # a damaged archive can fail in any way at all
        raise FaustnetError(f"{path} does not hold plain arrays ({error}): write it with numpy.savez.") from None
    raise FaustnetError(f"{path} has no array {missing[0]!r}: it needs {', '.join(ARRAYS)}.")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array, after its header has been found to say how much there is of it."""
    if member.compress_type not in ZIPPED:
        raise ValueError(f"{member.filename} is zipped in a way that numpy does not use")
    with archive.open(member) as file:
        shape, _, dtype = read_header(file)
        size = member.file_size - file.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{member.filename} says that it is {shape} of {dtype}, in {size:,} bytes")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _pixels(array: np.ndarray, where: str) -> torch.Tensor:
    """Any usual layout as (n, channels, height, width): whole numbers from 0 to 255 as bytes, others as float32."""
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3, 4) or not array.size:
        raise FaustnetError(f"{where} has shape {array.shape} and type {array.dtype}: give images or rows of numbers.")
    array = as_images(array)
    is_bytes = array.dtype.kind in "bui" and array.min() >= 0 and array.max() <= 255
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
        array = np.ascontiguousarray(array, np.uint8 if is_bytes else np.float32)
    if not np.isfinite(array).all():
        raise FaustnetError(f"{where} holds NaN, infinity or numbers as large: replace those values.")
    return torch.from_numpy(array)
