"""The charts of a report as figures for papers and slides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from faustnet.errors import require
from faustnet.report.architecture import CM
from faustnet.report.curves import Facts, by_class, first_layers, training_curves
from faustnet.report.figures import CURVE_COLOURS, CURVE_LINES, CURVE_SHAPES, WIDTH, drawing, figure2, save
from faustnet.report.page import named_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 8.0  # centimetres
MANY = 40  # classes above which a confusion matrix has no numbers
TINT = {"right": "#4c9be0", "wrong": "#f08a4b"}


def write_charts(runs: list[dict[str, Any]], folder: Path, say: Callable[[str], None]) -> None:
    """Write every chart as an SVG and a PDF file, and `say` the name of each."""
    for name, figure in draw_charts(named_apart(runs)):
        say(name)
        save(figure, folder, name, ("svg", "pdf"))


def draw_charts(runs: Sequence[Facts]) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of every chart. With several runs, the charts of one begin with its number."""
    for key, title in (("accuracy", "accuracy, %"), ("loss", "training loss")):
        yield key, _training(runs, key, title)
    for number, run in enumerate(runs, start=1):
        before = f"{number}-" if len(runs) > 1 else ""
        if len(run["metrics"]["voters"]) > 1:
            yield f"{before}layers", _by_layer(run)
        if run["early_exit"]:
            yield f"{before}early-exit", _early_exit(run)
        yield f"{before}embeddings", _embeddings(run)
        yield f"{before}confusion", _confusion(run)
        yield f"{before}classes", _classes(run)


def _axes(height: float = HEIGHT, width: float = WIDTH) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * CM, height * CM), layout="constrained")
    axes = figure.subplots()
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], number: int, label: str) -> None:
    look = {"color": CURVE_COLOURS[number % len(CURVE_COLOURS)], "linestyle": CURVE_LINES[number % len(CURVE_LINES)]}
    (line,) = axes.plot(x, y, **look, marker=CURVE_SHAPES[number % len(CURVE_SHAPES)], markersize=3.5, linewidth=1.2)
    line.set_label(label)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        legend = axes.legend(handles, ["curve"] * len(labels), loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set_text(label)  # a legend omits labels that begin with an underscore


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


@drawing()
def _training(runs: Sequence[Facts], key: str, title: str) -> Figure:
    """Draw accuracy or loss by epoch, one curve per layer or output of each run."""
    figure, axes = _axes()
    number = 0
    for run in runs:
        epochs = [epoch["epoch"] for epoch in run["history"]]
        for curve in training_curves(run):
            known = [place for place, value in enumerate(curve[key]) if value is not None]
            label = f"{run['name']}, {curve['name']}" if len(runs) > 1 else curve["name"]
            if known:
                _line(axes, [epochs[place] for place in known], [curve[key][place] for place in known], number, label)
            number += 1
    axes.set(xlabel="epoch", ylabel=title)
    _whole_numbers(axes)
    _legend(axes)
    return figure


@drawing()
def _by_layer(run: Facts) -> Figure:
    """Draw the accuracy of each layer alone and of the first layers together."""
    figure, axes = _axes()
    found = run["evaluation"]
    numbers = range(1, len(found["layer_accuracy"]) + 1)
    for place, (key, label) in enumerate((("first_layers_accuracy", "first layers together"), ("layer_accuracy", "alone"))):
        values = [100 * value for value in found[key]]
        _line(axes, numbers, values, 4 - place, label)
        for x, y in zip(numbers, values, strict=True):
            aside = (0, 5 if place else -11)
            axes.annotate(f"{y:.2f}", (x, y), xytext=aside, textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(numbers, [f"{number}\n{name}" for number, name in zip(numbers, first_layers(len(numbers)), strict=True)])
    axes.set(xlabel="layer", ylabel="test accuracy, %")
    axes.margins(y=0.15)
    _legend(axes)
    return figure


@drawing()
def _early_exit(run: Facts) -> Figure:
    """Draw accuracy by the multiplications that early exit saves."""
    figure, axes = _axes()
    lines = run["early_exit"]
    _line(axes, [100 * line["saved"] for line in lines], [100 * line["accuracy"] for line in lines], 4, "")
    axes.set(xlabel="multiplications saved by early exit, %", ylabel="test accuracy, %")
    return figure


def _embeddings(run: Facts) -> Figure:
    """Draw the maps of all layers."""
    layers = [
        {"points": layer["map"], "fisher": math.inf if layer["fisher"] is None else layer["fisher"]}
        for layer in run["layers"]
    ]
    return figure2({"layers": layers, "labels": run["labels"][: run["mapped"]], "class_names": run["class_names"]})


@drawing()
def _confusion(run: Facts) -> Figure:
    """Draw the confusion matrix. Errors are shaded by the root of their share, so that rare ones are seen."""
    from matplotlib.colors import to_rgb

    counts, names = np.array(run["evaluation"]["confusion"]), run["class_names"]
    side = float(np.clip(0.9 * len(names) + 3, 8, WIDTH))
    figure, axes = _axes(side, side)
    axes.grid(visible=False)
    shares = counts / counts.sum(axis=1, keepdims=True).clip(1)
    shades = np.where(np.eye(len(names), dtype=bool), shares, np.sqrt(shares))[..., None] * 0.75
    right = np.eye(len(names), dtype=bool)[..., None]
    colours = np.where(right, to_rgb(TINT["right"]), to_rgb(TINT["wrong"]))
    axes.imshow(1 - shades * (1 - colours))
    size = float(np.clip(90 / len(names), 3, 8))
    if len(names) <= MANY:
        for row, column in zip(*counts.nonzero(), strict=True):
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=size)
    places = range(len(names))
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 3 else 0, fontsize=size)
    axes.set_yticks(places, names, fontsize=size)
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


@drawing()
def _classes(run: Facts) -> Figure:
    """Draw the accuracy of each class as a bar."""
    found = by_class(run["evaluation"]["confusion"], run["class_names"])
    size = float(np.clip(160 / len(found), 3, 8))
    figure, axes = _axes(max(4.0, min(0.55 * len(found), 22.0) + 1.5))
    places = range(len(found))
    axes.barh(places, [100 * (one.accuracy or 0.0) for one in found], color=TINT["right"], height=0.7)
    for place, one in zip(places, found, strict=True):
        shown = "no test images" if one.accuracy is None else f"{100 * one.accuracy:.2f}"
        axes.text(100 * (one.accuracy or 0.0) + 0.5, place, shown, va="center", fontsize=size)
    axes.set_yticks(places, [one.name for one in found], fontsize=size)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="test accuracy, %", xlim=(0, 108))
    return figure


def check_charts(folder: Path) -> None:
    """Raise an error if charts cannot be drawn or written to this folder, before the work of making them."""
    with drawing():  # an error if matplotlib is missing
        pass
    require(not folder.exists() or folder.is_dir(), f"--charts must be a folder, got the file {folder}.")
