"""The user's own data: a folder of class folders of images, or an .npz file."""

import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from faustnet.data.images import DataSet, Images
from faustnet.errors import FaustnetError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"}
HELD_OUT = 0.2  # of a folder that is not divided into train and test
KEPT_SIZE = 64  # images that all have one size up to this keep it
COMMON_SIZE = 32  # others are brought to this
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image file; whatever goes wrong while it is open is told in one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                yield image
    except FileNotFoundError:
        raise FaustnetError(f"There is no file {path}: check its name.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise FaustnetError(f"{path} has more than {most} million pixels: make it smaller.") from None
    except (OSError, SyntaxError, ValueError) as error:
        reason = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        raise FaustnetError(f"{path} is not an image that can be read ({reason}): remove or replace it.") from None


def read_image(path: Path, shape: tuple[int, int, int]) -> torch.Tensor:
    """An image file as bytes of this shape, (channels, height, width): converted and resized as needed."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise FaustnetError(f"This model knows rows of {channels} numbers, not images: {path} does not fit it.")
    with opened(path) as image:
        converted = _in_bytes(ImageOps.exif_transpose(image)).convert("L" if channels == 1 else "RGB")
        if converted.size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        pixels = np.array(converted).reshape(height, width, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def image_files(paths: Sequence[Path]) -> list[Path]:
    """Files as they are, and of a folder all images in it, in order of their names."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise FaustnetError(f"{path} holds no image: add some, or name another folder.")
        found += inside
    return found


def _in_bytes(image: Image.Image) -> Image.Image:
    """Grey values of 16 bits brought to 8, which conversion would cut off at 255."""
    if image.mode == "F":
        raise ValueError("its pixels are fractions of no known range")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65_535:
        raise ValueError("its pixels have more than 16 bits")
    return Image.fromarray((values // 256).astype(np.uint8))


def load_folder(folder: Path, image_size: int = 0) -> DataSet:
    """FOLDER/CLASS/image files, of which a fifth is held out; or FOLDER/train/CLASS/… and FOLDER/test/CLASS/…."""
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    train_files = _class_files(folder / "train" if divided else folder)
    names = tuple(train_files)
    test_files = _class_files(folder / "test") if divided else {}
    if unknown := sorted(set(test_files) - set(names)):
        raise FaustnetError(f"{folder} has test images of {unknown[0]!r} but none to train on: add some.")
    shape = _common_shape([path for paths in (*train_files.values(), *test_files.values()) for path in paths], image_size)
    if not divided:
        train_files, test_files = _divided(train_files)
        if not any(test_files.values()):
            raise FaustnetError(f"{folder} has too few images to hold some out: add more, or make folders train and test.")
    return DataSet(folder.name, names, _read_all(train_files, names, shape), _read_all(test_files, names, shape))


def _divided(files: dict[str, list[Path]]) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """About a fifth of each class for testing, by the files' names: where a file goes does not change when others come
    or go, so no model is ever tested on what it was trained on. Every class keeps an image for training."""
    train, test = {}, {}
    for name, paths in files.items():
        held = {path for path in paths if zlib.crc32(f"{name}/{path.name}".encode(errors="replace")) < HELD_OUT * 2**32}
        if len(held) == len(paths):
            held.discard(paths[0])
        train[name] = [path for path in paths if path not in held]
        test[name] = [path for path in paths if path in held]
    return train, test


def _class_files(folder: Path) -> dict[str, list[Path]]:
    """Every class's image files, both in order of their names."""
    found = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            found[entry.name] = sorted(path for path in entry.iterdir() if path.suffix.lower() in SUFFIXES)
    if empty := [name for name, paths in found.items() if not paths]:
        raise FaustnetError(f"{folder / empty[0]} holds no image: add some, or remove the folder.")
    if len(found) < 2:
        raise FaustnetError(f"{folder} needs a folder of images for each of two classes or more; it holds {len(found)}.")
    return found


def _common_shape(paths: Sequence[Path], image_size: int) -> tuple[int, int, int]:
    """Grey only if every image is; the images' own size if they share one that is small."""
    modes: Counter[str] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    for path in paths:
        with opened(path) as image:  # reads no more than the header
            modes[image.mode] += 1
            sizes[image.size] += 1
    channels = 1 if set(modes) <= GREY_MODES else 3
    if image_size:
        return channels, image_size, image_size
    width, height = next(iter(sizes))
    if len(sizes) == 1 and max(width, height) <= KEPT_SIZE:
        return channels, height, width
    return channels, COMMON_SIZE, COMMON_SIZE


def _read_all(files: dict[str, list[Path]], names: Sequence[str], shape: tuple[int, int, int]) -> Images:
    numbered = [(path, names.index(name)) for name, paths in files.items() for path in paths]
    pixels = torch.stack([read_image(path, shape) for path, _ in numbered])
    return Images(pixels, torch.tensor([number for _, number in numbered]))


def load_npz(path: Path) -> DataSet:
    """x_train, y_train, x_test, y_test: images (n, h, w), (n, h, w, c) or (n, c, h, w), or tables (n, columns)."""
    x_train, y_train, x_test, y_test = _arrays(path)
    names = np.unique(y_train)
    if len(names) < 2:
        raise FaustnetError(f"y_train in {path} names {len(names)} class: give images of two classes or more.")
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
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = [name for name in ARRAYS if name not in file]
            if not missing:
                return [file[name] for name in ARRAYS]
    except Exception as error:  # a damaged archive can fail in any way at all
        raise FaustnetError(f"{path} does not hold plain arrays ({error}): write it with numpy.savez.") from None
    raise FaustnetError(f"{path} has no array {missing[0]!r}: it needs {', '.join(ARRAYS)}.")


def _pixels(array: np.ndarray, where: str) -> torch.Tensor:
    """Any usual layout as (n, channels, height, width): whole numbers from 0 to 255 as bytes, others as float32."""
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3, 4) or not array.size:
        raise FaustnetError(f"{where} has shape {array.shape} and type {array.dtype}: give images or rows of numbers.")
    if array.ndim == 2:
        array = array[:, :, None, None]
    elif array.ndim == 3:
        array = array[:, None]
    elif array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    is_bytes = array.dtype.kind in "bui" and array.min() >= 0 and array.max() <= 255
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
        array = np.ascontiguousarray(array, np.uint8 if is_bytes else np.float32)
    if not np.isfinite(array).all():
        raise FaustnetError(f"{where} holds NaN, infinity or numbers as large: replace those values.")
    return torch.from_numpy(array)
