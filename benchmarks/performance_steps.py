"""The tables of docs/performance.md about the time of a training step."""

from collections.abc import Iterable
from typing import Any

from faustnet.report.tables import markdown as table
from performance_files import (
    MACHINES,
    NOT_MEASURED,
    Line,
    Results,
    compared,
    convolutional,
    measured_time,
    ratio,
    time,
)

COLUMNS = ("backprop", "FAUST sequential ÷ backprop", "FAUST wavefront ÷ backprop")
FEW_CLASSES = 10
SIZES = ("layers", "width", "embedding", "batch", "representatives", "precision")
STARTS = """Each time of a step by depth on the H200 is the median of {count} process starts, and the number in brackets is
the slowest start. Relative to its own median, the slowest start took at most {worst:.2f} times as long with the wavefront
({layers} layers) and {backprop:.2f} times with backprop."""


def step_rows(lines: Iterable[Line], label: str) -> list[list[str]]:
    return [
        [label.format(**line), measured_time(line), compared(line, "sequential"), compared(line, "wavefront")]
        for line in lines
    ]


def starts(found: Results) -> str:
    """Say how much several process starts differ."""
    lines = [line for line in found.lines("h200", "steps", "steps_in_other_precisions") if "starts" in line]
    if not lines:
        return NOT_MEASURED
    slowest = {system: max(lines, key=lambda line: excess(line, system)) for system in ("wavefront", "backprop")}
    return STARTS.format(
        count=" or ".join(str(count) for count in sorted({line["starts"] for line in lines})),
        worst=excess(slowest["wavefront"], "wavefront"),
        layers=slowest["wavefront"]["layers"],
        backprop=excess(slowest["backprop"], "backprop"),
    )


def excess(line: Line, system: str) -> float:
    """Return the time of the slowest start divided by the median."""
    return line[f"{system}_worst_us"] / line[f"{system}_us"]


def start_ranges(found: Results) -> dict[int, tuple[float, float]]:
    """Return wavefront ÷ backprop on the H200 in bfloat16 by depth: the median and the slowest of the starts."""
    lines = [line for line in found.lines("h200", "steps") if line["precision"] == "bfloat16"]
    times = ((line, [line[name] for name in ("wavefront_us", "wavefront_worst_us") if name in line]) for line in lines)
    return {line["layers"]: (us[0] / line["backprop_us"], us[-1] / line["backprop_us"]) for line, us in times}


def steps(found: Results) -> str:
    rows = []
    for name, machine in MACHINES.items():
        for line in found.lines(name, "steps", "steps_in_other_precisions"):
            (row,) = step_rows([line], f"{machine}, {{layers}} layers, embedding {{embedding}}, {{precision}}")
            rows.append([*row, str(line.get("starts", 1))])
    return table(["batch 256, width 800", *COLUMNS, "starts"], rows) if rows else NOT_MEASURED


def compiled(found: Results) -> str:
    rows = [
        [
            f"{line['layers']} layers",
            time(line["backprop_us"]),
            time(line["backprop_compiled_us"]),
            time(line["wavefront_us"]),
            ratio(line["wavefront_us"], line["backprop_compiled_us"]),
        ]
        for line in found.lines("h200", "steps")
        if "backprop_compiled_us" in line
    ]
    columns = ["H200, bfloat16", "backprop", "backprop, compiled", "wavefront", "wavefront ÷ compiled"]
    return table(columns, rows) if rows else NOT_MEASURED


def scaling(found: Results) -> str:
    rows = []
    for name, machine in MACHINES.items():
        lines = found.lines(name, "scaling")
        for line in lines:
            rows += step_rows([line], f"**{machine}**: {_base(line)}" if line is lines[0] else changed(line, lines[0]))
    return table(["network", *COLUMNS], rows) if rows else NOT_MEASURED


def _base(line: Line) -> str:
    classes, representatives = line["classes"], line["representatives"]
    sizes = f"{line['layers']} × {line['width']}, batch {line['batch']}, embedding {line['embedding']}"
    return f"{sizes}, {classes} classes, {representatives} representative"


def changed(line: Line, first: Line) -> str:
    """Name the one size in which a line differs from the first."""
    names = ("width", "batch", "embedding", "classes", "representatives")
    (name,) = (name for name in names if line[name] != first[name])
    if name in ("classes", "representatives"):
        return f"{line[name]:,} {name}{', those of the batch in a step' if _by_batch(line) else ''}"
    return f"{name} {line[name]:,}"


def _by_batch(line: Line) -> bool:
    return line.get("classes_per_step") == "batch"


def many_classes(found: Results) -> str:
    """Return steps with many classes, divided by the same step with the fewest classes."""
    rows = []
    for name, machine in MACHINES.items():
        for first, *lines in class_lines(found, name):
            for line in [first, *lines]:
                compared_with = "those of the batch" if _by_batch(line) else "all"
                cells = [_relative(line, first, system) for system in ("backprop", "sequential", "wavefront")]
                label = f"{machine}, {line['precision']}, {line['classes']:,} classes"
                rows.append([label, compared_with, *cells, str(line.get("starts", 1))])
    columns = ["4 × 800, batch 256", "classes in a step", "backprop", "FAUST sequential", "FAUST wavefront", "starts"]
    return table(columns, rows) if rows else NOT_MEASURED


def class_lines(found: Results, machine: str) -> list[list[Line]]:
    """Return steps with few and with many classes on one machine, in each precision those with the fewest classes first."""
    lines = found.lines(machine, "steps_with_many_classes") or found.lines(machine, "scaling")
    sizes = [tuple(line[size] for size in SIZES) for line in lines if line["classes"] > FEW_CLASSES]
    alike = [[line for line in lines if tuple(line[size] for size in SIZES) == wanted] for wanted in dict.fromkeys(sizes)]
    groups = [sorted(group, key=lambda line: line["classes"]) for group in alike]
    return [group for group in groups if group[0]["classes"] <= FEW_CLASSES]


def _relative(line: Line, first: Line, system: str) -> str:
    if line is first:
        return measured_time(line, system)
    worst, whole = line.get(f"{system}_worst_us"), first[f"{system}_us"]
    return ratio(line[f"{system}_us"], whole) + (f" ({ratio(worst, whole)})" if worst else "")


def convolutions(found: Results) -> str:
    rows = []
    for machine, line in found.each("convolutions"):
        (row,) = step_rows([line], f"{machine}, {convolutional(line)}, batch {line['batch']}, {line['precision']}")
        sampled: list[Any] = [compared(line, f"sampled_{order}") for order in ("sequential", "wavefront")]
        rows.append([*row, *sampled, str(line.get("starts", 1))])
    columns = [
        "network",
        "backprop",
        "sequential",
        "wavefront",
        "sequential, 1 per step",
        "wavefront, 1 per step",
        "starts",
    ]
    return table(columns, rows) if rows else NOT_MEASURED
