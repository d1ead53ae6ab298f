"""Write the tables and the figure of docs/performance.md from the result files in results/.

    python benchmarks/performance.py

requires matplotlib (`pip install -c constraints.txt -e '.[figures]'`). `faustnet bench --out FILE.json` writes
bench-cpu.json and bench-h200.json; `faustnet bench convolutions --out FILE.json` writes the files that end in
-convolutions.json. bench-h200-starts.json holds the ratios of repeated process starts.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from faustnet.report.tables import markdown as table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURE = ROOT / "docs" / "performance.svg"
MACHINES = {"h200": "H200", "cpu": "2 CPU cores"}
COLOURS = {"backprop": "#000000", "sequential": "#E69F00", "wavefront": "#0072B2", "greedy": "#009E73"}


def results() -> dict[str, dict[str, Any]]:
    """Return the measurements of each machine, by the keys of MACHINES."""
    found = {name: {**_read(f"bench-{name}-convolutions.json"), **_read(f"bench-{name}.json")} for name in MACHINES}
    found["h200"]["starts"] = _read("bench-h200-starts.json")
    return found


def _read(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def time(us: float) -> str:
    return f"{us:,.0f} µs" if us < 10_000 else f"{us / 1000:,.1f} ms"


def ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}"


def step_rows(lines: Iterable[dict[str, Any]], label: str) -> list[list[str]]:
    return [
        [
            label.format(**line),
            time(line["backprop_us"]),
            ratio(line["sequential_us"], line["backprop_us"]),
            ratio(line["wavefront_us"], line["backprop_us"]),
        ]
        for line in lines
    ]


def starts(found: dict[str, dict[str, Any]]) -> str:
    """Wavefront ÷ backprop in each process start, one row per commit."""
    single = {
        str(line["layers"]): [line["wavefront_us"] / line["backprop_us"]]
        for line in found["h200"]["steps"]
        if line["precision"] == "bfloat16"
    }
    lines = [(line["commit"], line["wavefront_over_backprop"]) for line in found["h200"]["starts"]["commits"]]
    lines.insert(0, (found["h200"]["environment"]["commit"], single))
    depths = list(lines[-1][1])
    rows = [
        [f"`{commit[:7]}`", *(", ".join(f"{value:.2f}" for value in sorted(ratios[n])) for n in depths)]
        for commit, ratios in lines
    ]
    spread = f"Backprop's time varied by {100 * found['h200']['starts']['backprop_spread']:.1f} % between these starts."
    return table(["commit", *(f"{n} layers" for n in depths)], rows) + "\n\n" + spread


def start_ranges(found: dict[str, dict[str, Any]]) -> dict[int, tuple[float, float]]:
    """Return the lowest and highest wavefront ÷ backprop over the process starts of the last commit, by depth."""
    ratios = found["h200"]["starts"]["commits"][-1]["wavefront_over_backprop"]
    return {int(layers): (min(values), max(values)) for layers, values in ratios.items()}


def starts_in_short(found: dict[str, dict[str, Any]]) -> str:
    """Range over process starts, as a table of one row."""
    ranges = start_ranges(found)
    count = len(next(iter(found["h200"]["starts"]["commits"][-1]["wavefront_over_backprop"].values())))
    columns = [f"H200, bfloat16, layers of 800 units, {count} process starts", *(f"{layers} layers" for layers in ranges)]
    return table(columns, [["FAUST ÷ backprop, time of a step", *map(shown_range, ranges.values())]])


def shown_range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f}–{ends[1]:.2f}"


def steps(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, machine in MACHINES.items():
        label = f"{machine}, {{layers}} layers, embedding {{embedding}}, {{precision}}"
        rows += step_rows(found[name]["steps"] + found[name].get("steps_in_other_precisions", []), label)
    return table(["batch 256, width 800", "backprop", "FAUST sequential ÷ backprop", "FAUST wavefront ÷ backprop"], rows)


def compiled(found: dict[str, dict[str, Any]]) -> str:
    lines = [line for line in found["h200"]["steps"] if "backprop_compiled_us" in line]
    rows = [
        [
            f"{line['layers']} layers",
            time(line["backprop_us"]),
            time(line["backprop_compiled_us"]),
            time(line["wavefront_us"]),
            ratio(line["wavefront_us"], line["backprop_compiled_us"]),
        ]
        for line in lines
    ]
    return table(["H200", "backprop", "backprop, compiled", "wavefront", "wavefront ÷ compiled"], rows)


def scaling(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, machine in MACHINES.items():
        first, *others = found[name]["scaling"]
        names = ("width", "batch", "embedding", "classes", "representatives")
        about = f"4 × {first['width']}, batch {first['batch']}, embedding {first['embedding']}, 10 classes, 1 representative"
        rows += step_rows([first], f"**{machine}**: {about}")
        for line in others:
            (changed,) = (key for key in names if line[key] != first[key])
            count = changed in ("classes", "representatives")
            sampled = ", those of the batch in a step" if line.get("classes_per_step") == "batch" else ""
            rows += step_rows([line], f"{line[changed]:,} {changed}{sampled}" if count else f"{changed} {line[changed]:,}")
    return table(["network", "backprop", "FAUST sequential ÷ backprop", "FAUST wavefront ÷ backprop"], rows)


def convolutions(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, machine in MACHINES.items():
        for line in found[name]["convolutions"]:
            widths = "-".join(map(str, line["widths"]))
            label = (
                f"{machine}, {line['kind']} {widths}, heads of {line['head']} channels, batch {line['batch']}, "
                f"{line['precision']}"
            )
            rows += step_rows([line], label)
    return table(["network", "backprop", "FAUST sequential ÷ backprop", "FAUST wavefront ÷ backprop"], rows)


def memory(found: dict[str, dict[str, Any]]) -> str:
    lines = {(line["system"], line["layers"]): line for line in found["h200"]["memory"]}
    rows = []
    for (system, layers), line in lines.items():
        parts = [f"{line[part]:,.0f}" for part in ("weights", "gradients", "optimiser", "activations", "cached")]
        cpu = next(o for o in found["cpu"]["memory"] if (o["system"], o["layers"]) == (system, layers))
        rows.append([f"{system}, {layers} layers", *parts, f"{line['peak']:,.0f}", f"{cpu['peak']:,.0f}"])
    columns = ["MiB", "weights", "gradients", "optimiser", "activations", "cached", "peak, H200", "peak, CPU"]
    return table(columns, rows)


def residual_memory(found: dict[str, dict[str, Any]]) -> str:
    lines = {(line["blocks"], line["system"]): line["beside"] for line in found["cpu"]["residual_memory"]}
    systems = ("backprop", "backprop, checkpointed", "sequential", "wavefront")
    rows = []
    for blocks in sorted({blocks for blocks, _ in lines}):
        whole = lines[blocks, "backprop"]
        share = ratio(lines[blocks, "sequential"], whole)
        rows.append([f"{blocks}", *(f"{lines[blocks, system]:,.0f}" for system in systems), share])
    names = ("FAUST sequential", "FAUST wavefront", "sequential ÷ backprop")
    return table(["residual blocks (MiB)", *systems[:2], *names], rows)


def prediction(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            f"{machine}, {len(line['widths'])} × {line['widths'][0]}, embedding {line['embedding']}",
            f"{line['backprop_ms']:.1f} ms",
            ratio(line["faust_ms"], line["backprop_ms"]),
            f"{line['forward_forward_ms'] / line['faust_ms']:.1f}",
        ]
        for name, machine in MACHINES.items()
        for line in found[name]["prediction"]
    ]
    return table(["10,000 images", "backprop", "FAUST ÷ backprop", "Forward-Forward ÷ FAUST"], rows)


def early_exit(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            "no early exit" if line["threshold"] is None else f"{line['threshold']:.2f}",
            f"{line['validation_accuracy'] * 100:.2f}",
            f"{line['test_accuracy'] * 100:.2f}",
            f"{line['saved'] * 100:.0f} %",
        ]
        for line in found["cpu"]["early_exit"]["thresholds"]
    ]
    return table(["exit margin", "validation accuracy, %", "test accuracy, %", "multiplications saved"], rows)


def training(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            f"{MACHINES[name]}, `{line['method']}`, {line['schedule']}",
            str(line["epochs"]),
            f"{line['seconds']:.2f} s",
            f"{line['whole_seconds']:.2f} s",
            f"{line['accuracy'] * 100:.2f}",
        ]
        for name in MACHINES
        for line in found[name]["training"]
    ]
    return table(["CIFAR-10, 3 × 500", "epochs", "time", "time with set-up", "test accuracy, %"], rows)


def costs(found: dict[str, dict[str, Any]]) -> str:
    """Summarise the page in a few lines."""
    cpu = next(line for line in found["cpu"]["steps"] if line["layers"] == 4)
    cpu_256 = next(line for line in found["cpu"]["scaling"] if line["embedding"] == 256)
    predicted = {p["embedding"]: p for p in found["cpu"]["prediction"] if len(p["widths"]) == 4}
    whole = {line["method"]: line for line in found["h200"]["training"]}

    def by_depth(lines: list[dict[str, Any]], precision: str) -> str:
        gpu = {line["layers"]: line for line in lines if line["precision"] == precision}
        return ", ".join(f"{ratio(gpu[n]['wavefront_us'], gpu[n]['backprop_us'])} at {n} layers" for n in (4, 8, 16))

    measured = {
        "training step, H200, bfloat16, range over process starts": ", ".join(
            f"{shown_range(ends)} at {layers} layers" for layers, ends in start_ranges(found).items()
        ),
        "training step, H200, TF32 (the default), one process start": by_depth(
            found["h200"]["steps_in_other_precisions"], "tf32"
        ),
        "training step, 2 CPU cores, 4 layers, embedding 64 / 256": f"{ratio(cpu['sequential_us'], cpu['backprop_us'])}"
        f" / {ratio(cpu_256['sequential_us'], cpu_256['backprop_us'])}",
        "prediction, 2 CPU cores, 4 layers, embedding 64 / 256": " / ".join(
            ratio(predicted[size]["faust_ms"], predicted[size]["backprop_ms"]) for size in (64, 256)
        ),
        "60 epochs of CIFAR-10 with evaluation, H200, 3 × 500": ratio(
            whole["faust-representative"]["seconds"], whole["backprop"]["seconds"]
        )
        + f" ({whole['faust-representative']['seconds']:.1f} s, backprop {whole['backprop']['seconds']:.1f} s)",
    }
    rows = [list(pair) for pair in measured.items()]
    return table(["batch 256, width 800, embedding 256 unless stated", "FAUST ÷ backprop"], rows)


TABLES = {
    "costs": costs,
    "starts": starts,
    "steps": steps,
    "compiled": compiled,
    "scaling": scaling,
    "convolutions": convolutions,
    "memory": memory,
    "residual memory": residual_memory,
    "prediction": prediction,
    "early exit": early_exit,
    "training": training,
}


def with_tables(page: str, found: dict[str, dict[str, Any]]) -> str:
    """Return the page with the text between each pair of marks replaced."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: benchmarks/performance.py -->\n", "\n<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(page), f"the page has no marks for {name}"
        page = pattern.sub(lambda _, text=begin + make(found) + end: text, page, count=1)
    return page


def draw(found: dict[str, dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "faustnet"  # the same file every time
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for panel, name in zip(panels, MACHINES, strict=False):
        lines = sorted(found[name]["steps"], key=lambda line: line["layers"])
        depths = [line["layers"] for line in lines]
        unit, word = (1, "µs") if name == "h200" else (1000, "ms")
        for system, marker in (("backprop", "o"), ("sequential", "s"), ("wavefront", "^")):
            times = [line[f"{system}_us"] / unit for line in lines]
            label = system if system == "backprop" else f"FAUST, {system}"
            panel.plot(depths, times, marker=marker, color=COLOURS[system], label=label)
        if name == "h200":
            _draw_starts(panel, {line["layers"]: line["backprop_us"] for line in lines}, start_ranges(found))
        panel.set_title(f"Training step, {MACHINES[name]}")
        panel.set_ylabel(f"time, {word}")
        panel.set_xticks(depths)
    panel = panels[2]
    styles = {"backprop": "o", "sequential": "s", "wavefront": "^", "greedy": "D"}
    for system, marker in styles.items():
        lines = [line for line in found["h200"]["memory"] if line["system"] == system]
        state = [line["peak"] - line["weights"] for line in lines]
        label = system if system == "backprop" else f"FAUST, {system}"
        panel.plot([line["layers"] for line in lines], state, marker=marker, color=COLOURS[system], label=label)
    panel.set_title("Training memory, H200")
    panel.set_ylabel("peak without the weights, MiB")
    panel.set_xticks([line["layers"] for line in lines])
    for panel in panels:
        panel.set_xlabel("layers (800 units each)")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, metadata={"Date": None})


def _draw_starts(panel: Any, backprop_us: dict[int, float], ranges: dict[int, tuple[float, float]]) -> None:
    low, high = ([ends[i] * backprop_us[layers] for layers, ends in ranges.items()] for i in (0, 1))
    label = "range of starts"
    panel.vlines(list(ranges), low, high, color=COLOURS["wavefront"], linewidth=5, alpha=0.35, label=label)


def main() -> None:
    found = results()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    draw(found)
    print(*(f"wrote {path.relative_to(ROOT)}" for path in (PAGE, FIGURE)), sep="\n")


if __name__ == "__main__":
    main()
