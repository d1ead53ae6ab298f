"""Images of data sets as PNG files in data URIs, for pages."""

import base64
import io
import math
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from faustnet.data import Images
from faustnet.methods.faust import FaustRepresentative
from faustnet.runs.model import Model

THUMBNAIL = 32  # largest side in pixels of a test image; a page contains more than a thousand of them
PORTRAIT = 128  # largest side of a representative
PORTRAITS = 10  # largest number of representatives that are shown per class


class Pictures:
    """Converts the images of one data set to PNG files in data URIs. Tables of numbers and texts have no pictures."""

    def __init__(self, images: Images):
        self.exist = len(images.shape) == 3 and images.shape[0] in (1, 3) and images.shape[1:] != (1, 1)
        self.low, self.high = 0.0, 255.0
        if images.pixels.dtype != torch.uint8:
            self.low, self.high = (float(end) for end in images.all_pixels.aminmax())

    def each(self, pixels: Tensor, size: int) -> list[Image.Image]:
        """Return pictures of at most `size` pixels per side, from values in the range of the data set. (n, c, h, w)"""
        shares = (pixels.cpu().double() - self.low) / (self.high - self.low or 1.0)
        values = (shares * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
        found = [Image.fromarray(value.squeeze(2) if value.shape[2] == 1 else value) for value in values]
        for picture in found:
            picture.thumbnail((size, size))
        return found

    def sheet(self, pixels: Tensor) -> dict[str, Any] | None:
        """Return one picture with all images, row by row, or None if the data set has no pictures."""
        if not self.exist:
            return None
        found = self.each(pixels, THUMBNAIL)
        width, height = found[0].size
        columns = math.isqrt(len(found) - 1) + 1
        whole = Image.new(found[0].mode, (columns * width, math.ceil(len(found) / columns) * height))
        for number, picture in enumerate(found):
            row, column = divmod(number, columns)
            whole.paste(picture, (column * width, row * height))
        return {"source": data_uri(whole), "columns": columns, "width": width, "height": height}


def data_uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def representatives(model: Model, pictures: Pictures) -> list[list[str]]:
    """Return the representatives of each class as data URIs or as texts; empty if the method has none."""
    method = model.method
    if not isinstance(method, FaustRepresentative):
        return []
    classes = method.images.view(method.classes, method.count, *model.shape)[:, :PORTRAITS]
    if model.tokeniser is not None:
        return [model.tokeniser.decode(texts) for texts in classes.long()]
    if model.scaling is None or not pictures.exist:
        return []
    classes = classes * model.scaling.deviation + model.scaling.mean
    return [[data_uri(picture) for picture in pictures.each(images, PORTRAIT)] for images in classes]
