"""What a trained model predicts: arrays, images of Pillow, image files and texts, as the input of its method."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from faustnet.data import Images, ImageSource, Tokeniser, image_pixels, read_image
from faustnet.data.images import described, is_table
from faustnet.data.table_columns import check_columns, columns_of
from faustnet.data.tokens import check_ids
from faustnet.errors import FaustnetError, require
from faustnet.methods.arguments import all_finite
from faustnet.runs.model_file import dimensions

if TYPE_CHECKING:
    from faustnet.runs.model import Model

File = str | os.PathLike[str] | Image.Image
Inputs = Tensor | np.ndarray | File | Sequence[File]  # pixels or token ids, images and image files, or texts
RANGE_IMAGES = 1000  # images that the range of pixels is computed from
DARK = 128  # images without a brighter pixel may have another range than 0 to 255
OF_TEXTS = "This model was trained on texts, not on images: use 'faustnet predict --text', or a list of strings in Python."


def input_images(model: "Model", given: Any) -> Images:
    """Return the input of a model, without labels.

    A model of texts takes a list of strings, or token ids (n, tokens). Any other model takes arrays: images (n, c, h, w),
    (n, h, w, c), or (n, h, w) for one channel, or a table (n, columns). A model of images with pixels from 0 to 255 also
    takes an image of Pillow, the path of an image file, or a list of those; a string is a path.
    """
    if model.tokeniser is not None:
        rows = _token_rows(given, model.tokeniser, model)
    elif files := _files(given):
        shape = model.image_shape
        rows = torch.stack([_read(file, shape, number) for number, file in enumerate(files, start=1)]).to(model.device)
    else:
        rows = _pixels(given, model)
    return Images(rows, torch.zeros(len(rows), dtype=torch.long, device=rows.device))


def source_of(model: "Model", images: Images) -> ImageSource:
    """Return images as input for the method of a model, without augmentation."""
    if model.tokeniser and images.shape != model.shape:
        raise FaustnetError(
            f"Texts must have {model.shape[0]} token ids for this model, got the shape {dimensions(images.shape)}: use "
            "texts and the tokeniser of the model."
        )
    if images.shape != model.shape:
        raise FaustnetError(
            f"The data must be {described(model.shape)} for this model, got {described(images.shape)}: use data of that "
            "shape, or train another model."
        )
    scaling = model.scaling
    if scaling is not None and next(model.method.parameters()).dtype == torch.float64:  # of a fitted `FaustClassifier`
        scaling = scaling.to(torch.float64)
    return ImageSource(images, scaling, model.class_names)


def _files(given: Any) -> list[Any]:
    """Return images of Pillow and paths as a list; an empty list if this is something else."""
    kinds = (str, os.PathLike, Image.Image)
    if isinstance(given, kinds):
        return [given]
    return list(given) if isinstance(given, list | tuple) and given and isinstance(given[0], kinds) else []


def _read(file: Any, shape: tuple[int, int, int], number: int) -> Tensor:
    if isinstance(file, Image.Image):
        return image_pixels(file, shape, f"Image {number}")
    if isinstance(file, str | os.PathLike):
        return read_image(Path(file), shape)
    raise FaustnetError(f"Item {number} must be an image of Pillow or the path of an image file, got {type(file).__name__}.")


def _pixels(given: Any, model: "Model") -> Tensor:
    """Return the pixels of images, (n, c, h, w), or the rows of a table in the form that the model has."""
    shape = model.shape
    check_columns(columns_of(given), model.columns, "pixels", "the training data")
    array = given.to_numpy() if hasattr(given, "to_numpy") else given
    try:
        if isinstance(array, np.ndarray):
            array = np.require(array, requirements=["C", "W"])  # torch warns of read-only memory
        pixels = torch.as_tensor(array, device=model.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FaustnetError(
            f"pixels must be a tensor or an array, or images of Pillow and paths of image files ({error})."
        ) from None
    if pixels.dim() == 2 and is_table(shape):
        pixels = pixels.reshape(len(pixels), -1, *shape[1:])
        pixels = pixels.float() if pixels.dtype == torch.uint8 and not model.of_bytes else pixels
    elif pixels.dim() == 3 and shape[0] == 1:
        pixels = pixels.unsqueeze(1)
    elif pixels.dim() == 4 and len(shape) == 3 and pixels.shape[1:] != shape and pixels.shape[1:] == (*shape[1:], shape[0]):
        pixels = pixels.permute(0, 3, 1, 2)
    wanted = shape[:1] if is_table(shape) else shape
    hint = ": for a single sample, use x[None]" if pixels.shape == wanted else ""
    require(
        pixels.dim() == 1 + len(shape),
        f"pixels must be (n, {', '.join(map(str, wanted))}), got {tuple(pixels.shape)}{hint}.",
    )
    if model.of_bytes and pixels.dtype != torch.uint8:
        raise FaustnetError(
            f"pixels must be uint8 from 0 to 255 for this model, got {_described(pixels)}: {_conversion(pixels, given)}."
        )
    if not model.of_bytes and pixels.dtype == torch.uint8:
        converted = 'x.astype("float32")' if isinstance(given, np.ndarray) else "x.float()"
        raise FaustnetError(
            "pixels must be floats, scaled like the training data of this model, got torch.uint8: convert them in the same "
            f"way, for example with {converted} / 255."
        )
    require(
        not pixels.is_floating_point() or all_finite(pixels.float()),
        "pixels must contain finite values only, got NaN, infinity or values beyond the range of float32: replace them.",
    )
    return pixels


def check_range(images: Images, name: str) -> None:
    """Refuse images whose pixels are from 0 to 1, for a model of pixels from 0 to 255."""
    if not images.pixels.dtype.is_floating_point or len(images.shape) != 3 or images.shape[1:] == (1, 1):
        return
    low, high = (float(end) for end in next(iter(images.pixels.split(RANGE_IMAGES))).aminmax())
    require(
        not 0 <= low <= high <= 1,
        f"{name} must have pixels from 0 to 255 for this model, got {images.pixels.dtype} from {low:.4g} to {high:.4g}: "
        'convert them with (255 * x).round().astype("uint8").',
    )


def _described(pixels: Tensor) -> str:
    if not pixels.numel():
        return str(pixels.dtype)
    low, high = (end.item() for end in pixels.aminmax())
    return f"{pixels.dtype} from {low:.4g} to {high:.4g}"


def _conversion(pixels: Tensor, given: Any) -> str:
    """Say how numbers become bytes: those from 0 to 1 are multiplied by 255, those from 0 to 16 perhaps by 255 / 16."""
    low, high = (end.item() for end in pixels.aminmax()) if pixels.numel() else (0, 0)
    if not 0 <= low <= high <= 255:
        return "undo the scaling of the images, so that pixels are from 0 to 255"
    as_bytes = '.astype("uint8")' if isinstance(given, np.ndarray) else ".to(torch.uint8)"
    if pixels.is_floating_point() and high <= 1:
        return f"convert them with (255 * x).round(){as_bytes}"
    if 0 < high < DARK:
        return (
            f"convert them with (255 / {high:g} * x).round(){as_bytes} if {high:g} is their largest possible value, or with "
            f"x{as_bytes} if that is 255"
        )
    return f"convert them with x{as_bytes}"


def _token_rows(given: Any, tokeniser: Tokeniser, model: "Model") -> Tensor:
    """Encode strings, or check token ids. → (n, tokens)"""
    if isinstance(given, Tensor | np.ndarray):
        rows = torch.as_tensor(given, device=model.device)
        check_ids(rows, tokeniser.vocabulary, "tokens")
        return rows
    require(not isinstance(given, str), "texts must be a list of strings, got a single string: put it in a list.")
    if any(isinstance(one, os.PathLike | Image.Image) for one in (given if isinstance(given, list | tuple) else [given])):
        raise FaustnetError(OF_TEXTS)
    texts = given.tolist() if hasattr(given, "tolist") else given  # a column of pandas
    return tokeniser.whole_rows(texts).to(model.device)
