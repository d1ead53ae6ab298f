"""Write a data set as a folder of shards, a few images at a time. The folder appears when it is complete; an interrupted
attempt is continued."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from faustnet.data.image_file import read_image
from faustnet.data.image_folder import ClassFiles, FileErrors, ImageFolder
from faustnet.data.images import DataSet, Images
from faustnet.data.shard_reader import CLASSES, PARTS, load_shards
from faustnet.errors import FaustnetError
from faustnet.system.files import is_partial, sync_folder, writing
from faustnet.system.locks import LOCK, folder_lock

SHARD = 2**28  # bytes of images in a shard, at most
BEGUN = "begun.json"  # describes the images that an attempt started from, and lists the files that could not be read

OnImages = Callable[[int, int], None]  # called with the number of images written so far, and of all


class ImageSequence(Protocol):
    """Images and labels that are read in order."""

    image_bytes: int

    def __len__(self) -> int: ...

    def digest(self) -> str:
        """Return a hash that changes with the images."""
        ...

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the images, (m, c, h, w), and labels, (m,), from `start` to before `stop`, without unreadable ones."""
        ...


class LoadedImages:
    """Images of a data set that `load_data` has read, or that is stored in shards."""

    def __init__(self, images: Images):
        self.images = images
        self.image_bytes = int(np.prod(images.shape)) * images.pixels.dtype.itemsize

    def __len__(self) -> int:
        return len(self.images)

    def digest(self) -> str:
        return self.images.digest()

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        some = self.images.take(torch.arange(start, stop))
        return some.all_pixels.numpy(), some.labels.numpy()


class FileImages:
    """Images of a folder of class folders, read file by file."""

    def __init__(self, files: ClassFiles, found: ImageFolder):
        self.pairs = [(path, label) for label, name in enumerate(found.class_names) for path in files.get(name, ())]
        self.shape, self.errors = found.shape, found.errors
        self.image_bytes = int(np.prod(found.shape))

    def __len__(self) -> int:
        return len(self.pairs)

    def digest(self) -> str:
        files = [(str(path), label, path.stat().st_size, path.stat().st_mtime_ns) for path, label in self.pairs]
        return hashlib.sha256(repr((files, self.shape)).encode(errors="surrogateescape")).hexdigest()

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = np.empty((stop - start, *self.shape), np.uint8), list[int]()
        for path, label in self.pairs[start:stop]:
            for image in self.errors.apply({"": [path]}, lambda path: read_image(path, self.shape))[1]:
                pixels[len(labels)] = image.numpy()
                labels.append(label)
        return pixels[: len(labels)], np.array(labels, np.int64)


def shard_folder(found: ImageFolder, folder: Path, on_images: OnImages) -> tuple[str, ...]:
    """Write the images of a folder of class folders as shards; return messages about the files that were not read."""
    parts = {part: FileImages(files, found) for part, files in zip(PARTS, (found.train, found.test), strict=True)}
    _ShardWriter(folder, found.class_names, parts, found.errors).write(on_images)
    return found.left_out


def shard_images(data: DataSet, folder: Path, on_images: OnImages) -> None:
    """Write a data set as shards."""
    parts = {part: LoadedImages(images) for part, images in zip(PARTS, (data.train, data.test), strict=True)}
    _ShardWriter(folder, data.class_names, parts, FileErrors(strict=True)).write(on_images)


@dataclass
class _ShardWriter:
    folder: Path
    class_names: Sequence[str]
    parts: Mapping[str, ImageSequence]
    errors: FileErrors

    def __post_init__(self) -> None:
        if self.folder.exists():
            raise FaustnetError(f"{self.folder} already exists: choose another folder for the shards.")
        if any(len(name.splitlines()) != 1 for name in self.class_names):
            raise FaustnetError("The name of a class must be a single line that is not empty: rename the class.")
        self.partial = self.folder.with_name(f"{self.folder.name}.part")
        digests = {part: images.digest() for part, images in self.parts.items()}
        self.description = {"names": list(self.class_names), "images": digests}

    def write(self, on_images: OnImages) -> None:
        """Write all shards that are missing in FOLDER.part, then rename it to FOLDER."""
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            with folder_lock(self.partial):
                self._begin()
                self._write_shards(on_images)
                with writing(self.partial / CLASSES) as file:
                    file.write("".join(f"{name}\n" for name in self.class_names).encode(errors="surrogateescape"))
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
        for part in self.parts:
            (self.partial / part).mkdir(exist_ok=True)

    def _write_shards(self, on_images: OnImages) -> None:
        done, total = 0, sum(map(len, self.parts.values()))
        for part, images in self.parts.items():
            size = max(1, SHARD // images.image_bytes)
            for number, start in enumerate(range(0, len(images), size)):
                stop = min(start + size, len(images))
                labels_file = self.partial / part / f"y-{number:05d}.npy"
                if not labels_file.exists():
                    pixels, labels = images.read(start, stop)
                    _save(labels_file.with_name(f"x-{number:05d}.npy"), pixels)
                    self._save_progress()
                    _save(labels_file, labels)
                done += stop - start
                on_images(done, total)

    def _save_progress(self) -> None:
        with writing(self.partial / BEGUN) as file:
            file.write(json.dumps({"facts": self.description, "failed": self.errors.messages}).encode())


def _save(path: Path, array: np.ndarray) -> None:
    with writing(path) as file:
        np.save(file, array, allow_pickle=False)
