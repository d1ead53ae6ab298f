"""Making a folder of shards, a few images at a time. It is complete or absent, and what was begun is gone on with."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from faustnet.data.files import read_image
from faustnet.data.images import DataSet, Images
from faustnet.data.own import Attempts, Files, FolderFiles
from faustnet.data.shards import CLASSES, PARTS, load_shards
from faustnet.errors import FaustnetError
from faustnet.system.files import is_partial, sync_folder, writing
from faustnet.system.locks import LOCK, folder_lock

SHARD = 2**28  # bytes of images in a file, at most
BEGUN = "begun.json"  # from which images, and which of them could not be read


class Series(Protocol):
    """Images and labels that come one after the other."""

    def __len__(self) -> int: ...

    @property
    def row(self) -> int:
        """The bytes of an image."""
        ...

    def digest(self) -> str:
        """Another one if the images are others."""
        ...

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """From this one to before that one: (m, c, h, w) and (m,); fewer, where some cannot be read."""
        ...


class ImageSeries:
    """A set that has been read, or lies in shards."""

    def __init__(self, images: Images):
        self.images = images
        self.row = int(np.prod(images.shape)) * images.pixels.dtype.itemsize

    def __len__(self) -> int:
        return len(self.images)

    def digest(self) -> str:
        return self.images.digest()

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        some = self.images.take(torch.arange(start, stop))
        return some.all_pixels.numpy(), some.labels.numpy()


class FileSeries:
    """Image files of classes."""

    def __init__(self, files: Files, found: FolderFiles):
        self.pairs = [(path, label) for label, name in enumerate(found.names) for path in files.get(name, ())]
        self.shape, self.attempts = found.shape, found.attempts
        self.row = int(np.prod(found.shape))

    def __len__(self) -> int:
        return len(self.pairs)

    def digest(self) -> str:
        files = [(str(path), label, path.stat().st_size, path.stat().st_mtime_ns) for path, label in self.pairs]
        return hashlib.sha256(repr((files, self.shape)).encode(errors="surrogateescape")).hexdigest()

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = np.empty((stop - start, *self.shape), np.uint8), list[int]()
        for path, label in self.pairs[start:stop]:
            for read in self.attempts.each({"": [path]}, lambda path: read_image(path, self.shape))[1]:
                pixels[len(labels)] = read.numpy()
                labels.append(label)
        return pixels[: len(labels)], np.array(labels, np.int64)


def shard_folder(found: FolderFiles, folder: Path, on_images: Callable[[int, int], None]) -> tuple[str, ...]:
    """Make shards of a folder's image files, which are read one by one; what was left out, in a few lines. `on_images` hears
    how many of how many are done."""
    series = {part: FileSeries(files, found) for part, files in zip(PARTS, (found.train, found.test), strict=True)}
    _write(folder, found.names, series, on_images, found.attempts)
    return found.left_out


def shard_images(data: DataSet, folder: Path, on_images: Callable[[int, int], None]) -> None:
    """Make shards of a set that can be read as a whole, or that lies in shards already."""
    series = {part: ImageSeries(images) for part, images in zip(PARTS, (data.train, data.test), strict=True)}
    _write(folder, data.class_names, series, on_images, Attempts(strict=True))


def _write(
    folder: Path,
    names: Sequence[str],
    series: Mapping[str, Series],
    on_images: Callable[[int, int], None],
    attempts: Attempts,
) -> None:
    """All shards into FOLDER.part, less those that are there, and at last under its own name."""
    if folder.exists():
        raise FaustnetError(f"{folder} exists already: choose another place for the shards.")
    part = folder.with_name(f"{folder.name}.part")
    if any(len(name.splitlines()) != 1 for name in names):
        raise FaustnetError("A class has a name that is empty or of several lines: give it one of a single line.")
    facts = {"names": list(names), "images": {name: images.digest() for name, images in series.items()}}
    try:
        part.mkdir(parents=True, exist_ok=True)
        with folder_lock(part):
            _begin(part, facts, attempts)
            for name in series:
                (part / name).mkdir(exist_ok=True)
            _write_shards(part, facts, series, on_images, attempts)
            with writing(part / CLASSES) as file:
                file.write("".join(f"{name}\n" for name in names).encode(errors="surrogateescape"))
            load_shards(part)  # to see that it is good
        part.rename(folder)
        (folder / BEGUN).unlink()
        sync_folder(folder.parent)
    except OSError as error:
        again = "make room for it, and the same command goes on, or choose another place"
        raise FaustnetError(f"{part} could not be written ({error.strerror or error}): {again}.") from None


def _write_shards(
    part: Path,
    facts: dict[str, Any],
    series: Mapping[str, Series],
    on_images: Callable[[int, int], None],
    attempts: Attempts,
) -> None:
    done, total = 0, sum(map(len, series.values()))
    for name, images in series.items():
        size = max(1, SHARD // images.row)
        for number, start in enumerate(range(0, len(images), size)):
            stop = min(start + size, len(images))
            labels_file = part / name / f"y-{number:05d}.npy"
            if not labels_file.exists():
                pixels, labels = images.read(start, stop)
                _save(labels_file.with_name(f"x-{number:05d}.npy"), pixels)
                _note(part, facts, attempts)
                _save(labels_file, labels)
            done += stop - start
            on_images(done, total)


def _begin(part: Path, facts: dict[str, Any], attempts: Attempts) -> None:
    """Note what is begun, or see that what is there was begun from the same images."""
    for partial in [path for path in part.rglob(".*") if is_partial(path)]:
        partial.unlink()
    if all(path.name == LOCK for path in part.iterdir()):
        _note(part, facts, attempts)
        return
    begun: Any = None
    with suppress(OSError, ValueError):
        begun = json.loads((part / BEGUN).read_text())
    if not isinstance(begun, dict) or begun.get("facts") != facts:
        raise FaustnetError(f"{part} was begun from other images: remove it, or choose another place for the shards.")
    attempts.failed[:] = dict.fromkeys([*attempts.failed, *begun["failed"]])


def _note(part: Path, facts: dict[str, Any], attempts: Attempts) -> None:
    with writing(part / BEGUN) as file:
        file.write(json.dumps({"facts": facts, "failed": attempts.failed}).encode())


def _save(path: Path, array: np.ndarray) -> None:
    with writing(path) as file:
        np.save(file, array, allow_pickle=False)
