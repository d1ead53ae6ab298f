"""Write the tables of docs/scaling.md from results/distributed.json and the cost model.

python benchmarks/ranks_page.py
"""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import ranks
from faustnet.report.tables import markdown as table

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
BENCH = ranks.RESULTS.parent / "bench-h200.json"
LINKS = {
    "NVLink": (450e9, 10e-6),
    "InfiniBand": (50e9, 20e-6),
}  # bytes per second in each direction (data sheets); latency in seconds (assumed)


def expected_here(found: dict[str, Any], arrangement: str) -> float:
    """Return the steps per second of the cost model: the computation of the busiest rank plus the messages that it waits
    for. On a CPU, sending a message occupies the core, so communication does not overlap with computation."""
    us = {line["message"]: line["us"] / 1e6 for line in found["messages"]}
    (rate,) = (line["steps_per_second"] for line in found["rates"] if line["arrangement"] == "one process")
    compute = 1 / statistics.median(rate) / 2
    if arrangement == "1x2":
        return 1 / (compute + us["send activations"])
    return 1 / (compute + found["layers"] * (us["gather embeddings"] + us["sum gradients"]))


def equality_table(found: dict[str, Any]) -> str:
    names = [name for names in ranks.ARRANGEMENTS.values() for name in names]
    by_case: dict[str, dict[str, float]] = {}
    for line in found["equality"]["cases"]:
        by_case.setdefault(line["case"], {})[line["arrangement"]] = line["difference"]
    rows = [[case, *(f"{by[name]:.0e}" for name in names)] for case, by in by_case.items()]
    return table(["batch × layers", *names], rows)


def speed_table(found: dict[str, Any]) -> str:
    part = found["pipeline"]
    rows = []
    for line in part["rates"]:
        name, rates = line["arrangement"], line["steps_per_second"]
        expected = "–" if name == "one process" else f"{expected_here(part, name):.1f}"
        middle = f"{statistics.median(rates):.1f}"
        rows.append([name, middle, f"{min(rates):.1f} to {max(rates):.1f}", f"{line['times_one_process']:.2f}", expected])
    return table(["batch × layers", "steps per second", "range", "÷ one process", "cost model"], rows)


def messages_table(found: dict[str, Any]) -> str:
    rows = []
    for line in found["pipeline"]["messages"]:
        size, us = line["bytes"], line["us"]
        rows.append([line["message"], f"{size / 1024:,.1f} KiB", f"{us:,.0f} µs", f"{size / us / 1e3:.2f}"])
    return table(["message between two processes", "size", "time", "GB/s"], rows)


def layer_seconds(rows: float) -> float:
    """Return the time of one layer's step on an H200, by linear regression over three measured batch sizes."""
    lines = [line for line in json.loads(BENCH.read_text())["scaling"] if line["width"] == 800 and line["embedding"] == 256]
    lines = [line for line in lines if (line["classes"], line["representatives"]) == (10, 1)]
    points = [(line["batch"], line["sequential_us"] / line["layers"] / 1e6) for line in lines]
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    return intercept + slope * rows


def gpu_seconds(row_ranks: int, stages: int, layers: int, batch: int, width: int = 800, embedding: int = 256) -> float:
    """Return the time of a step: the largest of computation and communication. Activations are sent with two bytes per
    value, gradients with four. A machine has eight GPUs."""
    bandwidth, latency = LINKS["NVLink" if row_ranks <= 8 else "InfiniBand"]
    share = (row_ranks - 1) / row_ranks
    gather = share * batch * embedding * 2 / bandwidth + latency if row_ranks > 1 else 0
    total = 2 * share * width * (width + embedding) * 4 / bandwidth + latency if row_ranks > 1 else 0
    layer = layer_seconds(batch / row_ranks)
    stage = layers / stages * max(layer, gather + total)  # communication overlaps with other layers
    bandwidth, latency = LINKS["NVLink" if row_ranks * stages <= 8 else "InfiniBand"]
    passed = batch / row_ranks * width * 2 / bandwidth + latency if stages > 1 else 0
    return max(stage, passed)


def gpu_table(found: dict[str, Any]) -> str:
    layers, batch = 64, 1024
    one = gpu_seconds(1, 1, layers, batch)
    rows = [["1", "–", f"{one * 1e3:.2f} ms", "1.0"]]
    for count, ways in ((8, ((8, 1), (1, 8), (2, 4))), (64, ((64, 1), (1, 64), (8, 8)))):
        for row_ranks, stages in ways:
            seconds = gpu_seconds(row_ranks, stages, layers, batch)
            rows.append([str(count), f"{row_ranks}x{stages}", f"{seconds * 1e3:.2f} ms", f"{one / seconds:.1f}"])
    return table(["H200s", "batch × layers", "time of a step", "speed-up"], rows)


TABLES = {"equality": equality_table, "speed": speed_table, "messages": messages_table, "expected": gpu_table}


def with_tables(page: str, found: dict[str, Any]) -> str:
    """Return the page with the text between each pair of marks replaced."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: benchmarks/ranks_page.py -->\n", "\n<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(page), f"the page has no marks for {name}"
        page = pattern.sub(lambda _, text=begin + make(found) + end: text, page, count=1)
    return page


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), ranks.read(ranks.RESULTS)), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parents[1])}")


if __name__ == "__main__":
    main()
