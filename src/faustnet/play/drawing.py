"""How a drawing becomes an image like those of a data set: its size, its centre, its pen and its background."""

from dataclasses import dataclass

import numpy as np

INK = 0.25  # contrast with the background, of the largest, from which a pixel is part of a drawing
SLANT = 4 / np.pi  # number of pixel edges along an outline of any direction, over its length, on average
THINNEST, THICKEST = 0.06, 0.3  # pen, relative to the size of a drawing


@dataclass(frozen=True)
class Drawing:
    """Appearance of the grey images of a data set. Lengths are in pixels of these images."""

    side: float  # larger side of the bounding box of an image's foreground
    pen: float  # width of lines
    by_mass: bool  # whether images are centred by their centre of mass, and not by their bounding box
    centre: tuple[float, float]  # row and column of that centre, the first pixel being from 0 to 1
    background: int  # grey value from 0 to 255
    ink: int  # grey value of the foreground

    @classmethod
    def of(cls, images: np.ndarray) -> "Drawing":
        """Measure the appearance of images. (n, h, w), bytes"""
        edges = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], axis=None)
        background = int(np.median(edges))
        ink = 255 if background < 128 else 0
        shares = (images.astype(np.float64) - background) / (ink - background)
        found = np.array([_measured(image) for image in shares if (image > INK).any()])
        if not len(found):  # blank images
            found = _measured(np.ones(images.shape[1:]))[None]
        side, pen = np.median(found[:, :2], axis=0)
        masses, boxes = found[:, 2:4], found[:, 4:6]
        by_mass = bool(masses.std(axis=0).sum() < boxes.std(axis=0).sum())
        row, column = (masses if by_mass else boxes).mean(axis=0)
        pen = np.clip(pen, THINNEST * side, THICKEST * side)
        return cls(float(side), float(pen), by_mass, (float(row), float(column)), background, ink)


def _measured(image: np.ndarray) -> np.ndarray:
    """Return the larger side, the width of lines, the centre of mass and the centre of the bounding box. (h, w) → (6,)"""
    inside = image > INK
    rows, columns = np.nonzero(inside)
    first, last = np.array([rows.min(), columns.min()]), np.array([rows.max(), columns.max()]) + 1
    padded = np.pad(inside, 1)
    outline = sum(np.not_equal(*pair).sum() for pair in ((padded[1:], padded[:-1]), (padded[:, 1:], padded[:, :-1])))
    pen = 2 * inside.sum() / (outline / SLANT)  # a line of width w and length l has the area w · l and the outline 2 · l
    mass = image.clip(0)
    places = np.indices(image.shape) + 0.5
    centre = (places * mass).sum(axis=(1, 2)) / mass.sum()
    return np.array([(last - first).max(), pen, *centre, *(first + last) / 2])
