"""Data sets as tensors: the well-known ones by name, the user's own by path."""

import os
from collections.abc import Callable
from pathlib import Path

from faustnet.data import official
from faustnet.data.files import image_files, read_image
from faustnet.data.images import Augmentation, DataSet, Images, ImageSource, Scaling
from faustnet.data.own import load_folder, load_npz
from faustnet.errors import FaustnetError, unknown

__all__ = [
    "DATASETS",
    "Augmentation",
    "DataSet",
    "ImageSource",
    "Images",
    "Scaling",
    "data_folder",
    "image_files",
    "load_data",
    "located",
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
) -> DataSet:
    """A data set by its name, or the user's own by the path of a folder or an .npz file. `image_size`, `shape` and `strict`
    are for a folder."""
    if name in DATASETS:
        return DATASETS[name][0](data_folder(data_dir))
    path = Path(name)
    if path.is_dir():
        return load_folder(path, image_size, shape=shape, strict=strict)
    if path.is_file() and path.suffix == ".npz":
        return load_npz(path)
    if path.exists():
        raise FaustnetError(f"{path} is neither a folder of class folders nor an .npz file.")
    raise unknown("data set and no file", name, DATASETS, ", a folder of class folders or an .npz file")
