"""Folders of image files, one subfolder for each class."""

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch

from faustnet.data.image_file import SUFFIXES, find_images, is_ignored, open_image, read_image
from faustnet.data.images import DataSet, Images
from faustnet.errors import FaustnetError, require

GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"}
HELD_OUT = 0.2  # fraction for testing, of a folder that is not split into train and test
KEPT_SIZE = 64  # images keep their size if it is the same for all and at most this
COMMON_SIZE = 32  # otherwise they are resized to this
PARTS = {"train": ("train", "training"), "test": ("test", "testing")}  # names of their folders, also with capital letters
OTHER_PARTS = ("val", "valid", "validation")  # common names of parts that are not used
PART_NAMES = {*chain(*PARTS.values()), *OTHER_PARTS}
SHOWN = 5  # messages and file types that are listed before the rest is counted

ClassFiles = dict[str, list[Path]]  # the files of each class
T = TypeVar("T")


@dataclass
class FileErrors:
    """Policy for files that cannot be read: raise an error if `strict`, otherwise skip the file and keep its message."""

    strict: bool
    messages: list[str] = field(default_factory=list)

    def read(self, paths: Iterable[Path], reader: Callable[[Path], T]) -> dict[Path, T]:
        """Return what `reader` returns for each file that it can read."""
        found = {}
        for path in paths:
            try:
                found[path] = reader(path)
            except FaustnetError as error:
                if self.strict:
                    raise
                self.messages.append(str(error))
        return found


@dataclass(frozen=True)
class ImageFolder:
    """Image files of a folder of class folders, and the shape that all images are brought to."""

    classes_folder: Path  # that contains the class folders of the training images
    train: ClassFiles
    test: ClassFiles
    shape: tuple[int, int, int]
    errors: FileErrors
    other_files: Sequence[Path]  # not images
    loose_images: Sequence[Path]  # in no folder of a class
    unused_folders: Sequence[Path]
    split: Mapping[str, Path]  # the folders of training and test images; empty if the folder is not split

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.train)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Messages about everything that was not read."""
        failed, others = self.errors.messages, self.other_files
        lines = list(failed[:SHOWN])
        if len(failed) > SHOWN:
            lines.append(f"{len(failed) - SHOWN} more images that cannot be read; with --strict, the first one is an error")
        if others:
            kinds = Counter(path.suffix.lower() or "no suffix" for path in others).most_common(SHOWN)
            listed = ", ".join(f"{kind} {count}" for kind, count in kinds)
            lines.append(f"{len(others)} files whose suffix is not that of an image ({listed})")
        if self.loose_images:
            number = "1 image" if len(self.loose_images) == 1 else f"{len(self.loose_images)} images"
            lines.append(
                f"{number} in no folder of a class, such as {self.loose_images[0]}: move all images into such folders"
            )
        used = " and ".join(path.name for path in self.split.values())
        return (*lines, *(f"{path}, because only the folders {used} are used" for path in self.unused_folders))


def find_class_files(
    folder: Path, image_size: int = 0, *, shape: tuple[int, int, int] | None = None, strict: bool = False
) -> ImageFolder:
    """Find the images in FOLDER/CLASS/…, a fifth of which are held out for testing, or in FOLDER/train/CLASS/… and
    FOLDER/test/CLASS/…. Class folders may have subfolders. Images that cannot be read or are in no class folder are left
    out, or refused if `strict`. All images get one shape: `shape`, (channels, height, width), or `image_size`, or one that
    suits the images."""
    split = _split_folders(folder)
    classes_folder = split.get("train", folder)
    train_files, others = list_classes(classes_folder)
    test_files, more = list_classes(split["test"]) if split else ({}, [])
    loose = [path for place in (folder, *split.values()) for path in _loose_images(place)]
    require(
        not (strict and loose),
        f"{loose[0] if loose else ''} is not in the folder of a class: move it into one, or remove it.",
    )
    if unknown := sorted(set(test_files) - set(train_files)):
        raise FaustnetError(
            f"{folder} has test images but no training images of the class {unknown[0]!r}: add training images of it."
        )
    errors = FileErrors(strict)
    headers = errors.read(chain(*train_files.values(), *test_files.values()), _header)
    shape = shape or _common_shape(headers.values(), image_size)
    train_files, test_files = (
        {name: [path for path in paths if path in headers] for name, paths in files.items()}
        for files in (train_files, test_files)
    )
    if not split:
        train_files, test_files = _split(train_files, folder)
    unused = [path for path in _part_folders(folder) if split and path not in split.values()]
    return ImageFolder(classes_folder, train_files, test_files, shape, errors, others + more, loose, unused, split)


def load_folder(
    folder: Path, image_size: int = 0, *, shape: tuple[int, int, int] | None = None, strict: bool = False
) -> DataSet:
    """Read all images that `find_class_files` finds."""
    found = find_class_files(folder, image_size, shape=shape, strict=strict)
    (train, train_paths), (test, test_paths) = (_read_all(files, found) for files in (found.train, found.test))
    for number, name in enumerate(found.class_names):
        if number not in train.labels:
            raise FaustnetError(
                f"{found.classes_folder / name} contains no readable training image: add some, or remove the folder."
            )
    require(
        len(test) > 0,
        f"{folder} has too few images for a test split: add more, or divide them into the folders train and test.",
    )
    paths = dict(zip(PARTS, (train_paths, test_paths), strict=True))
    return DataSet(folder.name, found.class_names, train, test, left_out=found.left_out, paths=paths)


def read_classes(folder: Path, shape: tuple[int, int, int]) -> tuple[dict[str, torch.Tensor], list[Path]]:
    """Read all images in FOLDER/CLASS/…, as bytes of this shape, (n, channels, height, width) for each class. Also return
    the files that are not images. An image that cannot be read, or is in no class folder, is an error."""
    require(folder.is_dir(), f"{folder} is not a folder: give a folder that contains a folder of images for each class.")
    if loose := _loose_images(folder):
        raise FaustnetError(
            f"{loose[0]} is not in the folder of a class: move it into one, or add a single class with 'faustnet add-class'."
        )
    files, others = list_classes(folder, least=1)
    return {name: torch.stack([read_image(path, shape) for path in paths]) for name, paths in files.items()}, others


def _split_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of training and of test images by part, and none if the folder is not split."""
    present = _part_folders(folder)
    found = {part: [path for path in present if path.name.lower() in names] for part, names in PARTS.items()}
    if not all(found.values()):
        return {}
    return {part: min(paths, key=lambda path: path.name != part) for part, paths in found.items()}


def _part_folders(folder: Path) -> list[Path]:
    """Return the folders whose names are those of parts of a data set, sorted."""
    return [path for path in sorted(folder.iterdir()) if path.name.lower() in PART_NAMES and path.is_dir()]


def _loose_images(folder: Path) -> list[Path]:
    """Return the image files that are in this folder itself, sorted."""
    entries = (path for path in sorted(folder.iterdir()) if not is_ignored(path.name))
    return [path for path in entries if path.suffix.lower() in SUFFIXES and not path.is_dir()]


def _split(files: ClassFiles, folder: Path) -> tuple[ClassFiles, ClassFiles]:
    """Hold out about a fifth of each class for testing, by a hash of the file names: adding or removing files moves no other
    file, so that no model is tested on its training images. At least one image of a class is used for training."""
    train, test = {}, {}
    for name, paths in files.items():
        relative = {path: path.relative_to(folder).as_posix().encode(errors="replace") for path in paths}
        held_out = {path for path, text in relative.items() if zlib.crc32(text) < HELD_OUT * 2**32}
        if paths and len(held_out) == len(paths):
            held_out.discard(paths[0])
        train[name] = [path for path in paths if path not in held_out]
        test[name] = [path for path in paths if path in held_out]
    return train, test


def list_classes(folder: Path, least: int = 2) -> tuple[ClassFiles, list[Path]]:
    """Return the image files of every class, sorted, and the files that are not images. There must be at least this number
    of classes."""
    found, others = {}, []
    for entry in sorted(folder.iterdir()):
        if not is_ignored(entry.name) and entry.is_dir():
            found[entry.name], not_images = find_images(entry)
            others += not_images
    for name, paths in found.items():
        require(bool(paths), f"{folder / name} contains no image: add some, or remove the folder.")
        if name.lower() in PART_NAMES and not any(path.parent == folder / name for path in paths):
            raise FaustnetError(
                f"{folder / name} has only folders: if {folder} is already split, rename the parts to train and test."
            )
    if len(found) < least:
        number = "one class" if least == 1 else "two classes"
        raise FaustnetError(f"{folder} must contain a folder of images for each of at least {number}, got {len(found)}.")
    return found, others


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    """Return the mode and the size of an image without decoding it."""
    with open_image(path) as image:
        return image.mode, image.size


def _common_shape(headers: Collection[tuple[str, tuple[int, int]]], image_size: int) -> tuple[int, int, int]:
    """Choose a shape for images: grey if all of them are, and their own size if they share one that is small."""
    modes, sizes = {mode for mode, _ in headers}, {size for _, size in headers}
    channels = 1 if modes <= GREY_MODES else 3
    if image_size:
        return channels, image_size, image_size
    if len(sizes) == 1:
        ((width, height),) = sizes
        if max(width, height) <= KEPT_SIZE:
            return channels, height, width
    return channels, COMMON_SIZE, COMMON_SIZE


def _read_all(files: ClassFiles, found: ImageFolder) -> tuple[Images, list[Path]]:
    """Return the images that can be read, and their files."""
    numbers = {path: found.class_names.index(name) for name, paths in files.items() for path in paths}
    pixels = found.errors.read(numbers, lambda path: read_image(path, found.shape))
    labels = [numbers[path] for path in pixels]
    stacked = torch.stack(list(pixels.values())) if pixels else torch.empty(0, *found.shape, dtype=torch.uint8)
    return Images(stacked, torch.tensor(labels, dtype=torch.long)), list(pixels)
