"""The figure of classes that come over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from faustnet.errors import require
from faustnet.report.figures import CM, WIDTH, draw_curve, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {"all": "all classes so far", "old": "first classes", "new": "added classes"}


@drawing()
def draw_incremental(cells: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> Figure:
    """Draw accuracy by the number of classes so far: one panel each for all classes, the first ones and the added ones, with
    one curve per variant and a band of the 95 % interval. `titles` are those of the variants."""
    from matplotlib.figure import Figure

    require(bool(cells), "cells must contain the result of at least one run, got none.")
    figure = Figure(figsize=(WIDTH * CM, 7.6 * CM), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharex=True)
    for panel, (share, title) in zip(panels, PANELS.items(), strict=True):
        for number, variant in enumerate(titles):
            mine = [cell for cell in cells if cell["variant"] == variant and cell[share] is not None]
            if mine:
                means, halves = ([cell[share][key] for cell in mine] for key in ("mean", "interval"))
                curve = {
                    "label": titles[variant],
                    "epochs": [cell["classes"] for cell in mine],
                    "mean": means,
                    "std": halves,
                }
                draw_curve(panel, curve, number)
        panel.set(title=title, xlabel="classes so far")
        panel.grid(color="#dddddd", linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure
