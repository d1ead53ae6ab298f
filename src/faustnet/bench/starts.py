"""Measurements that are repeated in several new processes. On a GPU, the time of a step can differ from start to start."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from faustnet.bench import convolutions, steps
from faustnet.bench.measurement_cache import MeasurementCache, read_input
from faustnet.bench.steps import Case
from faustnet.nn.architectures import NetworkSettings

Work = Case | NetworkSettings  # a step of dense layers, or of these convolutional ones
UNITS = ("us", "seconds")  # the last words of the names of times


def measure(
    work: Sequence[Work],
    device: torch.device,
    seconds: float,
    starts: int,
    say: Callable[[str], None],
    cache: MeasurementCache,
) -> Iterator[dict[str, Any]]:
    """Yield one entry of the result file for each piece of work.

    With several starts, a time is the median over the starts, and the slowest stands beside it, as `…_worst_us`.
    """
    if starts == 1:
        yield from (_measured(piece, device, seconds) for piece in work)
        return
    found = []
    for number in range(1, starts + 1):
        say(f"start {number} of {starts} …")
        found.append(new_process(work, device, seconds, cache))
    yield from map(combined, zip(*found, strict=True))


def combined(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one entry from those of several starts."""
    line: dict[str, Any] = {}
    for name, value in lines[0].items():
        values, unit = [other[name] for other in lines], name.split("_")[-1]
        line[name] = statistics.median(values) if unit in UNITS else value
        if unit in UNITS:
            line[f"{name.removesuffix(unit)}worst_{unit}"] = max(values)
    return line | {"starts": len(lines)}


def _measured(work: Work, device: torch.device, seconds: float) -> dict[str, Any]:
    if isinstance(work, NetworkSettings):
        return convolutions.measure(work, device, seconds)
    sizes = {name: value for name, value in asdict(work).items() if name != "shape"}
    return {"device": device.type, **sizes, **steps.measure(work, device, seconds)}


def new_process(work: Sequence[Work], device: torch.device, seconds: float, cache: MeasurementCache) -> list[dict[str, Any]]:
    """Measure all pieces of work in a new process."""
    pieces = [{"type": type(piece).__name__, "fields": asdict(piece)} for piece in work]
    return cache.measure(__name__, {"device": str(device), "seconds": seconds, "work": pieces})


def main() -> None:
    """Measure the work that comes through the standard input."""
    given = read_input()
    types: dict[str, Callable[..., Work]] = {"Case": Case, "NetworkSettings": NetworkSettings}
    found = []
    for piece in given["work"]:
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in piece["fields"].items()}
        found.append(_measured(types[piece["type"]](**fields), torch.device(given["device"]), given["seconds"]))
    print(json.dumps(found))
