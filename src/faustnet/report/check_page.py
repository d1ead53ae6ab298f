"""The page of `faustnet check`: the findings about a data set, with pictures. It loads no other file."""

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from PIL import Image

from faustnet.version import VERSION

SIDE = 128  # pixels of a picture, at most
TITLES = {
    "copies": "Classes of copies",
    "overlap": "Training images in other parts",
    "conflict": "Different labels for the same image",
    "constant": "Images of a single colour",
    "label": "Labels that are no classes",
    "single": "Classes with a single image",
    "untested": "Classes without test images",
    "skipped": "Files that were not read",
}


def render_check(name: str, about: str, findings: Sequence[Mapping[str, Any]], more: Counter[str]) -> str:
    """Return the page. Invalid Unicode becomes question marks.

    Args:
        name: Name of the data set.
        about: Its numbers of images and classes.
        findings: Each with `kind`, `where`, `message` and `examples`, which have `place`, `label`, and `pixels`, (h, w, c),
            or `text`, or neither.
        more: Numbers of further findings by kind, which are not shown.
    """
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        examples = [{**example, "picture": picture(example["pixels"])} for example in finding["examples"]]
        by_kind.setdefault(finding["kind"], []).append({**finding, "examples": examples})
    count = len(findings) + more.total()
    page = _template().render(
        name=name, about=about, by_kind=by_kind, more=more, titles=TITLES, count=count, version=VERSION
    )
    return page.encode(errors="replace").decode()


@cache
def _template() -> Template:
    return Environment(
        loader=PackageLoader("faustnet.report", ""), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    ).get_template("check.html")


def picture(pixels: np.ndarray | None) -> str | None:
    """Return an image as a PNG file in a data URI; values that are not bytes are scaled to its own range. (h, w, c)"""
    if pixels is None or pixels.shape[2] not in (1, 3):
        return None
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = ((pixels - low) / (high - low or 1.0) * 255).round().astype(np.uint8)
    made = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    made.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    made.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
