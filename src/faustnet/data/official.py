"""Built-in data sets: where their files are stored and downloaded from, and what they must contain."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from faustnet.data.cifar import cifar100_format, read_batch, read_class_names
from faustnet.data.download import data_folder, fetch, unpack_folder
from faustnet.data.idx import read_idx
from faustnet.data.images import DataSet, Images
from faustnet.data.text import TextSettings, load_text_folder
from faustnet.data.token_file import load_tokens
from faustnet.errors import FaustnetError

DIGIT_NAMES = tuple("0123456789")
DIGITS_TEST = (  # one bit per digit: whether it is held out, stratified by class
    "000004883524104000064100934205001a00080100240028062c12001000940a009019120420f8a0028110a000080a8820441524494240a00a"
    "0000004004d80000818020004805c400104008a0100005404800301000020ec409000224840083a8013c20a6980a0000000b08400804a01848"
    "02024041c1008004404684376a810216004480004042a0a4180a5000840b8561c608108008004c80c02004068e00010882008100380803c008"
    "190000100e01008410a0210033282904c044c080680e0102830082008822a6402c24042108a860809081a00c02820242120138a41500"
)
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_MD5 = "c58f30108f718f92721af3b95e74349a"
CIFAR100_URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
CIFAR100_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
READERS = 2  # batches of CIFAR-10 read at once: one file is read while the pickle of another is interpreted
CIFAR100_IMAGES = {"train": 50_000, "test": 10_000}  # by file name


def digits(data_dir: Path | None) -> DataSet:
    """Return the 1,797 digits of 8×8 pixels that come with scikit-learn, a fifth of them held out for testing."""
    table = np.loadtxt(_digits_file(), delimiter=",", dtype=np.uint8)
    pixels = np.rint(table[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    everything = Images(torch.from_numpy(pixels), torch.from_numpy(table[:, 64]).long())
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(DIGITS_TEST), dtype=np.uint8), count=len(table))
    train, test = (torch.from_numpy(np.flatnonzero(bits == part)) for part in (0, 1))
    return DataSet("digits", DIGIT_NAMES, everything.take(train), everything.take(test))


def _digits_file() -> Path:
    """Return scikit-learn's file of 64 pixels from 0 to 16 and a label per line. scikit-learn is not imported: that takes
    longer than importing torch."""
    installed = find_spec("sklearn")
    if installed is None or installed.origin is None:
        raise FaustnetError("The data set digits is part of scikit-learn, which is not installed: pip install scikit-learn.")
    return Path(installed.origin).parent / "datasets" / "data" / "digits.csv.gz"


@dataclass(frozen=True)
class IdxSet:
    """Data set of 28×28 images in four IDX files, in the layout of torchvision: DATA/FOLDER/raw/, compressed or not."""

    name: str
    folder: str
    class_names: tuple[str, ...]
    mirrors: tuple[str, ...]
    md5: dict[str, str]

    def __call__(self, data_dir: Path | None) -> DataSet:
        raw = data_folder(data_dir) / self.folder / "raw"
        parts = []
        for prefix, count in (("train", 60_000), ("t10k", 10_000)):
            images = read_idx(self._file(raw, f"{prefix}-images-idx3-ubyte"), (count, 28, 28))
            path = self._file(raw, f"{prefix}-labels-idx1-ubyte")
            labels = read_idx(path, (count,))
            if labels.max() > 9:
                raise FaustnetError(
                    f"{path} has the label {labels.max()}, but labels must be at most 9: delete it to download it again."
                )
            parts.append(Images(torch.tensor(images).unsqueeze(1), torch.tensor(labels).long()))
        return DataSet(self.name, self.class_names, *parts)

    def _file(self, raw: Path, name: str) -> Path:
        for path in (raw / name, raw / f"{name}.gz"):
            if path.exists():
                return path
        fetch([mirror + path.name for mirror in self.mirrors], self.md5[path.name], path)
        return path


mnist = IdxSet(
    "mnist",
    "MNIST",
    DIGIT_NAMES,
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)

fashion_mnist = IdxSet(
    "fashion-mnist",
    "FashionMNIST",
    FASHION_NAMES,
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)


def cifar10(data_dir: Path | None, url: str = CIFAR10_URL, md5: str = CIFAR10_MD5) -> DataSet:
    """Return CIFAR-10: six batches of 10,000 colour images of 32×32 pixels, in DATA/cifar-10-batches-py/."""
    folder = data_folder(data_dir) / "cifar-10-batches-py"
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    if not all((folder / name).exists() for name in names):
        _fetch_folder(folder, [*names, "batches.meta"], folder.with_name("cifar-10-python.tar.gz"), url, md5)
    with ThreadPoolExecutor(READERS) as readers:
        batches = list(readers.map(read_batch, [folder / name for name in names]))
    pixels, labels = map(np.concatenate, zip(*batches, strict=True))
    images, numbers = torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(labels).long()
    train, test = (Images(images[part], numbers[part]) for part in (slice(50_000), slice(50_000, None)))
    return DataSet("cifar10", CIFAR10_NAMES, train, test)


def cifar100(data_dir: Path | None, url: str = CIFAR100_URL, md5: str = CIFAR100_MD5, labels: str = "fine") -> DataSet:
    """Return CIFAR-100: 60,000 colour images of 32×32 pixels, in DATA/cifar-100-python/. `labels` is "fine" for the 100
    classes, or "coarse" for their 20 groups."""
    folder = data_folder(data_dir) / "cifar-100-python"
    if not all((folder / name).exists() for name in (*CIFAR100_IMAGES, "meta")):
        _fetch_folder(folder, [*CIFAR100_IMAGES, "meta"], folder.with_name("cifar-100-python.tar.gz"), url, md5)
    class_names, parts = read_class_names(folder / "meta", labels), []
    for name, count in CIFAR100_IMAGES.items():
        pixels, numbers = read_batch(folder / name, cifar100_format(count, labels))
        parts.append(Images(torch.tensor(pixels).view(-1, 3, 32, 32), torch.from_numpy(numbers).long()))
    return DataSet("cifar100" if labels == "fine" else "cifar100-coarse", class_names, *parts)


cifar100_coarse = partial(cifar100, labels="coarse")


def _fetch_folder(folder: Path, names: Sequence[str], archive: Path, url: str, md5: str) -> None:
    """Extract these files of a folder from an archive, which is downloaded if it does not exist."""
    if not archive.exists():
        fetch([url], md5, archive)
    unpack_folder(archive, md5, folder, names)


@dataclass(frozen=True)
class TextFiles:
    """Data set of texts in TSV files with the columns label and text, in DATA/text/NAME/, or in a token file
    DATA/text/NAME.npz, for machines without the package tokenizers."""

    name: str
    counts: dict[str, int]  # texts by file name

    def __call__(self, data_dir: Path | None, settings: TextSettings) -> DataSet:
        folder = data_folder(data_dir) / "text" / self.name
        if not folder.exists() and (prepared := folder.with_suffix(".npz")).is_file():
            return replace(load_tokens(prepared, settings), name=self.name)
        for file in self.counts:
            if not (folder / file).is_file():
                raise FaustnetError(
                    f"{folder / file} does not exist, and {self.name} cannot be downloaded: save {', '.join(self.counts)} "
                    "there, with the columns label and text."
                )
        parts = {{"valid": "validation"}.get(Path(file).stem, Path(file).stem): folder / file for file in self.counts}
        data = load_text_folder(folder, parts, settings)
        read = [part for part in (data.train, data.validation, data.test) if part is not None]
        for part, (file, count) in zip(read, self.counts.items(), strict=True):
            if len(part) != count:
                raise FaustnetError(f"{folder / file} must have {count:,} texts, got {len(part):,}: replace it.")
        return data


sst2 = TextFiles("sst2", {"train.tsv": 6_920, "valid.tsv": 872, "test.tsv": 1_821})
trec = TextFiles("trec", {"train.tsv": 5_452, "test.tsv": 500})
