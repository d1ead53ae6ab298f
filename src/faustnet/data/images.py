"""Data sets as tensors on the device, or in files: bytes until the moment they are used."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.data.stored import StoredPixels
from faustnet.errors import FaustnetError

SAMPLED = 100  # images of a set that its digest depends on
EXACT = 2**24 // 255**2  # squares of bytes whose sum a float32 holds exactly


@dataclass(frozen=True)
class Images:
    """Images and their labels. A table of numbers is a set of one-pixel images with a channel for each column."""

    pixels: Tensor | StoredPixels  # (n, channels, height, width), bytes or float32
    labels: Tensor  # (n,), int64

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)"""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @property
    def all_pixels(self) -> Tensor:
        """As a tensor, wherever they lie."""
        return self.pixels if isinstance(self.pixels, Tensor) else self.pixels.in_memory()

    def to(self, device: torch.device) -> "Images":
        return Images(self.pixels.to(device), self.labels.to(device))

    def take(self, index: Tensor) -> "Images":
        index = index.to(self.labels.device)
        pixels = self.pixels[index] if isinstance(self.pixels, Tensor) else self.pixels.at(index)
        return Images(pixels, self.labels[index])

    def digest(self) -> str:
        """Another one if the images are others, as far as labels, shape, type and a sample of them tell."""
        found = hashlib.sha256(repr((self.shape, self.pixels.dtype)).encode())
        found.update(self.labels.cpu().numpy().tobytes())
        some = self.take(torch.arange(0, len(self), -(-len(self) // SAMPLED)))
        found.update(some.all_pixels.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def split(self, held_out: float, seed: int) -> tuple["Images", "Images"]:
        """Two parts with the same share of every class; the second is a fraction, or from 1 on a number, of images."""
        from sklearn.model_selection import train_test_split  # as slow to import as torch, so only where it is used

        size = int(held_out) if held_out >= 1 else held_out
        labels = self.labels.cpu().numpy()
        try:
            kept, held = train_test_split(range(len(self)), test_size=size, stratify=labels, random_state=seed)
        except ValueError as error:
            raise FaustnetError(
                f"{len(self)} images cannot be split with {size} of them held out ({error}): "
                "give every class at least two images, or hold out another share."
            ) from None
        return self.take(torch.tensor(sorted(kept))), self.take(torch.tensor(sorted(held)))


@dataclass(frozen=True)
class DataSet:
    name: str
    class_names: tuple[str, ...]
    train: Images
    test: Images
    left_out: tuple[str, ...] = field(default=(), kw_only=True)  # what of the user's files, and why, in a few lines


@dataclass(frozen=True)
class Scaling:
    """Bytes to numbers with mean 0 and variance 1 in each channel."""

    mean: Tensor  # (channels, 1, 1)
    deviation: Tensor  # (channels, 1, 1)

    @classmethod
    def of(cls, images: Images) -> "Scaling":
        """Measured on these images, in double precision."""
        device = torch.device("cpu") if images.pixels.device.type == "mps" else images.pixels.device  # it has no double
        total = torch.zeros(images.shape[0], dtype=torch.float64, device=device)
        squares = total.clone()
        for chunk in images.pixels.split(1024):  # a whole set in float64 would be eight times its bytes
            sums = _sums(chunk.to(device))
            total += sums[0]
            squares += sums[1]
        count = len(images) * images.shape[1] * images.shape[2]
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        deviation[deviation < 1e-6] = 1.0  # a channel that never changes stays at zero
        return cls(mean.float().view(-1, 1, 1), deviation.float().view(-1, 1, 1))

    def to(self, device: torch.device) -> "Scaling":
        return Scaling(self.mean.to(device), self.deviation.to(device))

    def __call__(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean).div_(self.deviation)


def _sums(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel's values and of their squares, in double precision. (n, c, h, w) → (c,), (c,)

    Short rows of bytes are summed in single precision first, which is as exact for such whole numbers, and far faster.
    """
    if pixels.dtype == torch.uint8 and pixels.shape[3] <= EXACT:
        values = pixels.float()
        rows = values.sum(dim=3), values.square_().sum(dim=3)
        return rows[0].double().sum(dim=(0, 2)), rows[1].double().sum(dim=(0, 2))
    exact = pixels.double()
    return exact.sum(dim=(0, 2, 3)), exact.square().sum(dim=(0, 2, 3))


@dataclass(frozen=True)
class Augmentation:
    """Random mirror images, random shifts by up to `crop` pixels with what is uncovered filled by reflection, and a random
    square of `cutout` pixels' side that is hidden, which may stick out at the edges. Between the two, images are
    turned by up to `rotation` degrees either way and each side is made longer or shorter by up to the share `zoom` of it,
    with what is uncovered filled by the values at the border."""

    flip: bool = False
    crop: int = 0
    cutout: int = 0
    rotation: float = 0.0
    zoom: float = 0.0

    def __bool__(self) -> bool:
        return self.flip or self.crop > 0 or self.cutout > 0 or self.rotation > 0 or self.zoom > 0

    def check(self, shape: tuple[int, int, int]) -> None:
        smallest = min(shape[1:])
        if self.crop >= smallest:
            raise FaustnetError(
                f"A crop of {self.crop} does not fit images of {shape[1]}×{shape[2]}: stay below {smallest}."
            )
        if self.cutout > smallest:
            raise FaustnetError(
                f"A cut-out of {self.cutout} would hide all of an image of {shape[1]}×{shape[2]}: use {smallest} at most."
            )

    def pick(self, pixels: Tensor, index: Tensor) -> Tensor:
        """The images at `index`, distorted: one gather does the choosing, the shift and the flip. → (b, c, h, w)"""
        height, width = pixels.shape[2:]
        rows = self._positions(len(index), height, index.device, flip=False)
        columns = self._positions(len(index), width, index.device, flip=self.flip)
        channels = torch.arange(pixels.shape[1], device=index.device)
        return pixels[
            index[:, None, None, None], channels[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]

    def warp(self, images: Tensor) -> Tensor:
        """Scaled images, each turned and stretched anew. (b, c, h, w) → the same"""
        if not self.rotation and not self.zoom:
            return images
        angles, stretch = images.new_zeros(len(images)), images.new_ones(len(images), 2)
        if self.rotation:
            angles = angles + math.radians(self.rotation) * (2 * torch.rand_like(angles) - 1)
        if self.zoom:
            stretch = stretch + self.zoom * (2 * torch.rand_like(stretch) - 1)
        return warped(images, angles, stretch)

    def hide(self, images: Tensor) -> Tensor:
        """Scaled images with a square of each set to nought, which is the mean. (b, c, h, w) → the same"""
        if not self.cutout:
            return images
        inside = []
        for axis in (2, 3):
            length = images.shape[axis]
            first = torch.randint(length, (len(images), 1), device=images.device) - self.cutout // 2
            place = torch.arange(length, device=images.device) - first
            inside.append((place >= 0) & (place < self.cutout))
        rows, columns = inside
        return images.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0)

    def _positions(self, count: int, length: int, device: torch.device, *, flip: bool) -> Tensor:
        """For each image where every pixel along one axis comes from, (count, length)."""
        positions = torch.arange(length, device=device).expand(count, length)
        if flip:
            mirrored = torch.rand(count, 1, device=device) < 0.5
            positions = torch.where(mirrored, length - 1 - positions, positions)
        if self.crop:
            shifted = positions + torch.randint(-self.crop, self.crop + 1, (count, 1), device=device)
            positions = length - 1 - (length - 1 - shifted.abs()).abs()  # reflected at both ends
        return positions


def warped(images: Tensor, angles: Tensor, stretch: Tensor) -> Tensor:
    """Images with their height and width multiplied by `stretch`, then turned anticlockwise by `angles` in radians, about
    their middle: bilinear, and with the border's values beyond it. (b, c, h, w), (b,), (b, 2) → (b, c, h, w)"""
    height, width = images.shape[2:]
    down = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]  # pixels from the middle
    right = (torch.arange(width, device=images.device) - (width - 1) / 2)[None, :]
    cosine, sine = angles.cos()[:, None, None], angles.sin()[:, None, None]
    tall, wide = stretch[:, :, None, None].unbind(dim=1)
    from_down = (right * sine + down * cosine) / tall  # (b, h, w): where each pixel comes from
    from_right = (right * cosine - down * sine) / wide
    places = torch.stack([from_right * (2 / width), from_down * (2 / height)], dim=3)
    return functional.grid_sample(images, places, mode="bilinear", padding_mode="border", align_corners=False)


@dataclass(frozen=True)
class ImageSource:
    """Scaled, augmented images for positions in a set: what methods are fed from."""

    images: Images
    scaling: Scaling
    class_names: Sequence[str]
    augmentation: Augmentation = Augmentation()

    @property
    def labels(self) -> Tensor:
        return self.images.labels

    def plain(self, index: Tensor) -> Tensor:
        return self.scaling(self.images.pixels[index])

    def augmented(self, index: Tensor) -> Tensor:
        if isinstance(self.images.pixels, Tensor):
            return self.augmented_of(self.images.pixels, index)
        return self.augmented_of(self.images.pixels[index], torch.arange(len(index), device=index.device))

    def augmented_of(self, pixels: Tensor, index: Tensor) -> Tensor:
        """The same of other pixels than its own, (n, c, h, w)."""
        if not self.augmentation:
            return self.scaling(pixels[index])
        picked = self.scaling(self.augmentation.pick(pixels, index))
        return self.augmentation.hide(self.augmentation.warp(picked))
