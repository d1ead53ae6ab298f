"""Image files: finding them in a folder, and reading one."""

import mmap
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from faustnet.errors import FaustnetError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # no others: some start programs to be read
CLUTTER = {"Thumbs.db", "ehthumbs.db", "desktop.ini", "__MACOSX"}  # that systems leave in folders, beside hidden files
ENOUGH = 2  # times the wanted size: a photograph is decoded no larger where its format allows
LARGEST_FILE = 512 << 20  # bytes
LARGEST = 50_000_000  # pixels, which take up to 20 bytes each while they are read
LARGEST_JPEG = 89_000_000  # which is reduced while it is decoded
LARGEST_PPM = 4_000_000  # whose values are not bytes, and are read one by one
LARGEST_TEXT = 256 << 10  # bytes of a PPM file whose numbers are digits
SCAN = b"\xff\xda"  # the mark of one in a JPEG file
SCANS = 1_000  # passes over the whole picture that a JPEG file may take, each in a few bytes; ten are usual


def find_images(folder: Path) -> tuple[list[Path], list[Path]]:
    """The image files in a folder and in those below it, and the files there whose names are not those of images, both in
    order. Hidden files and clutter are neither. Links are followed, but a folder is entered once, and none that holds this
    one."""
    images: list[Path] = []
    others: list[Path] = []
    entered = {str(above) for above in folder.resolve().parents}
    for place, folders, names in os.walk(folder, onerror=_cannot_list, followlinks=True):
        real = os.path.realpath(place)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if not is_clutter(name))
        for path in (Path(place) / name for name in names if not is_clutter(name)):
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return sorted(images), sorted(others)


def image_files(given: Sequence[Path]) -> Iterator[Path]:
    """Files as they are named, and all images in the folders that are; a folder that holds none is left to be complained
    of by whoever reads it."""
    for path in given:
        yield from (find_images(path)[0] or [path]) if path.is_dir() else [path]


def is_clutter(name: str) -> bool:
    return name.startswith(".") or name in CLUTTER


def _cannot_list(error: OSError) -> None:
    raise FaustnetError(f"{error.filename} cannot be looked into ({error.strerror}): change its rights, or remove it.")


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image file; whatever goes wrong while it is open is told in one sentence."""
    try:
        if path.stat().st_size == 0 or not path.is_file():  # to open a pipe would be to wait for it
            raise ValueError("it is empty" if path.is_file() else "it is not a file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is odd in a file that can be read all the same
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                _check(image, path)
                yield image
    except FileNotFoundError:
        raise FaustnetError(f"There is no file {path}: check its name.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most, as_jpeg = LARGEST // 1_000_000, LARGEST_JPEG // 1_000_000
        raise FaustnetError(
            f"{path} has more than {most} million pixels, or {as_jpeg} million as a JPEG: make it smaller."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can fail in any way at all
        reason = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        raise FaustnetError(f"{path} is not an image that can be read ({reason}): remove or replace it.") from None


def _check(image: Image.Image, path: Path) -> None:
    """Refuse an image that would take far more memory or time than others of its size."""
    pixels, size = image.width * image.height, path.stat().st_size
    jpeg = image.format in ("JPEG", "MPO")
    if pixels > (LARGEST_JPEG if jpeg else LARGEST):
        raise Image.DecompressionBombError
    decoder = image.tile[0][0] if isinstance(image, ImageFile.ImageFile) and image.tile else ""
    slow = (decoder == "ppm" and pixels > LARGEST_PPM) or (decoder == "ppm_plain" and size > LARGEST_TEXT)
    if slow or size > LARGEST_FILE:
        raise ValueError("it is too large for its format")
    if jpeg and image.info.get("progressive") and _scans(path) > SCANS:
        raise ValueError(f"it is drawn in more than {SCANS:,} passes")


def _scans(path: Path) -> int:
    """How many there are in a JPEG file, or a few more: other data in it may look like the mark of one."""
    count = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(SCAN)
        while place >= 0 and count <= SCANS:
            count += 1
            place = content.find(SCAN, place + 1)
    return count


def read_image(path: Path, shape: tuple[int, int, int]) -> torch.Tensor:
    """An image file as bytes of this shape, (channels, height, width): turned upright, converted and resized as needed. Of
    several pictures it is the first; what is seen through is on white."""
    channels, height, width = shape
    if path.is_dir():
        raise FaustnetError(f"{path} holds no image: name another folder.")
    with opened(path) as image:
        side = ENOUGH * max(height, width)  # the image may lie on its side
        image.draft(None, (side, side))
        ImageOps.exif_transpose(image, in_place=True)
        plain = _plain(image)
        if plain.size != (width, height):
            plain = plain.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=ENOUGH)
        if plain.mode == "RGBA":
            plain = Image.alpha_composite(Image.new("RGBA", plain.size, "white"), plain)
        pixels = np.array(plain.convert("L" if channels == 1 else "RGB")).reshape(height, width, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _plain(image: Image.Image) -> Image.Image:
    """The same with grey values, colours, or colours that can be seen through, of 8 bits each."""
    if image.mode == "F":
        raise ValueError("its pixels are fractions of no known range")
    if image.mode.startswith("I"):  # conversion would cut off at 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65_535:
            raise ValueError("its pixels have more than 16 bits")
        return Image.fromarray((values // 256).astype(np.uint8))
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")
