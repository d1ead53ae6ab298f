"""Small files of Omniglot in torchvision's layout, for tests."""

from pathlib import Path

import numpy as np
from PIL import Image

from faustnet.data.omniglot import DRAWINGS, DRAWN_SIDE, FOLDER

ALPHABETS = {"images_background": {"Greek": 3, "Latin": 2}, "images_evaluation": {"Angelic": 4, "Tibetan": 3}}


def drawing(alphabet: str, character: int, number: int) -> Image.Image:
    """Return a drawing: a few bars that belong to the character, moved a little."""
    own = np.random.default_rng([*alphabet.encode(), character])
    moved = np.random.default_rng([*alphabet.encode(), character, number])
    paper = np.ones((DRAWN_SIDE, DRAWN_SIDE), bool)
    for row, column in own.integers(5, 80, (4, 2)) + moved.integers(-3, 4, (4, 2)):
        height, width = own.permutation([30, 6])
        paper[row : row + height, column : column + width] = False
    return Image.fromarray(paper)


def write_omniglot(folder: Path, parts: dict[str, dict[str, int]] = ALPHABETS) -> Path:
    """Write drawings below a data folder, and return the folder of Omniglot."""
    number = 0
    for part, alphabets in parts.items():
        for alphabet, characters in alphabets.items():
            for character in range(1, characters + 1):
                number += 1
                own = folder / FOLDER / part / alphabet / f"character{character:02d}"
                own.mkdir(parents=True)
                for person in range(1, DRAWINGS + 1):
                    drawing(alphabet, character, person).save(own / f"{number:04d}_{person:02d}.png")
    return folder / FOLDER
