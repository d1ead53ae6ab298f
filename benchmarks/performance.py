"""Write the tables and the figure of docs/performance.md from the result files results/bench-cpu.json and
results/bench-h200.json, and bench-cpu-convolutions.json and bench-h200-convolutions.json beside them.

    python benchmarks/performance.py

needs matplotlib (`pip install -c constraints.txt -e '.[figures]'`). The files come from `faustnet bench --out FILE.json`,
the last two from `faustnet bench convolutions --out FILE.json`.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from faustnet.report.comparisons import markdown as table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURE = ROOT / "docs" / "performance.svg"
MACHINES = {"h200": "H200", "cpu": "2 CPU cores"}
COLOURS = {"backprop": "#000000", "sequential": "#E69F00", "wavefront": "#0072B2", "greedy": "#009E73"}


def results() -> dict[str, dict[str, Any]]:
    return {name: {**_read(f"bench-{name}-convolutions.json"), **_read(f"bench-{name}.json")} for name in MACHINES}


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
            rows += step_rows([line], f"{changed} {line[changed]:,}")
    return table(["", "backprop", "FAUST sequential ÷ backprop", "FAUST wavefront ÷ backprop"], rows)


def convolutions(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, machine in MACHINES.items():
        for line in found[name]["convolutions"]:
            widths = "-".join(map(str, line["widths"]))
            label = (
                f"{machine}, {line['kind']} {widths}, heads of {line['head']}, batch {line['batch']}, {line['precision']}"
            )
            rows += step_rows([line], label)
    return table(["", "backprop", "FAUST sequential ÷ backprop", "FAUST wavefront ÷ backprop"], rows)


def memory(found: dict[str, dict[str, Any]]) -> str:
    lines = {(line["system"], line["layers"]): line for line in found["h200"]["memory"]}
    rows = []
    for (system, layers), line in lines.items():
        parts = [f"{line[part]:,.0f}" for part in ("weights", "gradients", "optimiser", "activations", "cached")]
        cpu = next(o for o in found["cpu"]["memory"] if (o["system"], o["layers"]) == (system, layers))
        rows.append([f"{system}, {layers} layers", *parts, f"{line['peak']:,.0f}", f"{cpu['peak']:,.0f}"])
    columns = ["MiB", "weights", "gradients", "optimiser", "activations", "cached", "peak, H200", "peak, CPU"]
    return table(columns, rows)


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
            "never" if line["threshold"] is None else f"{line['threshold']:.2f}",
            f"{line['validation_accuracy'] * 100:.2f}",
            f"{line['test_accuracy'] * 100:.2f}",
            f"{line['saved'] * 100:.0f} %",
        ]
        for line in found["cpu"]["early_exit"]["thresholds"]
    ]
    return table(["leave at a margin of", "validation accuracy, %", "test accuracy, %", "multiplications saved"], rows)


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
    return table(["CIFAR-10, 3 × 500", "epochs", "time", "with set-up", "test accuracy, %"], rows)


def costs(found: dict[str, dict[str, Any]]) -> str:
    """All of it in a few lines."""
    cpu = next(line for line in found["cpu"]["steps"] if line["layers"] == 4)
    cpu_256 = next(line for line in found["cpu"]["scaling"] if line["embedding"] == 256)
    predicted = {p["embedding"]: p for p in found["cpu"]["prediction"] if len(p["widths"]) == 4}
    whole = {line["method"]: line for line in found["h200"]["training"]}
    greedy = [line for line in found["h200"]["memory"] if line["system"] == "greedy"]
    state = {line["layers"]: line["peak"] - line["weights"] for line in greedy}
    leave = found["cpu"]["early_exit"]

    def by_depth(lines: list[dict[str, Any]], precision: str) -> str:
        gpu = {line["layers"]: line for line in lines if line["precision"] == precision}
        return ", ".join(f"{ratio(gpu[n]['wavefront_us'], gpu[n]['backprop_us'])} at {n}" for n in (4, 8, 16))

    measured = {
        "a training step, H200, by number of layers, bfloat16": by_depth(found["h200"]["steps"], "bfloat16"),
        "the same in TF32, the default": by_depth(found["h200"]["steps_in_other_precisions"], "tf32"),
        "a training step, 2 CPU cores, 4 × 800, embedding 64 and 256": f"{ratio(cpu['sequential_us'], cpu['backprop_us'])}"
        f" and {ratio(cpu_256['sequential_us'], cpu_256['backprop_us'])}",
        "predicting, 2 CPU cores, 4 × 800, embedding 64 and 256": " and ".join(
            ratio(predicted[size]["faust_ms"], predicted[size]["backprop_ms"]) for size in (64, 256)
        ),
        "60 epochs of CIFAR-10 with evaluations, H200, 3 × 500": f"{whole['faust-representative']['seconds']:.1f} s; "
        f"backprop {whole['backprop']['seconds']:.1f} s",
        "early exit on Fashion-MNIST": f"{leave['saved']:.0%} of the multiplications saved, "
        f"{leave['accuracy']:.2%} instead of {leave['accuracy_of_all_layers']:.2%}",
        "memory beside the weights, greedy, H200": f"{ratio(state[64], state[4])} times as much at 64 layers as at 4",
    }
    rows = [list(pair) for pair in measured.items()]
    return table(["FAUST-representative; batch 256, width 800, embedding 256 where nothing is said", "÷ backprop"], rows)


TABLES = {
    "costs": costs,
    "steps": steps,
    "compiled": compiled,
    "scaling": scaling,
    "convolutions": convolutions,
    "memory": memory,
    "prediction": prediction,
    "early exit": early_exit,
    "training": training,
}


def with_tables(page: str, found: dict[str, dict[str, Any]]) -> str:
    """The page with every table between its marks written anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: benchmarks/performance.py -->\n", "\n<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(page), f"the page has no room for {name}"
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
        panel.set_title(f"A step on {'an H200' if name == 'h200' else '2 CPU cores'}")
        panel.set_ylabel(f"time, {word}")
        panel.set_xticks(depths)
    panel = panels[2]
    styles = {"backprop": "o", "sequential": "s", "wavefront": "^", "greedy": "D"}
    for system, marker in styles.items():
        lines = [line for line in found["h200"]["memory"] if line["system"] == system]
        state = [line["peak"] - line["weights"] for line in lines]
        label = system if system == "backprop" else f"FAUST, {system}"
        panel.plot([line["layers"] for line in lines], state, marker=marker, color=COLOURS[system], label=label)
    panel.set_title("Memory of training on an H200")
    panel.set_ylabel("peak less the weights, MiB")
    panel.set_xticks([line["layers"] for line in lines])
    for panel in panels:
        panel.set_xlabel("layers of 800 units")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    found = results()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    draw(found)
    print(*(f"{path.relative_to(ROOT)} is written" for path in (PAGE, FIGURE)), sep="\n")


if __name__ == "__main__":
    main()
