"""What a model takes: pixels of images or texts, without labels, and data sets with the classes of a model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from faustnet.data import DataSet, Images, Tokeniser
from faustnet.data.tokens import check_ids
from faustnet.errors import FaustnetError, require

Inputs = Tensor | np.ndarray | Sequence[str]  # pixels or token ids, or texts


def image_rows(pixels: Inputs, shape: tuple[int, ...], of_bytes: bool, device: torch.device) -> Images:
    """Check the pixels of images without labels, (n, c, h, w), or (n, h, w) for one channel. `of_bytes` is whether they must
    be from 0 to 255."""
    try:
        pixels = torch.as_tensor(pixels, device=device)
    except (TypeError, ValueError) as error:
        raise FaustnetError(
            f"pixels must be a tensor or an array ({error}): for image files, use 'faustnet predict'."
        ) from None
    if pixels.dim() == 3 and shape[0] == 1:
        pixels = pixels.unsqueeze(1)
    require(pixels.dim() == 4, f"pixels must be (n, {', '.join(map(str, shape))}), got {tuple(pixels.shape)}.")
    if of_bytes and pixels.dtype != torch.uint8:
        raise FaustnetError(f"pixels must be uint8 from 0 to 255 for this model, got {pixels.dtype}: convert them.")
    if not of_bytes and pixels.dtype == torch.uint8:
        raise FaustnetError("pixels must be floats, scaled like the training data of this model, got torch.uint8.")
    return _unlabelled(pixels)


def text_rows(texts: Inputs, tokeniser: Tokeniser, device: torch.device) -> Images:
    """Encode strings, or check token ids (n, tokens)."""
    if isinstance(texts, Tensor | np.ndarray):
        rows = torch.as_tensor(texts, device=device)
        check_ids(rows, tokeniser.vocabulary, "tokens")
    else:
        require(not isinstance(texts, str), "texts must be a list of strings, got a single string: put it in a list.")
        rows = tokeniser.whole_rows(texts).to(device)
    return _unlabelled(rows)


def _unlabelled(rows: Tensor) -> Images:
    return Images(rows, torch.zeros(len(rows), dtype=torch.long, device=rows.device))


def relabelled(data: DataSet, class_names: tuple[str, ...]) -> DataSet:
    """Return a data set with the labels of a model that has these classes. The data need not contain all of them."""
    if others := sorted(set(data.class_names) - set(class_names)):
        known = ", ".join(class_names)
        raise FaustnetError(f"{data.name} must have only classes of the model, which are {known}, got {', '.join(others)}.")
    numbers = torch.tensor([class_names.index(name) for name in data.class_names])

    def renumbered(part: Images) -> Images:
        return Images(part.pixels, numbers[part.labels.cpu()])

    validation = None if data.validation is None else renumbered(data.validation)
    train, test = renumbered(data.train), renumbered(data.test)
    return replace(data, class_names=class_names, train=train, test=test, validation=validation)
