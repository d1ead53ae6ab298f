"""The figure of docs/performance.md."""

from pathlib import Path
from typing import Any

from performance_files import MACHINES, Results
from performance_tables import RESIDUAL, by_blocks

COLOURS = {
    "backprop": "#000000",
    "backprop, checkpointed": "#CC79A7",
    "sequential": "#E69F00",
    "wavefront": "#0072B2",
    "greedy": "#009E73",
}
MARKERS = {"backprop": "o", "backprop, checkpointed": "v", "sequential": "s", "wavefront": "^", "greedy": "D"}


def caption(found: Results) -> str:
    """Say what the lines and bars of the figure are."""
    return "*Time of a step: the median of several process starts. Vertical bars: up to the slowest start.*"


def draw(found: Results, path: Path) -> None:
    """Draw the time of a step and the memory of training by depth."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "faustnet"  # the same file every time
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for panel, name in zip(panels[0], MACHINES, strict=True):
        _draw_steps(panel, found, name)
    _draw_memory(panels[1, 0], found)
    _draw_residual_memory(panels[1, 1], found)
    for panel in panels.flat:
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False)
        else:
            panel.text(0.5, 0.5, "not measured yet", ha="center", transform=panel.transAxes)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _label(system: str) -> str:
    return system if system.startswith("backprop") else f"FAUST, {system}"


def _plot(panel: Any, system: str, x: list[int], y: list[float]) -> None:
    if x:
        panel.plot(x, y, marker=MARKERS[system], color=COLOURS[system], label=_label(system))
        panel.set_xticks(x)


def _draw_steps(panel: Any, found: Results, name: str) -> None:
    lines = sorted(found.lines(name, "steps"), key=lambda line: line["layers"])
    depths = [line["layers"] for line in lines]
    unit, word = (1, "µs") if name == "h200" else (1000, "ms")
    for system in ("backprop", "sequential", "wavefront"):
        _plot(panel, system, depths, [line[f"{system}_us"] / unit for line in lines])
        slowest = {line["layers"]: line for line in lines if f"{system}_worst_us" in line}
        ends = ([line[f"{system}{end}_us"] / unit for line in slowest.values()] for end in ("", "_worst"))
        if slowest:
            panel.vlines(list(slowest), *ends, color=COLOURS[system], linewidth=5, alpha=0.35)
    precisions = "/".join(dict.fromkeys(line["precision"] for line in lines))
    panel.set_title(f"Training step, {MACHINES[name]}, {precisions}")
    panel.set_ylabel(f"time, {word}")
    panel.set_xlabel("layers (800 units each)")


def _draw_memory(panel: Any, found: Results) -> None:
    for system in ("backprop", "sequential", "wavefront", "greedy"):
        lines = [line for line in found.lines("h200", "memory") if line["system"] == system]
        _plot(panel, system, [line["layers"] for line in lines], [line["peak"] - line["weights"] for line in lines])
    panel.set_title(f"Memory of training dense layers, {MACHINES['h200']}")
    panel.set_ylabel("peak without the weights, MiB")
    panel.set_xlabel("layers (800 units each)")


def _draw_residual_memory(panel: Any, found: Results) -> None:
    """Draw the memory of residual networks on the H200, or without it on the CPU."""
    name = next((name for name in MACHINES if found.lines(name, "residual_memory")), "h200")
    depths = by_blocks(found.lines(name, "residual_memory"))
    for system in RESIDUAL:
        _plot(panel, system, list(depths), [lines[system]["beside"] for lines in depths.values()])
    panel.set_title(f"Memory of training residual blocks, {MACHINES[name]}")
    panel.set_ylabel("peak without weights\nand optimiser state, MiB")
    panel.set_xlabel("residual blocks")
