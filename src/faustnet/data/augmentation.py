"""Random augmentation of images."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.errors import FaustnetError, require


@dataclass(frozen=True)
class Augmentation:
    """Random augmentation: flip and crop, then rotation and zoom, then cutout."""

    flip: bool = False  # mirror horizontally with probability 1/2
    crop: int = 0  # shift by up to this number of pixels, filled by reflection
    cutout: int = 0  # side of a square that is set to zero, in pixels; may extend beyond the image
    rotation: float = 0.0  # rotate by up to this number of degrees in either direction, filled with the border
    zoom: float = 0.0  # scale height and width independently, by up to this fraction of each, filled with the border

    def __bool__(self) -> bool:
        return self.flip or self.crop > 0 or self.cutout > 0 or self.rotation > 0 or self.zoom > 0

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise an error if the augmentation does not fit images of this shape, (channels, height, width)."""
        if len(shape) != 3:
            require(
                not self, "data.flip, data.crop, data.cutout, data.rotation and data.zoom are for images: leave them out."
            )
            return
        smallest = min(shape[1:])
        if self.crop >= smallest:
            raise FaustnetError(
                f"data.crop must be less than {smallest} for images of {shape[1]}×{shape[2]}, got {self.crop}."
            )
        if self.cutout > smallest:
            raise FaustnetError(
                f"data.cutout must be at most {smallest} for images of {shape[1]}×{shape[2]}, got {self.cutout}."
            )

    def pick(self, pixels: Tensor, index: Tensor) -> Tensor:
        """Return the images at `index`, flipped and cropped, in a single gather. (n, c, h, w), (b,) → (b, c, h, w)"""
        height, width = pixels.shape[2:]
        rows = self._positions(len(index), height, index.device, flip=False)
        columns = self._positions(len(index), width, index.device, flip=self.flip)
        channels = torch.arange(pixels.shape[1], device=index.device)
        return pixels[
            index[:, None, None, None], channels[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]

    def warp(self, images: Tensor) -> Tensor:
        """Rotate and zoom scaled images. (b, c, h, w) → (b, c, h, w)"""
        if not self.rotation and not self.zoom:
            return images
        angles, stretch = images.new_zeros(len(images)), images.new_ones(len(images), 2)
        if self.rotation:
            angles = angles + math.radians(self.rotation) * (2 * torch.rand_like(angles) - 1)
        if self.zoom:
            stretch = stretch + self.zoom * (2 * torch.rand_like(stretch) - 1)
        return warped(images, angles, stretch)

    def hide(self, images: Tensor) -> Tensor:
        """Apply cutout to scaled images: set a square of each to zero, the mean. (b, c, h, w) → (b, c, h, w)"""
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
        """Return the source of every pixel along one axis, for each image. → (count, length)"""
        positions = torch.arange(length, device=device).expand(count, length)
        if flip:
            mirrored = torch.rand(count, 1, device=device) < 0.5
            positions = torch.where(mirrored, length - 1 - positions, positions)
        if self.crop:
            shifted = positions + torch.randint(-self.crop, self.crop + 1, (count, 1), device=device)
            positions = length - 1 - (length - 1 - shifted.abs()).abs()  # reflected at both ends
        return positions


def warped(images: Tensor, angles: Tensor, stretch: Tensor) -> Tensor:
    """Scale height and width of images by `stretch`, then rotate them anticlockwise by `angles` in radians, about their
    centre, with bilinear interpolation and border padding. (b, c, h, w), (b,), (b, 2) → (b, c, h, w)"""
    height, width = images.shape[2:]
    down = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]  # pixels from the centre
    right = (torch.arange(width, device=images.device) - (width - 1) / 2)[None, :]
    cosine, sine = angles.cos()[:, None, None], angles.sin()[:, None, None]
    tall, wide = stretch[:, :, None, None].unbind(dim=1)
    from_down = (right * sine + down * cosine) / tall  # (b, h, w): the source of each pixel
    from_right = (right * cosine - down * sine) / wide
    places = torch.stack([from_right * (2 / width), from_down * (2 / height)], dim=3)
    return functional.grid_sample(images, places, mode="bilinear", padding_mode="border", align_corners=False)
