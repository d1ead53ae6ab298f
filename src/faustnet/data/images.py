"""Images or texts with labels, and the scaling of images. Pixels stay bytes until they are used."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from faustnet.data.augmentation import Augmentation
from faustnet.data.stored_pixels import StoredPixels
from faustnet.data.tokens import Tokeniser
from faustnet.errors import FaustnetError, require, unknown

DIGEST_IMAGES = 100  # images, at most, that the digest of a set is computed from
EXACT = 2**24 // 255**2  # number of squared bytes whose sum is exact in float32


def is_table(shape: Sequence[int]) -> bool:
    """Return whether samples of this shape are rows of a table, (columns, 1, 1) or (columns,)."""
    return len(shape) == 1 or tuple(shape[1:]) == (1, 1)


def described(shape: Sequence[int]) -> str:
    """Return what samples of this shape are, such as images of 1×28×28, or rows of 12 columns."""
    if is_table(shape):
        return f"rows of {shape[0]} column{'' if shape[0] == 1 else 's'}"
    return f"images of {'×'.join(map(str, shape))}"


@dataclass(frozen=True)
class Images:
    """Images and their labels. A table of numbers is represented as one-pixel images with one channel for each column, and
    texts as rows of token ids."""

    pixels: Tensor | StoredPixels  # (n, channels, height, width), bytes or float32; or (n, tokens), int16 or int32
    labels: Tensor  # (n,), int64

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width), or (tokens,)"""
        return tuple(self.pixels.shape[1:])

    @property
    def all_pixels(self) -> Tensor:
        """Pixels as a tensor, even if they are stored in files."""
        return self.pixels if isinstance(self.pixels, Tensor) else self.pixels.in_memory()

    def to(self, device: torch.device) -> "Images":
        """Move the images to a device. Pixels in files stay there if they do not fit."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def take(self, index: Tensor) -> "Images":
        """Return the images at these positions. (b,)"""
        index = index.to(self.labels.device)
        pixels = self.pixels[index] if isinstance(self.pixels, Tensor) else self.pixels.at(index)
        return Images(pixels, self.labels[index])

    def digest(self) -> str:
        """Return a hash of all labels, the shape, the type and a sample of the images."""
        found = hashlib.sha256(repr((self.shape, self.pixels.dtype)).encode())
        found.update(self.labels.cpu().numpy().tobytes())
        some = self.take(torch.arange(0, len(self), -(-len(self) // DIGEST_IMAGES)))
        found.update(some.all_pixels.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def split(self, held_out: float, seed: int) -> tuple["Images", "Images"]:
        """Split into two stratified parts. `held_out` is the size of the second part: a fraction below 1, or a number."""
        from sklearn.model_selection import train_test_split  # as slow to import as torch

        size = int(held_out) if held_out >= 1 else held_out
        labels = self.labels.cpu().numpy()
        try:
            kept, held = train_test_split(range(len(self)), test_size=size, stratify=labels, random_state=seed)
        except ValueError as error:
            raise FaustnetError(
                f"training.validation={held_out:g} is not possible for {len(self)} training images ({error}): "
                "add images, or use another value."
            ) from None
        return self.take(torch.tensor(sorted(kept))), self.take(torch.tensor(sorted(held)))


@dataclass(frozen=True)
class DataSet:
    """Training and test images, or texts, of a data set."""

    name: str
    class_names: tuple[str, ...]
    train: Images
    test: Images
    left_out: tuple[str, ...] = field(default=(), kw_only=True)  # messages about the user's files that were not read
    validation: Images | None = field(default=None, kw_only=True)  # if the data set has validation texts of its own
    tokeniser: Tokeniser | None = field(default=None, kw_only=True)  # of texts
    paths: Mapping[str, Sequence[Path]] | None = field(default=None, kw_only=True)  # files of "train" and "test" images
    columns: tuple[str, ...] = field(default=(), kw_only=True)  # names of the columns of a pandas table

    def only(self, class_names: Sequence[str]) -> "DataSet":
        """Return the data of some of the classes, which keep their order."""
        for name in class_names:
            if name not in self.class_names:
                raise unknown("class", name, self.class_names)
        kept = tuple(name for name in self.class_names if name in set(class_names))
        numbers = torch.tensor([kept.index(name) if name in kept else -1 for name in self.class_names])
        where = [(numbers[part.labels.cpu()] >= 0).nonzero()[:, 0] for part in (self.train, self.test)]

        def taken(part: Images, index: Tensor) -> Images:
            some = part.take(index)
            return replace(some, labels=numbers.to(some.labels.device)[some.labels])

        train, test = taken(self.train, where[0]), taken(self.test, where[1])
        validation = self.validation
        if validation is not None:
            validation = taken(validation, (numbers[validation.labels.cpu()] >= 0).nonzero()[:, 0])
        paths = self.paths and {
            part: [self.paths[part][place] for place in index.tolist()]
            for part, index in zip(("train", "test"), where, strict=True)
        }
        return replace(self, class_names=kept, train=train, test=test, validation=validation, paths=paths)

    def with_classes(
        self, class_names: tuple[str, ...], renamed: Mapping[str, str] | None = None, removed: Collection[str] = ()
    ) -> "DataSet":
        """Return the data with the labels of a model that has these classes. The data need not contain all of them.

        `renamed` are classes of the model by other names that they may have in the data. Images of `removed` classes are
        left out.
        """
        places = {name: number for number, name in enumerate(class_names)}
        places = {old: places[new] for old, new in (renamed or {}).items()} | places
        left_out = set(removed) - set(places)
        if gone := [name for name in self.class_names if name in left_out]:
            return self._without(gone).with_classes(class_names, renamed)
        if others := sorted(set(self.class_names) - set(places)):
            known = ", ".join(class_names)
            raise FaustnetError(
                f"{self.name} must have only classes of the model, which are {known}, got {', '.join(others)}."
            )
        numbers = torch.tensor([places[name] for name in self.class_names])

        def renumbered(part: Images) -> Images:
            return Images(part.pixels, numbers[part.labels.cpu()])

        validation = None if self.validation is None else renumbered(self.validation)
        train, test = renumbered(self.train), renumbered(self.test)
        return replace(self, class_names=class_names, train=train, test=test, validation=validation)

    def _without(self, gone: Sequence[str]) -> "DataSet":
        """Return the data without the classes that were removed from a model."""
        found = self.only([name for name in self.class_names if name not in set(gone)])
        left, named = len(found.test), ", ".join(map(repr, gone))
        require(left > 0, f"{self.name} has no test image of the model's classes, but only of removed ones: {named}.")
        line = f"{len(self.test) - left} test images of classes that were removed from the model: {named}"
        return replace(found, left_out=(*self.left_out, line))


@dataclass(frozen=True)
class Scaling:
    """Map pixels to numbers with mean 0 and variance 1 in each channel."""

    mean: Tensor  # (channels, 1, 1), or (columns,) of a table
    deviation: Tensor  # of the same shape

    @classmethod
    def of(cls, images: Images) -> "Scaling":
        """Compute mean and standard deviation of images, or of the columns of a table, in double precision."""
        device = torch.device("cpu") if images.pixels.device.type == "mps" else images.pixels.device  # MPS has no float64
        total = torch.zeros(images.shape[0], dtype=torch.float64, device=device)
        squares = total.clone()
        for chunk in images.pixels.split(1024):  # in float64 a whole set would need eight times its size
            sums = _sums((chunk if chunk.dim() == 4 else chunk[:, :, None, None]).to(device))
            total += sums[0]
            squares += sums[1]
        count = len(images) * math.prod(images.shape[1:])
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        deviation[deviation < 1e-6] = 1.0  # a constant channel becomes zero
        own = (-1, *(1 for _ in images.shape[1:]))
        return cls(mean.float().view(own), deviation.float().view(own))

    def to(self, kind: torch.device | torch.dtype) -> "Scaling":
        """Move to a device, or convert to a type."""
        return Scaling(self.mean.to(kind), self.deviation.to(kind))

    def __call__(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean).div_(self.deviation)


def _sums(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of each channel's values and of their squares in double precision. (n, c, h, w) → (c,), (c,)

    Short rows of bytes are summed in single precision first, which is exact for such integers, and much faster.
    """
    if pixels.dtype == torch.uint8 and pixels.shape[3] <= EXACT:
        values = pixels.float()
        rows = values.sum(dim=3), values.square_().sum(dim=3)
        return rows[0].double().sum(dim=(0, 2)), rows[1].double().sum(dim=(0, 2))
    exact = pixels.double()
    return exact.sum(dim=(0, 2, 3)), exact.square().sum(dim=(0, 2, 3))


@dataclass(frozen=True)
class ImageSource:
    """Source of scaled and augmented images, or of texts, for a method."""

    images: Images
    scaling: Scaling | None  # None for texts
    class_names: Sequence[str]
    augmentation: Augmentation = field(default_factory=Augmentation)

    @property
    def labels(self) -> Tensor:
        return self.images.labels

    def plain(self, index: Tensor) -> Tensor:
        """Return scaled images, (b,) → (b, c, h, w), or token ids, (b,) → (b, T)."""
        return self._scaled(self.images.pixels[index])

    def augmented(self, index: Tensor) -> Tensor:
        """Return scaled and augmented images, (b,) → (b, c, h, w), or token ids, (b,) → (b, T)."""
        if isinstance(self.images.pixels, Tensor):
            return self.augmented_of(self.images.pixels, index)
        return self.augmented_of(self.images.pixels[index], torch.arange(len(index), device=index.device))

    def augmented_of(self, pixels: Tensor, index: Tensor) -> Tensor:
        """Return scaled and augmented images of other pixels than those of the source. (n, c, h, w), (b,) → (b, c, h, w)"""
        if not self.augmentation:
            return self._scaled(pixels[index])
        picked = self._scaled(self.augmentation.pick(pixels, index))
        return self.augmentation.hide(self.augmentation.warp(picked))

    def _scaled(self, pixels: Tensor) -> Tensor:
        return pixels.long() if self.scaling is None else self.scaling(pixels)
