"""Find image files in a folder, and read an image file."""

import mmap
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from faustnet.errors import FaustnetError, require

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # Pillow starts other programs to read some of the others
SYSTEM_FILES = {"Thumbs.db", "ehthumbs.db", "desktop.ini", "__MACOSX"}  # left in folders by operating systems
DRAFT_FACTOR = 2  # a JPEG file is decoded at no more than about this multiple of the requested size
LARGEST_FILE = 512 << 20  # bytes
LARGEST = 50_000_000  # pixels, each of which needs up to 20 bytes while the image is read
LARGEST_JPEG = 89_000_000  # pixels; JPEG files are reduced while they are decoded
LARGEST_PPM = 4_000_000  # pixels of a PPM file whose values are not bytes, and are decoded one by one
LARGEST_TEXT = 256 << 10  # bytes of a PPM file whose values are decimal text
SCAN = b"\xff\xda"  # marker of a scan in a JPEG file
SCANS = 1_000  # in a progressive JPEG file, at most; ten are usual, and each takes a pass over the whole image


def find_images(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the image files in a folder and its subfolders, and the other files, both sorted. Hidden files and files of the
    operating system are ignored. Links are followed, but no folder is visited twice, nor any parent of `folder`."""
    images: list[Path] = []
    others: list[Path] = []
    entered = {str(above) for above in folder.resolve().parents}
    for place, folders, names in os.walk(folder, onerror=_cannot_list, followlinks=True):
        real = os.path.realpath(place)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        for path in (Path(place) / name for name in names if not is_ignored(name)):
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return sorted(images), sorted(others)


def image_files(given: Sequence[Path]) -> Iterator[Path]:
    """Iterate over the given files, and over the images in the given folders. A folder without images is returned itself, so
    that `read_image` raises an error that names it."""
    for path in given:
        yield from (find_images(path)[0] or [path]) if path.is_dir() else [path]


def is_ignored(name: str) -> bool:
    """Return whether a file or folder is hidden or belongs to the operating system."""
    return name.startswith(".") or name in SYSTEM_FILES


def _cannot_list(error: OSError) -> None:
    raise FaustnetError(f"{error.filename} cannot be listed ({error.strerror}): change its permissions, or remove it.")


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image file. Any error inside the block is raised as a FaustnetError that names the file."""
    try:
        if path.stat().st_size == 0 or not path.is_file():  # opening a pipe would block
            raise ValueError("it is empty" if path.is_file() else "it is not a regular file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about oddities of a file that can be read
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                _check_cost(image, path)
                yield image
    except FileNotFoundError:
        raise FaustnetError(f"{path} does not exist: check its name.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most, as_jpeg = LARGEST // 1_000_000, LARGEST_JPEG // 1_000_000
        raise FaustnetError(
            f"{path} has too many pixels (at most {most} million, or {as_jpeg} million for JPEG): make it smaller."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise any exception
        reason = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        raise FaustnetError(f"{path} is not a readable image ({reason}): remove or replace it.") from None


def _check_cost(image: Image.Image, path: Path) -> None:
    """Refuse an image that needs far more memory or time than its size suggests."""
    pixels, size = image.width * image.height, path.stat().st_size
    jpeg = image.format in ("JPEG", "MPO")
    if pixels > (LARGEST_JPEG if jpeg else LARGEST):
        raise Image.DecompressionBombError
    decoder = image.tile[0][0] if isinstance(image, ImageFile.ImageFile) and image.tile else ""
    slow = (decoder == "ppm" and pixels > LARGEST_PPM) or (decoder == "ppm_plain" and size > LARGEST_TEXT)
    if slow or size > LARGEST_FILE:
        raise ValueError("it is too large for its format")
    if jpeg and image.info.get("progressive") and _scans(path) > SCANS:
        raise ValueError(f"it has more than {SCANS:,} scans")


def _scans(path: Path) -> int:
    """Count the scans of a JPEG file. The result may be too large, because other data can look like the marker of a scan."""
    count = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(SCAN)
        while place >= 0 and count <= SCANS:
            count += 1
            place = content.find(SCAN, place + 1)
    return count


def read_image(path: Path, shape: tuple[int, int, int]) -> torch.Tensor:
    """Read an image file as bytes of this shape, (channels, height, width): rotated as its EXIF data say, converted and
    resized as needed. Of several frames the first is read; transparent pixels are shown on white."""
    channels, height, width = shape
    require(not path.is_dir(), f"{path} contains no image: choose another folder.")
    with open_image(path) as image:
        side = DRAFT_FACTOR * max(height, width)  # the EXIF rotation may swap height and width
        image.draft(None, (side, side))
        ImageOps.exif_transpose(image, in_place=True)
        return _converted(image, channels, height, width)


def image_pixels(image: Image.Image, shape: tuple[int, int, int], name: str) -> torch.Tensor:
    """Convert an image of Pillow to bytes of this shape, as `read_image` does for a file. `name` is for errors."""
    try:
        upright = ImageOps.exif_transpose(image)
        return _converted(upright, *shape)
    except (OSError, ValueError, SyntaxError) as error:  # a file that Pillow reads only now may be damaged
        raise FaustnetError(f"{name} cannot be used ({error}): convert it to 8 bits, or replace it.") from None


def _converted(image: Image.Image, channels: int, height: int, width: int) -> torch.Tensor:
    """Convert and resize an image. → (channels, height, width), bytes"""
    converted = _to_8_bits(image)
    if converted.size != (width, height):
        converted = converted.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=DRAFT_FACTOR)
    if converted.mode == "RGBA":
        converted = Image.alpha_composite(Image.new("RGBA", converted.size, "white"), converted)
    pixels = np.array(converted.convert("L" if channels == 1 else "RGB")).reshape(height, width, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Convert an image to grey, RGB or RGBA with 8 bits for each channel."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range, and not 8-bit values from 0 to 255")
    if image.mode.startswith("I"):  # Pillow would clip at 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65_535:
            raise ValueError("its pixels have more than 16 bits")
        return Image.fromarray((values // 256).astype(np.uint8))
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")
