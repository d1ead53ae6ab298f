"""Write a data set as a folder of shards, a few images at a time. The folder appears when it is complete; an interrupted
attempt is continued."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faustnet.data.image_file import read_image
from faustnet.data.image_folder import ClassFiles, FileErrors, ImageFolder
from faustnet.data.images import DataSet, Images, is_table
from faustnet.data.shard_reader import CLASSES, PARTS, load_shards
from faustnet.errors import FaustnetError, require
from faustnet.system.files import is_partial, sync_folder, write_whole, writing
from faustnet.system.locks import LOCK, folder_lock

SHARD = 2**28  # bytes of images in a shard, at most
BEGUN = "begun.json"  # describes the images that an attempt started from, and lists the files that could not be read

OnImages = Callable[[int, int], None]  # called with the number of images written so far, and of all


@dataclass(frozen=True)
class _Part:
    """Training or test images, which are read in order."""

    count: int
    image_bytes: int
    digest: str  # changes with the images
    read: Callable[[int, int], tuple[np.ndarray, np.ndarray]]  # readable images or rows (m, …), labels (m,): from, to before


def shard_folder(found: ImageFolder, folder: Path, on_images: OnImages) -> tuple[str, ...]:
    """Write the images of a folder of class folders as shards; return messages about the files that were not read."""
    parts = [_part_of_files(files, found) for files in (found.train, found.test)]
    _ShardWriter(folder, found.class_names, parts, found.errors).write(on_images)
    return found.left_out


def shard_images(data: DataSet, folder: Path, on_images: OnImages) -> None:
    """Write a data set as shards."""
    parts = [_part_of_images(images) for images in (data.train, data.test)]
    _ShardWriter(folder, data.class_names, parts, FileErrors(strict=True)).write(on_images)


def _part_of_images(images: Images) -> _Part:
    def read(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        some = images.take(torch.arange(start, stop))
        pixels = some.all_pixels.numpy()
        if is_table(images.shape):  # (m, columns, 1, 1) would be read as images with the channels last
            pixels = pixels.reshape(len(some), -1)
        return pixels, some.labels.numpy()

    return _Part(len(images), math.prod(images.shape) * images.pixels.dtype.itemsize, images.digest(), read)


def _part_of_files(files: ClassFiles, found: ImageFolder) -> _Part:
    pairs = [(path, label) for label, name in enumerate(found.class_names) for path in files.get(name, ())]

    def read(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = np.empty((stop - start, *found.shape), np.uint8), list[int]()
        for path, label in pairs[start:stop]:
            for image in found.errors.read([path], lambda path: read_image(path, found.shape)).values():
                pixels[len(labels)] = image.numpy()
                labels.append(label)
        return pixels[: len(labels)], np.array(labels, np.int64)

    described = [(str(path), label, path.stat().st_size, path.stat().st_mtime_ns) for path, label in pairs]
    digest = hashlib.sha256(repr((described, found.shape)).encode(errors="surrogateescape")).hexdigest()
    return _Part(len(pairs), math.prod(found.shape), digest, read)


@dataclass
class _ShardWriter:
    folder: Path
    class_names: Sequence[str]
    parts: Sequence[_Part]  # training and test images
    errors: FileErrors

    def __post_init__(self) -> None:
        require(not self.folder.exists(), f"{self.folder} already exists: choose another folder for the shards.")
        for name in self.class_names:
            require(
                len(name.splitlines()) == 1, f"The name of a class must be one line of text, got {name!r}: rename the class."
            )
        self.partial = self.folder.with_name(f"{self.folder.name}.part")
        digests = {name: part.digest for name, part in zip(PARTS, self.parts, strict=True)}
        self.description = {"names": list(self.class_names), "images": digests}

    def write(self, on_images: OnImages) -> None:
        """Write all shards that are missing in FOLDER.part, then rename it to FOLDER."""
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            with folder_lock(self.partial):
                self._begin()
                self._write_shards(on_images)
                names = "".join(f"{name}\n" for name in self.class_names)
                write_whole(self.partial / CLASSES, names.encode(errors="surrogateescape"))
                load_shards(self.partial)  # raises an error if something is wrong
            self.partial.rename(self.folder)
            (self.folder / BEGUN).unlink()
            sync_folder(self.folder.parent)
        except OSError as error:
            raise FaustnetError(
                f"{self.partial} could not be written ({error.strerror or error}): free some disk space and run the same "
                "command to continue, or choose another folder."
            ) from None

    def _begin(self) -> None:
        """Start an attempt, or check that an earlier one started from the same images."""
        for path in [path for path in self.partial.rglob(".*") if is_partial(path)]:
            path.unlink()
        if any(path.name != LOCK for path in self.partial.iterdir()):
            begun: Any = None
            with suppress(OSError, ValueError):
                begun = json.loads((self.partial / BEGUN).read_text())
            if not isinstance(begun, dict) or begun.get("facts") != self.description:
                raise FaustnetError(
                    f"{self.partial} was made from other images: remove it, or choose another folder for the shards."
                )
            self.errors.messages[:] = dict.fromkeys([*self.errors.messages, *begun["failed"]])
        else:
            self._save_progress()
        for part in PARTS:
            (self.partial / part).mkdir(exist_ok=True)

    def _write_shards(self, on_images: OnImages) -> None:
        done, total = 0, sum(part.count for part in self.parts)
        for name, part in zip(PARTS, self.parts, strict=True):
            size = max(1, SHARD // part.image_bytes)
            for number, start in enumerate(range(0, part.count, size)):
                stop = min(start + size, part.count)
                labels_file = self.partial / name / f"y-{number:05d}.npy"
                if not labels_file.exists():
                    pixels, labels = part.read(start, stop)
                    _save(labels_file.with_name(f"x-{number:05d}.npy"), pixels)
                    self._save_progress()
                    _save(labels_file, labels)
                done += stop - start
                on_images(done, total)

    def _save_progress(self) -> None:
        progress = {"facts": self.description, "failed": self.errors.messages}
        write_whole(self.partial / BEGUN, json.dumps(progress).encode())


def _save(path: Path, array: np.ndarray) -> None:
    with writing(path) as file:
        np.save(file, array, allow_pickle=False)
