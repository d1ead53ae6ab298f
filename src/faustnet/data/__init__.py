"""Data sets as tensors: the well-known ones by name, the user's own by path."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from faustnet.data import official
from faustnet.data.files import image_files, read_image
from faustnet.data.images import Augmentation, DataSet, Images, ImageSource, Scaling
from faustnet.data.own import find_files, load_folder, load_npz
from faustnet.data.sharding import shard_folder, shard_images
from faustnet.data.shards import is_sharded, load_shards
from faustnet.data.stored import STREAM, StoredPixels
from faustnet.errors import FaustnetError, unknown

__all__ = [
    "DATASETS",
    "STREAM",
    "Augmentation",
    "DataSet",
    "ImageSource",
    "Images",
    "Scaling",
    "StoredPixels",
    "data_folder",
    "image_files",
    "load_data",
    "located",
    "make_shards",
    "read_image",
]

DATASETS: dict[str, tuple[Callable[[Path], DataSet], str]] = {
    "digits": (official.digits, "1,797 grey digits of 8×8, comes with scikit-learn, no download"),
    "mnist": (official.mnist, "70,000 grey digits of 28×28, downloads 11 MB"),
    "fashion-mnist": (official.fashion_mnist, "70,000 grey pictures of clothes of 28×28, downloads 30 MB"),
    "cifar10": (official.cifar10, "60,000 colour photographs of 32×32, downloads 170 MB"),
}


def data_folder(chosen: Path | None = None) -> Path:
    """Where data sets are kept: as chosen, or FAUSTNET_DATA, or a folder in the user's cache."""
    if chosen or os.environ.get("FAUSTNET_DATA"):
        return chosen or Path(os.environ["FAUSTNET_DATA"])
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - Path's fails without a home
    return Path(cache) / "faustnet"


def located(name: str) -> str:
    """The name of a data set as it is; the path of the user's own made absolute, so that it holds from anywhere."""
    return name if name in DATASETS or not Path(name).exists() else str(Path(name).resolve())


def load_data(
    name: str,
    data_dir: Path | None = None,
    image_size: int = 0,
    *,
    shape: tuple[int, int, int] | None = None,
    strict: bool = False,
    stream: str = "auto",
) -> DataSet:
    """A data set by its name, or the user's own by the path of a folder or an .npz file. `image_size`, `shape` and `strict`
    are for a folder of images, `stream` for one of shards."""
    if name in DATASETS:
        return DATASETS[name][0](data_folder(data_dir))
    path = Path(name)
    if path.is_dir() and is_sharded(path):
        return load_shards(path, stream)
    if path.is_dir():
        return load_folder(path, image_size, shape=shape, strict=strict)
    if path.is_file() and path.suffix == ".npz":
        return load_npz(path)
    if path.exists():
        raise FaustnetError(f"{path} is neither a folder of class folders nor an .npz file.")
    raise unknown("data set and no file", name, DATASETS, ", a folder of class folders or an .npz file")


def make_shards(
    name: str,
    folder: Path,
    data_dir: Path | None = None,
    image_size: int = 0,
    *,
    strict: bool = False,
    on_images: Callable[[int, int], None] = lambda done, total: None,
) -> DataSet:
    """The set that `load_data` would read as a new folder of shards; images of a folder are read one by one. What was begun
    and not completed is gone on with. `on_images` hears how many of how many images are done."""
    path, left_out = Path(name), tuple[str, ...]()
    if name not in DATASETS and path.is_dir() and not is_sharded(path):
        left_out = shard_folder(find_files(path, image_size, strict=strict), folder, on_images)
    else:
        shard_images(load_data(name, data_dir, stream="always"), folder, on_images)
    return replace(load_shards(folder), left_out=left_out)
