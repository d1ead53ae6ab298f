"""The figures of the paper, drawn from plain numbers and words."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from faustnet.errors import FaustnetError, require
from faustnet.report.architecture import CM, draw_architecture
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 16.0  # centimetres on paper
MARGIN, HEADING, WIDEST = 0.2, 0.6, 10.0  # between panels, above a panel, and the largest side of a panel
DPI = 200
STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.linewidth": 0.6,
    "legend.fontsize": 7.5,
    "text.parse_math": False,  # a class may be called $5
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "faustnet",  # the same file every time
}

# Colours of the classes of Fashion-MNIST in the paper.
CLASS_COLOURS = (
    "#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#AA4499", "#44AA99", "#999933", "#882255", "#661100",
)  # fmt: skip
# Marker shapes and sizes; the sizes make all look equally large.
CLASS_SHAPES = (
    ("o", 1.0), ("s", 0.9), ("^", 1.1), ("D", 0.8), ("v", 1.1), ("P", 1.1), ("X", 1.1), ("<", 1.1), ("*", 1.45), (">", 1.1),
)  # fmt: skip
MANY = 2000  # points in a panel above which an SVG file contains a picture of them

# Colours of Okabe and Ito; with five line styles, the first 35 curves differ.
CURVE_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#000000", "#0072B2", "#CC79A7")
CURVE_LINES: tuple[Any, ...] = ((0, (1, 1)), (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (2.5, 1.2)), "-")
CURVE_SHAPES = ("o", "s", "^", "D", "v")
SHAPES = 6  # markers on a curve, about


@contextmanager
def drawing() -> Iterator[None]:
    """Use one style, independent of the user's matplotlib settings."""
    try:
        from matplotlib import style
    except ImportError:
        raise FaustnetError("Figures need matplotlib: install it with pip install 'faustnet[figures]'.") from None
    with style.context(["default", STYLE]):
        yield


figure1 = drawing()(draw_architecture)


@drawing()
def figure2(facts: Mapping[str, Any]) -> Figure:
    """Draw a map of the embeddings of each layer, coloured by class, with its Fisher score.

    Up to three panels share a row; four take two rows, because smaller markers would be hard to tell apart.
    """
    from matplotlib.figure import Figure

    layers, names = facts["layers"], facts["class_names"]
    require(bool(layers and facts["labels"]), "facts must contain the points of at least one layer, got none.")
    columns = len(layers) if len(layers) < 4 else 2 if len(layers) == 4 else 3
    rows = math.ceil(len(layers) / columns)
    side = min((WIDTH - MARGIN) / columns - MARGIN, WIDEST)
    left = (WIDTH - columns * (side + MARGIN) + MARGIN) / 2
    key_columns = int(np.clip(WIDTH / (1 + 0.15 * max(map(len, names))), 1, 5))
    height = rows * (side + HEADING) + 0.4 * math.ceil(len(names) / key_columns) + 2 * MARGIN
    figure = Figure(figsize=(WIDTH * CM, height * CM))
    for number, layer in enumerate(layers):
        row, column = divmod(number, columns)
        x, y = left + column * (side + MARGIN), height - (row + 1) * (side + HEADING)
        panel = figure.add_axes((x / WIDTH, y / height, side / WIDTH, side / height))
        _scatter(panel, np.asarray(layer["points"]), np.asarray(facts["labels"]), len(names), side)
        panel.set_title(f"Layer {number + 1}", pad=4)
        corner: dict[str, Any] = {"transform": panel.transAxes, "ha": "right", "va": "top"}
        fisher = f"{layer['fisher']:.2f}" if math.isfinite(layer["fisher"]) else "∞"
        panel.text(0.97, 0.97, f"F = {fisher}", **corner, bbox={"fc": "white", "ec": "none", "pad": 1.5})
    _key(figure, names, key_columns)
    return figure


def _mark(number: int) -> tuple[str, str, float]:
    """Return colour, marker shape and size of a class; a colour that is used again has another shape."""
    turn, colour = divmod(number, len(CLASS_COLOURS))
    return CLASS_COLOURS[colour], *CLASS_SHAPES[(colour + turn) % len(CLASS_SHAPES)]


def _scatter(panel: Axes, points: np.ndarray, labels: np.ndarray, classes: int, side: float) -> None:
    """Draw the points of one layer; fewer points are larger."""
    area = float(np.clip(0.32 * (side * CM * 72) ** 2 / len(labels), 2, 20))
    for number in range(classes):
        colour, shape, scale = _mark(number)
        x, y = points[labels == number].T
        edge: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.07 * math.sqrt(area)}
        panel.scatter(x, y, area * scale**2, color=colour, marker=shape, rasterized=len(labels) > MANY, **edge)
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, 0.54 * max(*(high - low), 1e-9)
    panel.set(xlim=middle[0] + (-half, half), ylim=middle[1] + (-half, half), xticks=[], yticks=[])


def _key(figure: Figure, names: Sequence[str], columns: int) -> None:
    """Draw one legend for all panels."""
    from matplotlib.lines import Line2D

    handles = []
    for colour, shape, scale in map(_mark, range(len(names))):
        handles.append(Line2D([], [], color=colour, marker=shape, markersize=5 * scale, markeredgewidth=0, linestyle="none"))
    where: dict[str, Any] = {"loc": "lower center", "ncols": columns, "frameon": False}
    legend = figure.legend(handles, ["class"] * len(names), **where, handletextpad=0.2, borderpad=0.2)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)  # a legend omits labels that begin with an underscore


@drawing()
def figure3(facts: Mapping[str, Any]) -> Figure:
    """Draw test accuracy by epoch, with one panel per method and one curve per set of layers."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = [(panel["title"], [curve for curve in panel["curves"] if _known(curve)]) for panel in facts["panels"]]
    labels = list(dict.fromkeys(curve["label"] for _, curves in panels for curve in curves))
    require(bool(labels), "facts must contain the accuracies of at least one run, got none.")
    figure = Figure(figsize=(WIDTH * CM, 7.6 * CM), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False).ravel()
    for panel, (title, curves) in zip(axes, panels, strict=True):
        for curve in curves:
            draw_curve(panel, curve, labels.index(curve["label"]))
        panel.set(title=title, xlabel="epoch")
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        panel.grid(color="#dddddd", linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
        if curves:  # below the panel, so that the legend hides no curve
            place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
            panel.legend(**place, handlelength=3.2, columnspacing=1.2, frameon=False)
    axes[0].set_ylabel("test accuracy, %")
    return figure


def _known(curve: Mapping[str, Any]) -> list[int]:
    """Return the positions at which a curve has a value."""
    return [place for place, value in enumerate(curve["mean"]) if value is not None]


def draw_curve(panel: Axes, curve: Mapping[str, Any], number: int) -> None:
    """Draw one curve and, for several seeds, a band on either side whose width is `std`."""
    known = _known(curve)
    epochs, mean = (np.array([curve[key][place] for place in known], dtype=float) for key in ("epochs", "mean"))
    std = np.array([curve["std"][place] or 0.0 for place in known])
    colour, line = CURVE_COLOURS[number % len(CURVE_COLOURS)], CURVE_LINES[number % len(CURVE_LINES)]
    shape, step = CURVE_SHAPES[number % len(CURVE_SHAPES)], max(1, len(known) // SHAPES)
    marks: dict[str, Any] = {"marker": shape, "markersize": 2.8}
    marks["markevery"] = (number * step // len(CURVE_SHAPES) % step, step)
    panel.plot(epochs, mean, color=colour, linestyle=line, linewidth=1.2, label=curve["label"], **marks)
    if std.any():
        panel.fill_between(epochs, mean - std, mean + std, color=colour, alpha=0.25, linewidth=0)


@drawing()
def draw_choices(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw accuracy by the number of references, with one panel per data set and one curve per kind of reference.

    Every random choice of a single representative is shown as a mark.
    """
    from matplotlib.figure import Figure

    require(bool(points), "points must contain the result of at least one run, got none.")
    datasets = list(dict.fromkeys(point["dataset"] for point in points))
    kinds = list(dict.fromkeys(point["kind"] for point in points))
    figure = Figure(figsize=(WIDTH * CM, 7.6 * CM), layout="constrained")
    for panel, dataset in zip(figure.subplots(1, len(datasets), squeeze=False).ravel(), datasets, strict=True):
        for number, kind in enumerate(kinds):
            mine = [point for point in points if (point["dataset"], point["kind"]) == (dataset, kind)]
            mine.sort(key=lambda point: point["count"])
            place: dict[str, Any] = {"label": kind, "epochs": [point["count"] for point in mine]}
            draw_curve(panel, {**place, "mean": [p["mean"] for p in mine], "std": [p["std"] for p in mine]}, number)
            draws = [accuracy for point in mine if point["count"] == 1 for accuracy in point["accuracies"]]
            if kind == "random":
                panel.plot([1] * len(draws), draws, "_", color=CURVE_COLOURS[number], markersize=6, alpha=0.7)
        _counts_axis(panel, sorted({point["count"] for point in points}))
        panel.set(title=dataset, xlabel="references per class")
    figure.axes[0].set_ylabel("test accuracy, %")
    return figure


@drawing()
def draw_class_counts(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw accuracy by the number of classes, with one curve per role of a recipe."""
    from matplotlib.figure import Figure

    require(bool(points), "points must contain the result of at least one run, got none.")
    figure = Figure(figsize=(WIDTH / 2 * CM, 7.6 * CM), layout="constrained")
    panel = figure.subplots()
    for number, role in enumerate(dict.fromkeys(point["role"] for point in points)):
        mine = sorted((point for point in points if point["role"] == role), key=lambda point: point["count"])
        place: dict[str, Any] = {"label": role, "epochs": [point["count"] for point in mine]}
        draw_curve(panel, {**place, "mean": [p["mean"] for p in mine], "std": [p["std"] for p in mine]}, number)
    _counts_axis(panel, sorted({point["count"] for point in points}))
    panel.set(title=points[0]["of"], xlabel="classes", ylabel="test accuracy, %")
    return figure


def _counts_axis(panel: Axes, counts: Sequence[int]) -> None:
    """Put numbers on a logarithmic axis, and a legend into the panel."""
    panel.set_xscale("log")
    panel.set_xticks(counts, labels=list(map(str, counts)), minor=False)
    panel.set_xticks([], minor=True)
    panel.grid(color="#dddddd", linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)


@drawing()
def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a figure as NAME.png and NAME.svg, or as files of other kinds. The same numbers give the same files."""
    settings: dict[str, dict[str, Any]] = {
        "png": {"dpi": DPI},
        "svg": {"dpi": 2 * DPI, "metadata": {"Date": None}},
        "pdf": {"dpi": 2 * DPI, "metadata": {"CreationDate": None}},
    }
    drawn = {folder / f"{name}.{kind}": io.BytesIO() for kind in kinds}
    for kind, file in zip(kinds, drawn.values(), strict=True):
        figure.savefig(file, format=kind, **settings[kind])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, file in drawn.items():
            write_whole(path, file.getvalue())
    except OSError as error:
        raise FaustnetError(f"{folder} could not be written to ({error.strerror}): choose another folder.") from None
    return list(drawn)
