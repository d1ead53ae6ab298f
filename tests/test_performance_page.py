"""The page about speed and memory shows what the result files hold."""

import json
from pathlib import Path
from typing import Any

import pytest

import performance
import performance_files
import performance_steps
import performance_summary
import performance_tables
from performance_files import NOT_MEASURED, Results

SYSTEMS = ("backprop", "sequential", "wavefront")
GPU = {"device": "NVIDIA H200", "torch": "2.11", "commit": "0123456789+", "started": "2026-01-02T03:04:05+00:00"}
CPU = {"device": "cpu", "processor": "AMD", "threads": 2, "torch": "2.13", "commit": "abcdef012345"}
SIZES = {
    "width": 800, "embedding": 256, "batch": 256, "representatives": 1, "precision": "bfloat16", "classes_per_step": "all",
}  # fmt: skip


def timed(line: dict[str, Any], starts: int, **us: float) -> dict[str, Any]:
    """Return a line with times; with several starts, the slowest takes a quarter longer than the median."""
    times = {f"{system}_us": time for system, time in us.items()}
    worst = {f"{system}_worst_us": 1.25 * time for system, time in us.items()}
    return {**line, **times, **(worst | {"starts": starts} if starts > 1 else {})}


def step(layers: int, starts: int, wavefront: float, classes: int = 10, **changes: Any) -> dict[str, Any]:
    line = {"layers": layers, "classes": classes, **SIZES, **changes}
    return timed(line, starts, backprop=200.0, sequential=220.0, wavefront=wavefront)


def bench(starts: int) -> dict[str, Any]:
    sized = {"widths": [800] * 4, "embedding": 256}
    lasting = {"widths": [500] * 3, "schedule": "wavefront", "epochs": 60, "whole_seconds": 9.0, "accuracy": 0.5,
               "other_seconds": 7.5, "first_epoch_seconds": 0.5, "epoch_seconds": 0.1}  # fmt: skip
    kept = dict.fromkeys(("weights", "gradients", "optimiser", "activations", "cached"), 10.0)
    memory = [
        {"system": system, "layers": layers, **kept, "peak": 20.0 * layers}
        for system in (*SYSTEMS, "greedy") for layers in (4, 16)
    ]  # fmt: skip
    residual = [
        {"system": system, "blocks": blocks, "batch": 512, "channels": 64, "beside": blocks * share}
        for share, system in enumerate(performance_tables.RESIDUAL, start=4) for blocks in (32, 4)
    ]  # fmt: skip
    return {
        "steps": [step(2, starts, 190.0), {**step(4, starts, 100.0), "backprop_compiled_us": 150.0}],
        "steps_in_other_precisions": [step(4, starts, 150.0, precision="tf32")],
        "steps_with_many_classes": [
            step(4, starts, 150.0, precision="tf32"),
            step(4, starts, 300.0, classes=100, precision="tf32"),
            step(4, starts, 450.0, classes=1000, precision="tf32", classes_per_step="batch"),
        ],
        "scaling": [step(4, 1, 100.0), step(4, 1, 110.0, width=1600), step(4, 1, 130.0, classes=100)],
        "prediction": [
            {**sized, "backprop_ms": 1.0, "faust_ms": 1.9, "forward_forward_ms": 5.7, "recorded_backprop_ms": 0.5,
             "recorded_faust_ms": 0.6}
        ],
        "training": [
            {**lasting, "method": method, "seconds": seconds}
            for method, seconds in (("faust-representative", 3.0), ("backprop", 2.5))
        ],
        "memory": memory,
        "residual_memory": residual,
    }  # fmt: skip


def run(arm: str, epochs: int, seed: int, accuracy: float, seconds: float, head: int = 192) -> dict[str, Any]:
    options = {} if arm.endswith("-backprop") else {"representatives": 4, "representatives_per_step": 1}
    method = "faust-representative" if options else "backprop"
    recipe = {"method": method, "options": options, "network": {"head": head}, "optimiser": {"learning_rate": 0.02}}
    about = {"arm": arm, "epochs": epochs, "seed": seed, "accuracy": accuracy, "seconds": seconds}
    return {**about, "first_epoch_seconds": 2.0, "epoch_seconds": 1.0, "recipe": recipe}


def write(folder: Path, name: str, **content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


@pytest.fixture
def found(tmp_path: Path) -> Results:
    """Result files with every part, of ten starts on the GPU."""
    networks = {"kind": "vgg", "widths": [128, 256], "batch": 512, "precision": "bfloat16"}
    sampled = {"sampled_sequential": 1300.0, "sampled_wavefront": 900.0}
    lines = [
        timed({**networks, "head": head}, 3, backprop=1000.0, sequential=1500.0, wavefront=1200.0, **sampled)
        | {f"{system}_beside_mib": size for system, size in zip(SYSTEMS, (1000, 400, 700), strict=True)}
        for head in (256, 192)
    ]
    write(tmp_path, "bench-h200-convolutions.json", convolutions=lines, environment=GPU)
    write(tmp_path, "bench-h200.json", **bench(10), environment=GPU)
    early = [{"threshold": None, "validation_accuracy": 0.9, "test_accuracy": 0.8, "saved": 0.0}]
    write(tmp_path, "bench-cpu.json", **bench(1), early_exit={"thresholds": early}, environment=CPU)
    of_own = [{"precision": "tf32", "system": system, "ms": ms} for system, ms in (("backprop", 8.0), ("wavefront", 6.0))]
    write(tmp_path, "own-model-h200.json", steps=of_own, blocks=8, width=256, tokens=64, batch=256, environment=GPU)
    runs = [run("cnn", 14, seed, accuracy, 15.0) for seed, accuracy in enumerate((0.939, 0.940, 0.941))]
    runs += [run("cnn-backprop", 16, seed, 0.939, 18.0) for seed in range(3)]
    runs += [run("cnn-backprop", 18, seed, 0.942, 20.0) for seed in range(3)]
    runs += [run("cnn-backprop", 24, seed, 0.945, 30.0) for seed in range(3)]
    runs += [run("cnn-large", 40, 0, 0.9599, 90.0), run("cnn-large-backprop", 50, 0, 0.97, 100.0)]
    write(tmp_path, "time-to-accuracy-h200.json", runs=runs, environment=GPU)
    return performance_files.read(tmp_path)


def test_the_page_is_that_of_the_result_files() -> None:
    """If this fails: python benchmarks/performance.py"""
    page = performance.PAGE.read_text(encoding="utf-8")
    assert performance.with_tables(page, performance.read()) == page


def test_every_table_is_written_from_its_part(found: Results) -> None:
    page = performance.with_tables(performance.PAGE.read_text(encoding="utf-8"), found)
    assert NOT_MEASURED not in page
    for row in (
        "| H200, 4 layers, embedding 256, bfloat16 | 200 µs (250 µs) | 1.10 (1.38) | 0.50 (0.62) | 10 |",
        "| H200, 4 layers, embedding 256, tf32 | 200 µs (250 µs) | 1.10 (1.38) | 0.75 (0.94) | 10 |",
        "| 2 CPU cores, 4 layers, embedding 256, bfloat16 | 200 µs | 1.10 | 0.50 | 1 |",
        "| 4 layers | 200 µs | 150 µs | 100 µs | 0.67 |",
        "| width 1,600 | 200 µs | 1.10 | 0.55 |",
        "| H200, tf32, 10 classes | all | 200 µs (250 µs) | 220 µs (275 µs) | 150 µs (188 µs) | 10 |",
        "| H200, tf32, 100 classes | all | 1.00 (1.25) | 1.00 (1.25) | 2.00 (2.50) | 10 |",
        "| H200, tf32, 1,000 classes | those of the batch | 1.00 (1.25) | 1.00 (1.25) | 3.00 (3.75) | 10 |",
        "channels, batch 512, bfloat16 | 1,000 µs (1,250 µs) | 1.50 (1.88) | 1.20 (1.50) | 1.30 (1.62) | 0.90 (1.12) | 3 |",
        "H200, 3 × 500, `faust-representative`, wavefront | 60 | 3.00 s | 1.20 | 9.00 s | 7.50 s | 0.50 s | 0.10 s | 1 |",
        "| H200, 4 × 800, embedding 256 | 19 % | 1.0 ms | 1.90 | 0.50 ms | 1.20 | 3.0 |",
        "| H200, 32 blocks of 64 channels or more, batch 512 | 128 | 160 | 192 | 224 | 1.25 | 1.50 | 1.75 |",
        "heads of 256 channels, batch 512 | 1,000 | 400 | 700 | 0.40 | 0.70 |",
        "| sequential, 16 layers | 10 | 10 | 10 | 10 | 10 | 320 | 320 |",
        "| `results/bench-h200.json` | dense networks | NVIDIA H200 | `0123456`, with changes | 2.11 | 2026-01-02 |",
        "| `results/bench-cpu.json` | dense networks, memory | AMD, 2 threads | `abcdef0` | 2.13 | – |",
        "6.0 ms in tf32, 0.75 of backprop's 8.0 ms",
        "median of 10 process starts",
    ):  # fmt: skip
        assert row in page, row
    assert page.index("| H200, 4 blocks") < page.index("| H200, 32 blocks")
    assert "bench-h200-starts" not in page


def test_a_target_is_reached_by_the_mean_only(found: Results) -> None:
    text = performance_tables.accuracy(found)
    drawn = "FAUST, 1 of 4 representatives in a step, heads of 192 channels, learning rate 0.02"
    assert f"| `cnn`, {drawn} | 14 | 3 | 94.00 ± 0.10 | 94 % reached | 15.0 s | 2.0 s | 0.75 |" in text
    plain = "backprop, heads of 192 channels, learning rate 0.02"
    assert f"| `cnn`, {plain} | 18 | 3 | 94.20 ± 0.00 | 94 % reached | 20.0 s | 2.0 s | – |" in text
    assert f"| `cnn-large`, {drawn} | 40 | 1 | 95.99 | 96 % not reached | 90.0 s | 2.0 s | – |" in text
    summary = performance_summary.costs(found)
    assert "to 94 %, H200, recipe `cnn` with fewer epochs | 0.75 (15.0 s, backprop 20.0 s) |" in summary
    assert "to 96 %" not in summary


def test_runs_with_other_settings_are_rows_of_their_own(tmp_path: Path) -> None:
    runs = [run("cnn", 14, 0, 0.95, 15.0), run("cnn", 14, 0, 0.93, 20.0, head=256)]
    write(tmp_path, "time-to-accuracy-h200.json", runs=runs, environment=GPU)
    assert [row["reached"] for row in performance_tables.arms(performance_files.read(tmp_path))] == [True, False]


@pytest.mark.parametrize(
    "backprop",
    [[(16, 0.930, 18.0), (18, 0.939, 20.0)], [(18, 0.942, 20.0)], [(18, 0.942, 20.0), (24, 0.939, 30.0)]],
    ids=["none reached the target", "the shortest reached it", "only a longer one missed it"],
)
def test_faust_is_compared_if_the_shortest_time_of_backprop_is_known(
    backprop: list[tuple[int, float, float]], tmp_path: Path
) -> None:
    runs = [run("cnn", 14, 0, 0.95, 15.0), *(run("cnn-backprop", epochs, 0, *found) for epochs, *found in backprop)]
    write(tmp_path, "time-to-accuracy-h200.json", runs=runs, environment=GPU)
    assert not any("over_backprop" in row for row in performance_tables.arms(performance_files.read(tmp_path)))


def test_what_is_not_in_the_files_is_said(tmp_path: Path, found: Results) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = performance_files.read(empty)
    for name, make in performance.TABLES.items():
        assert make(nothing) == NOT_MEASURED or name == "figure", name
    assert performance_summary.speed_in_short(nothing) == NOT_MEASURED
    without = {"h200": {**found.machines["h200"], "prediction": [], "residual_memory": []}, "cpu": {}}
    partly = Results(without, {"own-model-h200.json": found.files["own-model-h200.json"]})
    page = performance.with_tables(performance.PAGE.read_text(encoding="utf-8"), partly)
    assert page.count(NOT_MEASURED) == 4, "predictions, early exit, time to an accuracy, residual blocks"
    assert "2 CPU cores" not in performance_steps.steps(partly)


def test_the_page_says_how_much_several_starts_differ(tmp_path: Path) -> None:
    write(tmp_path, "bench-h200.json", **bench(10), environment=GPU, environments={"memory": {**GPU, "commit": "fedcba98"}})
    found = performance_files.read(tmp_path)
    assert "median of 10 process starts" in performance_steps.starts(found)
    assert "at most 1.25 times" in performance_steps.starts(found)
    assert "0.95 (1.19) at 2 layers, 0.50 (0.62) at 4 layers" in performance_summary.costs(found)
    first, second = performance_tables.sources(found).splitlines()[2:]
    assert "`results/bench-h200.json` | dense networks | NVIDIA H200" in first
    assert "|  | memory | NVIDIA H200 | `fedcba9` |" in second, "a part that was measured at another time"


def test_the_first_page_says_which_depths_were_faster(found: Results) -> None:
    text = performance_summary.speed_in_short(found)
    assert (
        "networks of 4 layers were faster than with backprop in all measured starts. Those of 2 layers were slower" in text
    )
    assert "median of 10 process starts | 0.95 | 0.50 |" in text
    assert "| slowest start | 1.19 | 0.62 |" in text
    assert "with start and evaluations: 1.20" in text
    assert "with one representative per class: 0.90" in text


def test_the_figure_is_drawn_with_and_without_measurements(tmp_path: Path, found: Results) -> None:
    pytest.importorskip("matplotlib")
    for name, results in (("all.svg", found), ("none.svg", Results({"h200": {}, "cpu": {}}, {}))):
        performance.draw(results, tmp_path / name)
        assert (tmp_path / name).read_text().startswith("<?xml")
