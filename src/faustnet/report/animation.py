"""Animation of maps: an SVG file for web pages, and a GIF file for slides. Both repeat for ever.

`facts`: class_names, epochs, labels, and for each of the layers its Fisher score and its points in each of the epochs.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from faustnet.report.figures import CLASS_COLOURS, CM, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST, LAST = 2, 5  # additional steps at the first and the last epoch
STEP = 0.8  # seconds from one epoch to the next
SMOOTH = 6  # pictures of a GIF file from one epoch to the next
SIDE, GAP, HEAD, ROW = 260, 20, 34, 22  # pixels: a map, between maps, above them, and a line of the key
KEY = 78  # width of an entry of the key
UNIT = 1000  # points are from 0 to UNIT
DOT = 17  # radius of a point, in units of a map
RADIUS = 0.46  # half of a map, in which points are drawn
WIDTH, MARGIN, HEADING = 16.0, 0.3, 0.7  # centimetres of a GIF picture: its width, between maps, and above them
DPI = 130
COLOURS = 128  # of a GIF file

Facts = Mapping[str, Any]


def steps_of(facts: Facts) -> list[int]:
    """Return the position of an epoch for each step of the animation: the first and the last are shown longer."""
    count = len(facts["epochs"])
    return [*[0] * FIRST, *range(count), *[count - 1] * LAST]


def draw_svg(facts: Facts) -> str:
    """Return an animated SVG file. Programs that show no animation show the last epoch."""
    steps, layers, names = steps_of(facts), facts["layers"], facts["class_names"]
    width = len(layers) * (SIDE + GAP) + GAP
    columns = max(1, (width - 2 * GAP) // KEY)
    height = HEAD + SIDE + GAP + ROW * (1 + math.ceil(len(names) / columns))
    seconds = f"{STEP * (len(steps) - 1):.1f}s"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">',
        "<title>How the maps of the test images form in each layer during training</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, layer in enumerate(layers):
        left = GAP + number * (SIDE + GAP)
        parts.append(f'<text x="{left}" y="22" font-weight="bold">Layer {number + 1}</text>')
        scores = [f"F = {score:.2f}" for score in layer["fisher"]]
        parts += _words(scores, steps, seconds, left + SIDE, 22, 'text-anchor="end"')
        parts.append(f'<rect x="{left}" y="{HEAD}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>')
        parts += _dots(np.asarray(layer["points"])[steps], facts["labels"], seconds, left)
    below = HEAD + SIDE + GAP
    parts += _words([f"epoch {epoch}" for epoch in facts["epochs"]], steps, seconds, GAP, below + 8, 'font-weight="bold"')
    for number, name in enumerate(names):
        row, column = divmod(number, columns)
        x, y = GAP + column * KEY, below + 8 + ROW * (row + 1)
        parts.append(f'<circle cx="{x + 5}" cy="{y - 5}" r="5" fill="{_colour(number)}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}">{html.escape(_short(name))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _dots(paths: np.ndarray, labels: Sequence[int], seconds: str, left: int) -> list[str]:
    """Return the points of one layer, in units of its map, coloured by class. (steps, n, 2), (n,)"""
    scale, margin = 2 * RADIUS * SIDE / UNIT, (0.5 - RADIUS) * SIDE
    place = f"translate({left + margin:.1f} {HEAD + margin:.1f}) scale({scale:.4f})"
    parts = [f'<g transform="{place}" stroke="white" stroke-width="3">']
    repeated = f'dur="{seconds}" repeatCount="indefinite"'
    for path, label in zip(paths.transpose(1, 2, 0).tolist(), labels, strict=True):
        cx, cy = (";".join(map(str, values)) for values in path)
        parts.append(
            f'<circle cx="{path[0][-1]}" cy="{path[1][-1]}" r="{DOT}" fill="{_colour(label)}">'
            f'<animate attributeName="cx" {repeated} values="{cx}"/><animate attributeName="cy" {repeated} values="{cy}"/>'
            "</circle>"
        )
    return [*parts, "</g>"]


def _words(words: Sequence[str], steps: list[int], seconds: str, x: int, y: int, style: str) -> list[str]:
    """Return a text for each epoch, of which one at a time is visible."""
    times = ";".join(f"{max(0.0, (step - 0.5) / (len(steps) - 1)):.4f}" for step in range(len(steps)))
    parts = []
    for number, text in enumerate(words):
        shown = ";".join("visible" if step == number else "hidden" for step in steps)
        animate = (
            f'<animate attributeName="visibility" calcMode="discrete" dur="{seconds}" repeatCount="indefinite" '
            f'keyTimes="{times}" values="{shown}"/>'
        )
        first = "" if number == len(words) - 1 else ' visibility="hidden"'
        parts.append(f'<text x="{x}" y="{y}" {style}{first}>{text}{animate}</text>')
    return parts


def _colour(number: int) -> str:
    """Return the colour of a class; colours repeat if there are more classes than colours."""
    return CLASS_COLOURS[number % len(CLASS_COLOURS)]


def _short(name: str) -> str:
    return name if len(name) <= 8 else f"{name[:7]}…"


@drawing()
def draw_gif(facts: Facts) -> bytes:
    """Return an animated GIF file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure, update = _figure(facts)
    canvas = FigureCanvasAgg(figure)
    pictures, times, palette = [], [], None
    count = len(facts["epochs"])
    for number in range((count - 1) * SMOOTH + 1):
        update(number / SMOOTH)
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
        palette = picture.quantize(COLOURS) if palette is None else palette  # one palette, so that files are small
        pictures.append(picture.quantize(palette=palette, dither=Image.Dither.NONE))
        extra = FIRST if number == 0 else LAST if number == (count - 1) * SMOOTH else 0
        times.append(round(1000 * STEP * (1 / SMOOTH + extra)))
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=False)
    return file.getvalue()


def _figure(facts: Facts) -> tuple[Figure, Callable[[float], None]]:
    """Return a figure with a map of each layer, and a function that moves it to a position between two epochs."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    layers, names = facts["layers"], facts["class_names"]
    side = (WIDTH - MARGIN) / len(layers) - MARGIN
    columns = max(1, min(len(names), int(WIDTH / 1.5)))
    height = HEADING + side + MARGIN + 0.45 * (1 + math.ceil(len(names) / columns))
    figure = Figure(figsize=(WIDTH * CM, height * CM), dpi=DPI)
    colours = [_colour(label) for label in facts["labels"]]
    area = (2 * RADIUS * side * CM * 72 * 2 * DOT / UNIT) ** 2  # of a point, in square points
    maps, scores = [], []
    for number in range(len(layers)):
        left = MARGIN + number * (side + MARGIN)
        panel = figure.add_axes((left / WIDTH, 1 - (HEADING + side) / height, side / WIDTH, side / height))
        margin = UNIT * (0.5 / RADIUS - 1) / 2
        panel.set(xlim=(-margin, UNIT + margin), ylim=(UNIT + margin, -margin), xticks=[], yticks=[])
        panel.set_title(f"Layer {number + 1}", loc="left", weight="bold", pad=4)
        scores.append(panel.set_title("", loc="right", pad=4))
        nowhere = np.zeros(len(colours))
        maps.append(panel.scatter(nowhere, nowhere, area, c=colours, edgecolors="white", linewidths=0.3))
    epoch = figure.text(
        MARGIN / WIDTH, 0.45 * (0.3 + math.ceil(len(names) / columns)) / height, "", weight="bold", va="bottom"
    )
    handles = [Line2D([], [], color=_colour(n), marker="o", linestyle="none", markersize=4) for n in range(len(names))]
    place: dict[str, Any] = {"loc": "lower center", "ncols": columns, "frameon": False, "handletextpad": 0.1}
    legend = figure.legend(handles, ["class"] * len(names), **place, columnspacing=0.8, borderpad=0.1)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(_short(name))  # a legend omits labels that begin with an underscore

    def update(position: float) -> None:
        before, share = int(position), position % 1
        after, nearest = min(before + 1, len(facts["epochs"]) - 1), round(position)
        for layer, points, score in zip(layers, maps, scores, strict=True):
            start, end = (np.asarray(layer["points"][place], dtype=float) for place in (before, after))
            points.set_offsets(start + share * (end - start))
            score.set_text(f"F = {layer['fisher'][nearest]:.2f}")
        epoch.set_text(f"epoch {facts['epochs'][nearest]}")

    return figure, update
