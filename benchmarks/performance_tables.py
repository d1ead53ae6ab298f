"""The tables of docs/performance.md about memory, predictions, complete trainings, and the result files themselves."""

import json
import statistics
from typing import Any

from faustnet.report.tables import markdown as table
from performance_files import (
    FILES,
    MACHINES,
    NOT_MEASURED,
    OWN_MODEL,
    TIME_TO_ACCURACY,
    Line,
    Results,
    convolutional,
    dense,
    ratio,
)

TARGETS = {"cnn": 0.94, "cnn-large": 0.96}  # accuracies to reach, by the recipe under best/cifar10/
BACKPROP = "-backprop"  # end of the names of arms that are trained by backprop
RESIDUAL = ("backprop", "backprop, checkpointed", "sequential", "wavefront")
PIXELS = 3 * 32 * 32  # of an image in the benchmark of predictions
OWN = """For {blocks} `torch.nn.TransformerEncoderLayer` blocks of width {width} with {tokens} tokens, batch {batch}, on the
{machine}, a step of the wavefront took {times} (`results/{file}`{note})."""


def memory(found: Results) -> str:
    cpu = {(line["system"], line["layers"]): line for line in found.lines("cpu", "memory")}
    rows = []
    for line in found.lines("h200", "memory"):
        parts = [f"{line[part]:,.0f}" for part in ("weights", "gradients", "optimiser", "activations", "cached", "peak")]
        other = cpu.get((line["system"], line["layers"]))
        rows.append([f"{line['system']}, {line['layers']} layers", *parts, f"{other['peak']:,.0f}" if other else "–"])
    columns = ["MiB", "weights", "gradients", "optimiser", "activations", "cached", "peak, H200", "peak, CPU"]
    return table(columns, rows) if rows else NOT_MEASURED


def by_blocks(lines: list[Line]) -> dict[int, dict[str, Line]]:
    """Return the lines of residual networks by the number of blocks and the system, from few blocks to many."""
    found: dict[int, dict[str, Line]] = {}
    for line in sorted(lines, key=lambda line: line["blocks"]):
        found.setdefault(line["blocks"], {})[line["system"]] = line
    return found


def residual_memory(found: Results) -> str:
    rows = []
    for name, machine in MACHINES.items():
        for blocks, systems in by_blocks(found.lines(name, "residual_memory")).items():
            first, beside = systems["backprop"], {system: line["beside"] for system, line in systems.items()}
            label = f"{machine}, {blocks} blocks of {first['channels']} channels or more, batch {first['batch']}"
            shares = [ratio(beside[system], beside["backprop"]) for system in RESIDUAL[1:]]
            rows.append([label, *(f"{beside[system]:,.0f}" for system in RESIDUAL), *shares])
    names = ("backprop", "checkpointed", "FAUST sequential", "FAUST wavefront")
    shares = (f"{name} ÷ backprop" for name in ("checkpointed", "sequential", "wavefront"))
    return table(["MiB", *names, *shares], rows) if rows else NOT_MEASURED


def convolution_memory(found: Results) -> str:
    systems = ("backprop", "sequential", "wavefront")
    rows = []
    for machine, line in found.each("convolutions"):
        sizes = [line.get(f"{system}_beside_mib") for system in systems]
        if None not in sizes:
            cells = [*(f"{size:,.0f}" for size in sizes), *(ratio(size, sizes[0]) for size in sizes[1:])]
            rows.append([f"{machine}, {convolutional(line)}, batch {line['batch']}", *cells])
    columns = ["MiB", "backprop", "FAUST sequential", "FAUST wavefront", "sequential ÷ backprop", "wavefront ÷ backprop"]
    return table(columns, rows) if rows else NOT_MEASURED


def products(line: Line) -> float:
    """Return the multiplications of the projections, divided by those of the layers."""
    pairs = zip((PIXELS, *line["widths"]), line["widths"], strict=False)
    return sum(line["widths"]) * line["embedding"] / sum(one * other for one, other in pairs)


def prediction(found: Results) -> str:
    rows = []
    for machine, line in found.each("prediction"):
        recorded = [line.get(f"recorded_{name}_ms") for name in ("backprop", "faust")]
        cells = ["–", "–"] if None in recorded else [f"{recorded[0]:.2f} ms", ratio(recorded[1], recorded[0])]
        rows.append(
            [
                f"{machine}, {dense(line)}, embedding {line['embedding']}",
                f"{100 * products(line):.0f} %",
                f"{line['backprop_ms']:.1f} ms",
                ratio(line["faust_ms"], line["backprop_ms"]),
                *cells,
                f"{line['forward_forward_ms'] / line['faust_ms']:.1f}",
            ]
        )
    graph = ("backprop, CUDA graph", "FAUST ÷ backprop, CUDA graphs")
    columns = ["10,000 images", "projections", "backprop", "FAUST ÷ backprop", *graph, "Forward-Forward ÷ FAUST"]
    return table(columns, rows) if rows else NOT_MEASURED


def early_exit(found: Results) -> str:
    rows = [
        [
            "no early exit" if line["threshold"] is None else f"{line['threshold']:.2f}",
            f"{line['validation_accuracy'] * 100:.2f}",
            f"{line['test_accuracy'] * 100:.2f}",
            f"{line['saved'] * 100:.0f} %",
        ]
        for line in found.machines["cpu"].get("early_exit", {}).get("thresholds", [])
    ]
    columns = ["exit margin", "validation accuracy, %", "test accuracy, %", "multiplications saved"]
    return table(columns, rows) if rows else NOT_MEASURED


def training(found: Results) -> str:
    rows = []
    for name, machine in MACHINES.items():
        lines = found.lines(name, "training")
        plain = {training_key(line): line["seconds"] for line in lines if line["method"] == "backprop"}
        for line in lines:
            compared = line["method"] != "backprop" and training_key(line) in plain
            network = line.get("kind", "dense")
            rows.append(
                [
                    f"{machine}, {dense(line) if network == 'dense' else network}, `{line['method']}`, {line['schedule']}",
                    str(line["epochs"]),
                    f"{line['seconds']:.2f} s",
                    ratio(line["seconds"], plain[training_key(line)]) if compared else "–",
                    f"{line['whole_seconds']:.2f} s",
                    *(_seconds(line, part) for part in ("other", "first_epoch", "epoch")),
                    str(line.get("starts", 1)),
                ]
            )
    columns = ["CIFAR-10", "epochs", "time", "÷ backprop", "with set-up", "not training", "first epoch", "others", "starts"]
    return table(columns, rows) if rows else NOT_MEASURED


def training_key(line: Line) -> tuple[str, int]:
    """Return what two trainings that are compared have in common."""
    return line.get("kind", "dense"), line["epochs"]


def _seconds(line: Line, part: str) -> str:
    return f"{line[f'{part}_seconds']:.2f} s" if f"{part}_seconds" in line else "–"


def arms(found: Results) -> list[dict[str, Any]]:
    """Return the means over the seeds of each arm of the time to an accuracy, by network, the fastest first.

    `over_backprop` is missing unless the arm and an arm of backprop reached the target of their network, and backprop missed
    it in a shorter training: otherwise backprop may need less time than was measured.
    """
    groups: dict[tuple[str, str, int], list[Line]] = {}
    for run in found.files.get(TIME_TO_ACCURACY, {}).get("runs", []):
        groups.setdefault((run["arm"], _settings(run["recipe"]), run["epochs"]), []).append(run)
    rows = []
    for (arm, settings, epochs), runs in groups.items():
        network, accuracies = arm.removesuffix(BACKPROP), [run["accuracy"] for run in runs]
        mean = statistics.mean(accuracies)
        rows.append(
            {
                "network": network,
                "is_backprop": arm.endswith(BACKPROP),
                "settings": settings,
                "epochs": epochs,
                "seeds": len(runs),
                "accuracy": mean,
                "std": statistics.stdev(accuracies) if len(runs) > 1 else None,
                "seconds": statistics.mean(run["seconds"] for run in runs),
                "reached": mean >= TARGETS[network],
                "first_epoch_seconds": statistics.mean(run["first_epoch_seconds"] for run in runs),
            }
        )
    for row in rows:
        theirs = [one for one in rows if one["network"] == row["network"] and one["is_backprop"]]
        times = [one["seconds"] for one in theirs if one["reached"]]
        missed = [one["seconds"] for one in theirs if not one["reached"]]
        if row["reached"] and not row["is_backprop"] and times and any(seconds < min(times) for seconds in missed):
            row["over_backprop"] = row["seconds"] / min(times)
    return sorted(rows, key=lambda row: (list(TARGETS).index(row["network"]), row["seconds"]))


def _settings(recipe: dict[str, Any]) -> str:
    """Name the settings of a recipe in which the arms differ."""
    heads = f"heads of {recipe['network']['head']} channels, learning rate {recipe['optimiser']['learning_rate']:g}"
    if recipe["method"] == "backprop":
        return f"backprop, {heads}"
    count = recipe["options"]["representatives"]
    drawn = recipe["options"].get("representatives_per_step", 0) or count
    return f"FAUST, {drawn} of {count} representatives in a step, {heads}"


def accuracy(found: Results) -> str:
    rows = [
        [
            f"`{row['network']}`, {row['settings']}",
            str(row["epochs"]),
            str(row["seeds"]),
            f"{100 * row['accuracy']:.2f}" + (f" ± {100 * row['std']:.2f}" if row["std"] is not None else ""),
            f"{100 * TARGETS[row['network']]:.0f} % {'reached' if row['reached'] else 'not reached'}",
            f"{row['seconds']:.1f} s",
            f"{row['first_epoch_seconds']:.1f} s",
            f"{row['over_backprop']:.2f}" if "over_backprop" in row else "–",
        ]
        for row in arms(found)
    ]
    columns = ["H200", "epochs", "seeds", "test accuracy, %", "target", "time", "first epoch", "÷ backprop"]
    return table(columns, rows) if rows else NOT_MEASURED


def own_model(found: Results) -> str:
    file = found.files.get(OWN_MODEL)
    if not file:
        return NOT_MEASURED
    ms = {(line["precision"], line["system"]): line["ms"] for line in file["steps"]}
    said = []
    for precision in dict.fromkeys(precision for precision, _ in ms):
        ours, plain = ms[precision, "wavefront"], ms[precision, "backprop"]
        said.append(f"{ours:.1f} ms in {precision}, {ratio(ours, plain)} of backprop's {plain:.1f} ms")
    note = f", {file['measured']}" if "measured" in file else ""
    return OWN.format(**file, times=", and ".join(said), machine=MACHINES["h200"], file=OWN_MODEL, note=note)


def sources(found: Results) -> str:
    """List the machine, the commit and the date of each file."""
    rows = []
    for name, about in FILES.items():
        if name in found.files:
            file = found.files[name]
            rows.append([f"`results/{name}`", about, *_origin(file["environment"])])
            earlier: dict[str, list[str]] = {}  # parts that stayed when others were measured again
            for part, where in file.get("environments", {}).items():
                earlier.setdefault(json.dumps(where), []).append(part.replace("_", " "))
            rows += [["", ", ".join(parts), *_origin(json.loads(where))] for where, parts in earlier.items()]
    return table(["file", "contents", "machine", "commit", "torch", "date"], rows, numbers=0) if rows else NOT_MEASURED


def _origin(where: dict[str, Any]) -> list[str]:
    """Return the machine, the commit, the version of torch and the date of an environment."""
    cpu = f"{where.get('processor')}, {where.get('threads')} threads"
    machine = cpu if where["device"] == "cpu" else where["device"]
    return [machine, _commit(where.get("commit")), where["torch"], where.get("started", "–")[:10]]


def _commit(commit: str | None) -> str:
    """Return the short form of a commit, which ends with + if there were changes that were not committed."""
    return f"`{commit[:7]}`{', with changes' if commit.endswith('+') else ''}" if commit else "–"
