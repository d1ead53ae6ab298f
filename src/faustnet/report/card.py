"""Model cards: one page of Markdown about an exported model, from the results of its run."""

import html
import re
from collections.abc import Sequence
from functools import cache
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup
from rich.filesize import decimal

from faustnet.errors import printable
from faustnet.report.paper import TITLES

PAIRS = 8  # confused pairs of classes shown, at most
SPECIAL = re.compile(r"([\\`*_{}\[\]|~$@:#!^=])")  # characters with a meaning in Markdown


def render_card(about: dict[str, Any]) -> str:
    """Return the card of a model that `export_run` describes, as Markdown."""
    confusion = about["metrics"]["confusion"]
    measured = (confusion, about["class_names"]) if about["measured"] else ([], [])
    by_class, errors = _by_class(*measured), _errors(*measured)
    return _template().render(
        about,
        dataset=TITLES.get(about["recipe"]["dataset"], about["dataset"]),
        noun="text" if about["vocabulary"] else "image",
        one_image=_one_image(about),
        tested=sum(map(sum, confusion)),
        prediction_from=_voters(about),
        size=decimal(about["size"]),
        file_literal=repr(about["file"]),
        sizes=", ".join(map(str, about["shape"])),
        kind="uint8" if about["of_bytes"] else "float32",
        by_class=by_class,
        recalls=[recall for _, _, recall, _ in by_class if recall is not None],
        errors=errors,
        device=_device(about["environment"]),
        start=_start(about["recipe"]),
        percent=_percent,
    )


@cache
def _template() -> Template:
    templates = Environment(
        loader=PackageLoader("faustnet.report", ""), finalize=text, trim_blocks=True, keep_trailing_newline=True
    )
    return templates.get_template("card.md.jinja")


def text(value: object) -> str:
    """Return a value as one line of Markdown text, without formatting; invalid Unicode becomes question marks."""
    if isinstance(value, Markup):  # marked as safe in the template
        return value
    plain = printable(" ".join(str(value).encode(errors="replace").decode().split()))
    return SPECIAL.sub(r"\\\1", html.escape(plain, quote=False))


def _by_class(confusion: list[list[int]], names: Sequence[str]) -> list[tuple[str, int, float | None, float | None]]:
    """Return the name, the number of test images, the recall and the precision of each class."""
    given = [sum(column) for column in zip(*confusion, strict=True)]
    return [
        (name, sum(row), _share(row[number], sum(row)), _share(row[number], given[number]))
        for number, (name, row) in enumerate(zip(names, confusion, strict=True))
    ]


def _errors(confusion: list[list[int]], names: Sequence[str]) -> list[tuple[str, str, int, float | None]]:
    """Return the most frequent errors: the true and the predicted class, the number of images, and their share."""
    found = [
        (names[row], names[column], count, _share(count, sum(counts)))
        for row, counts in enumerate(confusion)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    return sorted(found, key=lambda error: -error[2])[:PAIRS]


def _voters(about: dict[str, Any]) -> str:
    prediction, voters = about["recipe"]["prediction"], about["metrics"]["voters"]
    weights = prediction["weights"] or [1.0] * len(voters)
    named = [name if weight == 1 else f"{name} × {weight:g}" for name, weight in zip(voters, weights, strict=True)]
    if prediction.get("layers") == "last":
        named = voters[-1:]
    return ", ".join(named) + ("; averaged over an image and its mirror image" if prediction["mirror"] else "")


def _start(recipe: dict[str, Any]) -> str | None:
    """Return the name and the digest of the model that the training started from, and the layers that were trained."""
    start = recipe.get("start", {})
    if not start.get("model"):
        return None
    layers = ", ".join(map(str, start["train_layers"])) or "all"
    return f"{PurePath(start['model']).name}, SHA-256 {start['digest']}; layers trained: {layers}"


def _one_image(about: dict[str, Any]) -> str:
    if about["vocabulary"]:
        return f"texts of up to {about['shape'][0]} tokens"
    channels, height, width = about["shape"]
    if height * width == 1:
        return f"rows of {channels} numbers"
    kind = {1: "grey-scale images", 3: "colour images"}.get(channels, f"images with {channels} channels")
    return f"{kind} of {height}×{width} pixels"


def _device(made: dict[str, Any]) -> str:
    device, threads = made.get("device"), made.get("threads")
    return f"{made.get('processor')}, {threads} thread{'s' * (threads != 1)}" if device == "cpu" else str(device)


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{share:.{digits}%}"
