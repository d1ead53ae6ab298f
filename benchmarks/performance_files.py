"""The result files of docs/performance.md, and how their times and sizes are written on the page."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
MACHINES = {"h200": "H200", "cpu": "2 CPU cores"}
NOT_MEASURED = "*Not measured yet.*"
OWN_MODEL = "own-model-h200.json"
TIME_TO_ACCURACY = "time-to-accuracy-h200.json"
FILES = {
    "bench-h200.json": "dense networks",
    "bench-h200-convolutions.json": "convolutional networks",
    TIME_TO_ACCURACY: "time to an accuracy",
    OWN_MODEL: "a model of your own",
    "bench-cpu.json": "dense networks, memory",
    "bench-cpu-convolutions.json": "convolutional networks",
}
Line = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """Everything that the page shows.

    Args:
        machines: The parts of `faustnet bench` on each machine, by the keys of MACHINES.
        files: Each file that exists, by its name.
    """

    machines: dict[str, dict[str, Any]]
    files: dict[str, dict[str, Any]]

    def lines(self, machine: str, *parts: str) -> list[Line]:
        """Return the lines of some parts on one machine. A part that was not measured has none."""
        return [line for part in parts for line in self.machines[machine].get(part, [])]

    def each(self, part: str) -> Iterator[tuple[str, Line]]:
        """Yield the name of the machine and each line of a part."""
        for machine, title in MACHINES.items():
            for line in self.lines(machine, part):
                yield title, line


def read(folder: Path = RESULTS) -> Results:
    """Read the result files in a folder. A missing file counts as one without measurements."""
    paths = {name: folder / name for name in FILES}
    files = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}
    machines = {
        name: {**files.get(f"bench-{name}-convolutions.json", {}), **files.get(f"bench-{name}.json", {})}
        for name in MACHINES
    }
    return Results(machines, files)


def time(us: float) -> str:
    return f"{us:,.0f} µs" if us < 10_000 else f"{us / 1000:,.1f} ms"


def ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}"


def measured_time(line: Line, system: str = "backprop") -> str:
    """Return the time of a step, with the slowest start in brackets."""
    worst = line.get(f"{system}_worst_us")
    return time(line[f"{system}_us"]) + (f" ({time(worst)})" if worst else "")


def compared(line: Line, system: str) -> str:
    """Return the time of a step divided by backprop's, with the slowest start in brackets."""
    if f"{system}_us" not in line:
        return "–"
    worst = line.get(f"{system}_worst_us")
    return ratio(line[f"{system}_us"], line["backprop_us"]) + (f" ({ratio(worst, line['backprop_us'])})" if worst else "")


def span(values: list[float]) -> str:
    """Return the lowest and the highest of some ratios."""
    low, high = (f"{value:.2f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def dense(line: Line) -> str:
    """Name a dense network by the number and the width of its layers."""
    return f"{len(line['widths'])} × {line['widths'][0]}"


def convolutional(line: Line) -> str:
    """Name a convolutional network."""
    return f"{line['kind']} {'-'.join(map(str, line['widths']))}, heads of {line['head']} channels"
