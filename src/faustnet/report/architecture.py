"""Figure 1, the architecture of FAUST-representative, drawn from the sizes of a network. Lengths are centimetres on paper.

Drawn in code rather than kept as a picture, so that it shows the sizes of the network that a recipe builds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from faustnet.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CM = 1 / 2.54  # inches
INK, GREY, PALE, WHITE = "#222222", "#777777", "#f3f3f3", "#ffffff"
UPDATE: dict[str, Any] = {"color": "#b2182b", "linestyle": (0, (3, 1.5)), "linewidth": 1.0}

WIDTH, TOP, ROW, GAP, BOTTOM = 16.0, 0.9, 2.1, 0.6, 1.5
FEED = 0.3  # x of the line that leads into each layer
LAYER, BODY, PROJECTION, LOSS = (0.6, 11.7), (0.8, 4.0), (5.6, 8.2), (10.2, 11.5)  # left and right of each box
BRANCH = 4.8  # x where the activation leaves a layer
EMBEDDING = 9.9  # x where the embedding leaves a layer
DISTANCES, SUM = (12.5, 15.2), 15.6
HALF = 0.45  # height of a box, halved


def draw_architecture(facts: Mapping[str, Any]) -> Figure:
    """Draw the layers from top to bottom, with the local loss of each, and at the right how a class is predicted.

    `facts`: input_shape, inputs, references (of all classes together), and inputs, width and embedding of each layer.
    """
    from matplotlib.figure import Figure

    layers = facts["layers"]
    require(bool(layers), "layers must contain at least one layer, got none.")
    height = TOP + len(layers) * (ROW + GAP) + BOTTOM
    figure = Figure(figsize=(WIDTH * CM, height * CM))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, height))
    axes.set_axis_off()
    rows = [height - TOP - GAP - ROW / 2 - number * (ROW + GAP) for number in range(len(layers))]
    references = facts["references"]
    shape = " × ".join(map(str, facts["input_shape"]))
    _text(axes, FEED, height - 0.45, f"B anchors and {references} representatives, images of {shape}", ha="left")
    _arrow(axes, [(FEED, height - 0.7), (FEED, rows[0]), (BODY[0], rows[0])])
    for number, (layer, y) in enumerate(zip(layers, rows, strict=True), start=1):
        _layer(axes, number, layer, y, references)
    for layer, y in zip(layers[1:], rows, strict=False):
        gap = y - (ROW + GAP) / 2
        _arrow(axes, [(BRANCH, y), (BRANCH, gap), (FEED, gap), (FEED, y - ROW - GAP), (BODY[0], y - ROW - GAP)])
        _text(axes, 2.5, gap, f"{layer['inputs']} values, stop gradient", behind=WHITE)
    _arrow(axes, [(SUM, rows[0]), (SUM, 0.6), (DISTANCES[1], 0.6)])
    _box(axes, DISTANCES, 0.6, "sum over layers,\nclosest class", linewidth=1.2)
    _arrow(axes, [(0.6, 0.6), (1.5, 0.6)])
    _text(axes, 1.7, 0.6, "forward", ha="left")
    _arrow(axes, [(3.6, 0.6), (4.5, 0.6)], **UPDATE)
    _text(axes, 4.7, 0.6, "gradient, in training only", ha="left")
    return figure


def _layer(axes: Axes, number: int, layer: Mapping[str, int], y: float, references: int) -> None:
    """Draw one layer in a frame that its gradient does not leave, and its distances to the references."""
    width, embedding = layer["width"], layer["embedding"]
    _box(axes, LAYER, y, "", half=ROW / 2, facecolor=PALE, edgecolor=GREY, zorder=0)
    _text(axes, BODY[0], y + 0.8, f"Layer {number}", ha="left", weight="bold")
    _box(axes, BODY, y, f"linear, ReLU, layer norm\n{layer['inputs']} → {width}")
    path = [BODY, PROJECTION, LOSS] if embedding else [BODY, LOSS]
    if embedding:
        _box(axes, PROJECTION, y, f"projection\n{width} → {embedding}")
    for (_, left), (right, _) in pairwise(path):
        _arrow(axes, [(left, y), (right, y)])
    _box(axes, LOSS, y, "tuplet\nloss", linewidth=1.2)
    _text(axes, BRANCH, y + 0.15, f"activation\n{width}", va="bottom")
    _text(axes, EMBEDDING - 0.9, y + 0.15, f"embedding\n{embedding or width}", va="bottom")
    loss, low, top = sum(LOSS) / 2, y - ROW / 2 + 0.2, y + 0.95
    for left, right in path[:-1]:
        middle = left + 0.75 * (right - left)
        _arrow(axes, [(loss, y - HALF), (loss, low), (middle, low), (middle, y - HALF)], **UPDATE)
    _arrow(axes, [(EMBEDDING, y), (EMBEDDING, top), (12.0, top), (12.0, y), (DISTANCES[0], y)])
    _box(axes, DISTANCES, y, f"distances to\n{references} references")
    _arrow(axes, [(DISTANCES[1], y), (SUM, y)], head=False)


def _text(axes: Axes, x: float, y: float, words: str, *, behind: str = "none", **style: Any) -> None:
    """Write words, on a patch of a colour where they interrupt a line."""
    style = {"fontsize": 7.0, "color": INK, "ha": "center", "va": "center", "zorder": 4, "linespacing": 1.1, **style}
    axes.text(x, y, words, bbox={"facecolor": behind, "edgecolor": "none", "pad": 1.5}, **style)


def _box(axes: Axes, place: tuple[float, float], y: float, words: str, *, half: float = HALF, **style: Any) -> None:
    """Draw a box with words, from left to right at height y."""
    from matplotlib.patches import Rectangle

    left, right = place
    style = {"facecolor": WHITE, "edgecolor": INK, "linewidth": 0.6, "zorder": 3, **style}
    axes.add_patch(Rectangle((left, y - half), right - left, 2 * half, **style))
    _text(axes, (left + right) / 2, y, words)


def _arrow(axes: Axes, points: Sequence[tuple[float, float]], *, head: bool = True, **style: Any) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    shape = "-|>,head_length=3.5,head_width=1.5" if head else "-"
    style = {"color": INK, "linewidth": 0.8, "zorder": 2, "joinstyle": "miter", "capstyle": "butt", **style}
    axes.add_patch(FancyArrowPatch(path=Path(points), arrowstyle=shape, mutation_scale=1, **style))
