"""The summary of docs/performance.md, and that of README.md."""

from faustnet.report.tables import markdown as table
from paragraphs import listed
from performance_files import MACHINES, NOT_MEASURED, Line, Results, compared, convolutional, dense, ratio, span
from performance_steps import start_ranges
from performance_tables import TARGETS, arms, by_blocks


def costs(found: Results) -> str:
    """Return the most important ratios of the page. A row without a measurement is left out."""
    rows = [[title, text] for title, text in _costs(found).items() if text]
    columns = ["batch 256, width 800, embedding 256 unless stated", "FAUST ÷ backprop"]
    return table(columns, rows) if rows else NOT_MEASURED


def _costs(found: Results) -> dict[str, str]:
    h200 = MACHINES["h200"]
    rows = {
        f"training step, {h200}, bfloat16, {_starts(_bfloat16(found))}": by_depth(_bfloat16(found)),
        f"training step, {h200}, TF32 (the default), {_starts(_tf32(found))}": by_depth(_tf32(found)),
    }
    for line in found.lines("h200", "convolutions"):
        both = [compared(line, f"{sampled}wavefront") for sampled in ("", "sampled_")]
        network = f"{convolutional(line)}, batch {line['batch']}"
        rows[f"training step, {h200}, {network}, all representatives / one per class in a step"] = " / ".join(both)
    rows |= _on_cpu(found) | _predictions(found) | _trainings(found) | _memory(found)
    return rows


def _tf32(found: Results) -> list[Line]:
    return [line for line in found.lines("h200", "steps", "steps_in_other_precisions") if line["precision"] == "tf32"]


def _starts(lines: list[Line]) -> str:
    counts = {line.get("starts", 1) for line in lines}
    return f"median of {max(counts)} process starts (slowest)" if max(counts, default=1) > 1 else "one process start"


def _bfloat16(found: Results) -> list[Line]:
    return [line for line in found.lines("h200", "steps") if line["precision"] == "bfloat16"]


def by_depth(lines: list[Line]) -> str:
    return ", ".join(f"{compared(line, 'wavefront')} at {line['layers']} layers" for line in lines)


def _on_cpu(found: Results) -> dict[str, str]:
    """Return the steps of four layers with a small embedding and with 256."""
    small = [line for line in found.lines("cpu", "steps") if line["layers"] == 4]
    large = [line for line in found.lines("cpu", "scaling") if line["embedding"] == 256]
    lines = [*small[:1], *large[:1]]
    sizes = " / ".join(str(line["embedding"]) for line in lines)
    title = f"training step, {MACHINES['cpu']}, 4 layers, sequential, embedding {sizes}"
    return {title: " / ".join(ratio(line["sequential_us"], line["backprop_us"]) for line in lines)}


def _predictions(found: Results) -> dict[str, str]:
    rows = {}
    for name, machine in MACHINES.items():
        lines = [line for line in found.lines(name, "prediction") if len(line["widths"]) == 4]
        sizes = " / ".join(str(line["embedding"]) for line in lines)
        for prefix, how in (("", ""), ("recorded_", " as CUDA graphs")):
            times = [(line.get(f"{prefix}faust_ms"), line.get(f"{prefix}backprop_ms")) for line in lines]
            if times and all(map(all, times)):
                title = f"prediction{how}, {machine}, {dense(lines[0])}, embedding {sizes}"
                rows[title] = " / ".join(ratio(*pair) for pair in times)
    return rows


def _trainings(found: Results) -> dict[str, str]:
    rows = {}
    whole = dense_trainings(found)
    if whole:
        ours, plain = (whole[method]["seconds"] for method in ("faust-representative", "backprop"))
        line = whole["backprop"]
        title = f"{line['epochs']} epochs of CIFAR-10 with evaluations, {MACHINES['h200']}, {dense(line)}"
        rows[title] = f"{ratio(ours, plain)} ({ours:.1f} s, backprop {plain:.1f} s)"
    for network, target in TARGETS.items():
        compared_arms = [row for row in arms(found) if row["network"] == network and "over_backprop" in row]
        for row in compared_arms[:1]:
            title = f"training of CIFAR-10 to {100 * target:.0f} %, {MACHINES['h200']}, recipe `{network}` with fewer epochs"
            text = f"{row['over_backprop']:.2f} ({row['seconds']:.1f} s, "
            rows[title] = f"{text}backprop {row['seconds'] / row['over_backprop']:.1f} s)"
    return rows


def dense_trainings(found: Results) -> dict[str, Line]:
    """Return the trainings of dense networks on the H200, by method."""
    return {line["method"]: line for line in found.lines("h200", "training") if line.get("kind", "dense") == "dense"}


def _memory(found: Results) -> dict[str, str]:
    rows = {}
    for name, machine in MACHINES.items():
        depths = by_blocks(found.lines(name, "residual_memory"))
        title = f"peak memory without weights and optimiser state, {machine}, residual blocks, sequential / wavefront"
        rows[title] = ", ".join(
            " / ".join(ratio(lines[order]["beside"], lines["backprop"]["beside"]) for order in ("sequential", "wavefront"))
            + f" at {blocks} blocks"
            for blocks, lines in depths.items()
        )
    return rows


def speed_in_short(found: Results) -> str:
    """Return the paragraph and the table about speed of README.md."""
    ranges = start_ranges(found)
    if not ranges:
        return NOT_MEASURED
    columns = [f"{MACHINES['h200']}, bfloat16, layers of 800 units", *(f"{layers} layers" for layers in ranges)]
    count = max(line.get("starts", 1) for line in found.lines("h200", "steps"))
    titles = (f"FAUST ÷ backprop, time of a step, median of {count} process starts", "slowest start")
    rows = [[title, *(f"{ends[i]:.2f}" for ends in ranges.values())] for i, title in enumerate(titles)]
    return "\n\n".join(text for text in (_reading(ranges), table(columns, rows), _others(found)) if text)


def _reading(ranges: dict[int, tuple[float, float]]) -> str:
    faster = [str(layers) for layers, (_, slowest) in ranges.items() if slowest < 1]
    others = [str(layers) for layers in ranges if str(layers) not in faster]
    said = "The time of a training step varies from one process start to the next."
    if faster:
        said += f" Dense networks of {listed(faster)} layers were faster than with backprop in all measured starts."
    if others:
        said += f" Those of {listed(others)} layers were slower in at least one start."
    return said


def _others(found: Results) -> str:
    """List how a complete training, convolutional networks and a CPU compare with backprop."""
    said = []
    whole = dense_trainings(found)
    if whole:
        seconds = (whole[method]["seconds"] for method in ("faust-representative", "backprop"))
        line = whole["backprop"]
        said.append(
            f"{MACHINES['h200']}, {line['epochs']} epochs of CIFAR-10 with a network of {dense(line)} units, with start and "
            f"evaluations: {ratio(*seconds)}"
        )
    said += _convolutions(found, "h200", "wavefront_us")
    lines = found.lines("cpu", "steps")
    if lines:
        times = span([line["sequential_us"] / line["backprop_us"] for line in lines])
        said.append(f"{MACHINES['cpu']}, a step of dense networks with an embedding of {lines[0]['embedding']}: {times}")
    said += _convolutions(found, "cpu", "sequential_us")
    return "\n".join(["Other times, divided by those of backprop:", "", *(f"- {line}" for line in said)]) if said else ""


def _convolutions(found: Results, name: str, key: str) -> list[str]:
    """Say how steps of convolutional networks compare with backprop on a machine, with all representatives and with some."""
    said = []
    for prefix, how in (("", "all representatives"), ("sampled_", "one representative per class")):
        lines = [line for line in found.lines(name, "convolutions") if prefix + key in line]
        if lines:
            ratios = span([line[prefix + key] / line["backprop_us"] for line in lines])
            said.append(f"{MACHINES[name]}, a step of convolutional networks with {how}: {ratios}")
    return said
