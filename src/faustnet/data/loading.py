"""Load data sets: built-in ones by name, the user's own by path."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from faustnet.data import official
from faustnet.data.image_folder import find_class_files, load_folder
from faustnet.data.images import DataSet
from faustnet.data.memory import MEMORY
from faustnet.data.npz import load_npz
from faustnet.data.omniglot import EVALUATION, omniglot
from faustnet.data.shard_reader import is_sharded, load_shards
from faustnet.data.shard_writer import shard_folder, shard_images
from faustnet.data.text import SUFFIXES, TextSettings, find_parts, load_text_file, load_text_folder
from faustnet.data.token_file import is_token_file, load_tokens
from faustnet.errors import FaustnetError, require, unknown

IMAGE_SETS: dict[str, tuple[Callable[[Path | None], DataSet], str]] = {
    "digits": (official.digits, "1,797 grey-scale images of digits, 8×8 pixels; included in scikit-learn, no download"),
    "mnist": (official.mnist, "70,000 grey-scale images of digits, 28×28 pixels; 11 MB to download"),
    "fashion-mnist": (official.fashion_mnist, "70,000 grey-scale images of clothes, 28×28 pixels; 30 MB to download"),
    "cifar10": (official.cifar10, "60,000 colour photographs in 10 classes, 32×32 pixels; 170 MB to download"),
    "cifar100": (official.cifar100, "60,000 colour photographs in 100 classes, 32×32 pixels; 169 MB to download"),
    "cifar100-coarse": (official.cifar100_coarse, "the images of cifar100 in 20 groups of 5 classes; the same download"),
    "omniglot": (omniglot, "19,280 drawings of 964 characters of 30 alphabets, 28×28 pixels; 9 MB to download"),
    "omniglot-rotated": (
        partial(omniglot, rotations=True),
        "the drawings of omniglot and their rotations by 90, 180 and 270 degrees, in 3,856 classes; the same download",
    ),
    "omniglot-evaluation": (
        partial(omniglot, part=EVALUATION),
        "13,180 drawings of 659 characters of 20 other alphabets, 28×28 pixels; 6 MB to download",
    ),
}
TEXT_SETS: dict[str, tuple[Callable[[Path | None, TextSettings], DataSet], str]] = {
    "sst2": (official.sst2, "9,613 sentences of film reviews, positive or negative; not downloaded, see docs/text.md"),
    "trec": (official.trec, "5,952 questions in 6 classes; not downloaded, see docs/text.md"),
}
DATASETS = {name: about for sets in (IMAGE_SETS, TEXT_SETS) for name, (_, about) in sets.items()}


def absolute_name(name: str) -> str:
    """Return the name of a built-in data set unchanged, and the path of the user's own as an absolute path."""
    return name if name in DATASETS or name == MEMORY or not Path(name).exists() else str(Path(name).resolve())


def load_data(
    name: str,
    data_dir: Path | None = None,
    image_size: int = 0,
    *,
    shape: tuple[int, int, int] | None = None,
    strict: bool = False,
    stream: str = "auto",
    text: TextSettings | None = None,
) -> DataSet:
    """Load a built-in data set by its name, or the user's own by the path of a folder or a file. `image_size`, `shape` and
    `strict` apply to folders of images, `stream` to folders of shards, `text` to texts."""
    text = text or TextSettings()
    if name == MEMORY:
        raise FaustnetError(
            "The data of this run were in memory, and are not stored in the run folder: give a data set with --dataset, or "
            f"in Python the arguments data and test of faustnet.train. For a folder of this name, give ./{MEMORY}."
        )
    if name in IMAGE_SETS:
        return IMAGE_SETS[name][0](data_dir)
    if name in TEXT_SETS:
        return TEXT_SETS[name][0](data_dir, text)
    path = Path(name)
    if path.is_dir() and is_sharded(path):
        return load_shards(path, stream)
    if path.is_dir() and (parts := find_parts(path)):
        return load_text_folder(path, parts, text)
    if path.is_dir():
        return load_folder(path, image_size, shape=shape, strict=strict)
    if path.is_file() and path.suffix == ".npz" and is_token_file(path):
        return load_tokens(path, text)
    if path.is_file() and path.suffix == ".npz":
        return load_npz(path)
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return load_text_file(path, text)
    if path.exists():
        raise FaustnetError(
            "A data set must be a folder with one folder per class, a folder of shards, an .npz file, a file of texts "
            f"({', '.join(SUFFIXES)}) or a folder of those, got {path}."
        )
    raise unknown("data set or file", name, DATASETS, ", or the path of a folder or a file")


def make_shards(
    name: str,
    folder: Path,
    data_dir: Path | None = None,
    image_size: int = 0,
    *,
    strict: bool = False,
    on_images: Callable[[int, int], None] = lambda done, total: None,
) -> DataSet:
    """Write a data set, named as in `load_data`, as a new folder of shards, and load it from there. Image files are read one
    by one. An interrupted attempt is continued. `on_images` is called with the numbers of written and of all images."""
    path, left_out = Path(name), tuple[str, ...]()
    if name not in DATASETS and path.is_dir() and not is_sharded(path) and not find_parts(path):
        left_out = shard_folder(find_class_files(path, image_size, strict=strict), folder, on_images)
    else:
        data = load_data(name, data_dir, stream="always")
        require(data.tokeniser is None, f"Shards are for images, but {name} has texts: use 'faustnet tokens'.")
        shard_images(data, folder, on_images)
    return replace(load_shards(folder), left_out=left_out)
