"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn once by 20 people, in torchvision's layout."""

import hashlib
import math
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from faustnet.data.download import data_folder, fetch, remove_partials
from faustnet.data.image_file import image_pixels, open_image
from faustnet.data.images import DataSet, Images
from faustnet.data.npz import read_arrays
from faustnet.errors import FaustnetError, require
from faustnet.system.files import PARTIAL, writing
from faustnet.system.locks import folder_lock

FOLDER = "omniglot-py"
URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
SIDE = 28  # pixels per side of the images of the data set,
DRAWN_SIDE = 105  # and of the files
DRAWINGS = 20  # of every character, by different people
TEST_DRAWINGS = 2  # the last ones of every character
ANGLES = (90, 180, 270)  # degrees, anticlockwise
LARGEST = 64 << 20  # bytes of an unpacked archive, at most; the official ones have 4 million
MEMBER = re.compile(r"(images_[a-z]+)/([A-Z][\w()-]*)/(character\d\d)/(\d{4}_\d\d\.png)")  # a drawing in an archive


@dataclass(frozen=True)
class Part:
    """One of the two parts of Omniglot, which have different alphabets."""

    folder: str
    md5: str  # of the archive
    characters: int


BACKGROUND = Part("images_background", "68d2efa1b9178cc56df9314c21c6e718", 964)
EVALUATION = Part("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811", 659)


def omniglot(data_dir: Path | None, part: Part = BACKGROUND, *, rotations: bool = False, url: str = URL) -> DataSet:
    """Return a part of Omniglot, in DATA/omniglot-py/, as images of 28×28 pixels. The last two drawings of every character
    are test images. With `rotations`, the drawings of a character rotated by 90, 180 and 270 degrees are classes too.

    A class is named ALPHABET/CHARACTER, or ALPHABET/CHARACTER/rotDEGREES.
    """
    folder = data_folder(data_dir) / FOLDER
    if not (folder / part.folder).is_dir():
        _unpack(folder, part, url)
    characters = find_characters(folder / part.folder, part)
    pixels = _cached_pixels(folder, part, [path for paths in characters.values() for path in paths])
    names, drawings = tuple(characters), pixels.view(len(characters), DRAWINGS, 1, SIDE, SIDE)
    if rotations:
        names += tuple(f"{name}/rot{angle:03d}" for angle in ANGLES for name in characters)
        drawings = torch.cat([drawings.rot90(angle // 90, (3, 4)) for angle in (0, *ANGLES)])
    train, test = (_labelled(some) for some in drawings.split([DRAWINGS - TEST_DRAWINGS, TEST_DRAWINGS], dim=1))
    kind = {BACKGROUND.folder: "omniglot", EVALUATION.folder: "omniglot-evaluation"}[part.folder]
    return DataSet(f"{kind}-rotated" if rotations else kind, names, train, test)


def alphabet_of(class_name: str) -> str:
    """Return the alphabet of a character, the part of its class name before the first slash."""
    return class_name.split("/")[0]


def _labelled(drawings: torch.Tensor) -> Images:
    """Return drawings, (characters, n, c, h, w), as images with labels."""
    labels = torch.arange(len(drawings)).repeat_interleave(drawings.shape[1])
    return Images(drawings.flatten(0, 1).contiguous(), labels)


def find_characters(folder: Path, part: Part) -> dict[str, list[Path]]:
    """Return the files of every character in FOLDER/ALPHABET/CHARACTER/, by the names of the classes, both sorted."""
    found = {
        f"{path.parent.name}/{path.name}": sorted(path.glob("[0-9]*.png"))
        for path in sorted(folder.glob("*/character*"))
        if path.is_dir()
    }
    again = f"delete {folder} to download it again."
    require(len(found) == part.characters, f"{folder} must contain {part.characters} characters, got {len(found)}: {again}")
    for name, paths in found.items():
        require(len(paths) == DRAWINGS, f"{folder / name} must contain {DRAWINGS} drawings, got {len(paths)}: {again}")
    return found


def _cached_pixels(folder: Path, part: Part, paths: Sequence[Path]) -> torch.Tensor:
    """Read these files, or the file that they were written to when they were first read. → (n, 1, 28, 28)"""
    cache, shape = folder / f"{part.folder}-{SIDE}.npz", (len(paths), 1, SIDE, SIDE)
    stamp = _stamp(paths)
    if (stored := _stored(cache, stamp)) is not None and stored.shape == shape and stored.dtype == np.uint8:
        return torch.from_numpy(stored)
    read = torch.stack([_drawing(path) for path in paths])
    with suppress(OSError), writing(cache) as file:  # in a folder that cannot be written to, they are read every time
        np.savez(file, pixels=read.numpy(), files=np.array(stamp))
    return read


def _stored(cache: Path, stamp: str) -> np.ndarray | None:
    """Return the pixels in a file that was written from files with this stamp, or None."""
    with suppress(FaustnetError):  # of a damaged file
        if cache.is_file():
            pixels, files = read_arrays(cache, ("pixels", "files"))
            return pixels if str(files) == stamp else None
    return None


def _stamp(paths: Sequence[Path]) -> str:
    """Return a hash of the names, the sizes and the times of files."""
    found = hashlib.sha256()
    for path in paths:
        status = path.stat()
        found.update(f"{'/'.join(path.parts[-3:])} {status.st_size} {status.st_mtime_ns}\n".encode(errors="replace"))
    return found.hexdigest()


def _drawing(path: Path) -> torch.Tensor:
    """Read a drawing, black on white, reduced with anti-aliasing. → (1, 28, 28)"""
    with open_image(path) as image:
        require(
            image.size == (DRAWN_SIDE, DRAWN_SIDE),
            f"{path} must have {DRAWN_SIDE}×{DRAWN_SIDE} pixels, got {image.width}×{image.height}: replace it.",
        )
        return image_pixels(image, (1, SIDE, SIDE), str(path))


def _unpack(folder: Path, part: Part, url: str) -> None:
    """Extract the drawings of a part from its archive, which is downloaded if it does not exist. They appear when all have
    been read."""
    archive = folder / f"{part.folder}.zip"
    if not archive.exists():
        fetch([url + archive.name], part.md5, archive)
    try:
        require(archive.is_file(), f"{archive} is not a regular file: delete it and run the command again.")
        with archive.open("rb") as file:
            if hashlib.file_digest(file, "md5").hexdigest() != part.md5:
                raise zipfile.BadZipFile("its checksum is wrong")
        with folder_lock(folder, wait=math.inf):
            remove_partials(folder / part.folder)
            if not (folder / part.folder).is_dir():  # otherwise another process has unpacked it
                _extract(archive, folder, part)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise FaustnetError(f"{archive} could not be unpacked ({error}): delete it and run the command again.") from None


def _extract(archive: Path, folder: Path, part: Part) -> None:
    with (
        tempfile.TemporaryDirectory(prefix=f".{part.folder}.", suffix=PARTIAL, dir=folder) as partial,
        zipfile.ZipFile(archive) as source,
    ):
        drawings = [(member, named) for member in source.infolist() if (named := MEMBER.fullmatch(member.filename))]
        if sum(member.file_size for member, _ in drawings) > LARGEST:
            raise zipfile.BadZipFile(f"it expands to more than {LARGEST >> 20} MiB")
        for member, named in drawings:
            target = Path(partial, *named.groups())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read(member))
        if not (unpacked := Path(partial, part.folder)).is_dir():
            raise zipfile.BadZipFile(f"it has no folder {part.folder}")
        shutil.move(unpacked, folder / part.folder)
