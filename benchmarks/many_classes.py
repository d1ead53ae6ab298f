"""Measure the time to add many classes to a model, and to predict among many classes.

    python benchmarks/many_classes.py results/many-classes.json      one minute

A model with three dense layers of 500 units and embeddings of 256 is trained for one step on noise with 964 classes, as many
as Omniglot's background set has characters. 659 classes, as many as in the evaluation set, are added from one PNG file of
105 × 105 pixels each by `faustnet add-classes`. Its time includes the start of Python. Predictions are of 1,000 images, in
turns with 964 and 1,623 classes, so that changes of the machine's speed affect both; the result is the median ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import faustnet
from faustnet.report.tables import print_table
from faustnet.runs.model import Model
from faustnet.system.environment import environment

KNOWN, NEW = 964, 659  # characters in Omniglot's background and evaluation sets
SHAPE, FILE_SIDE = (1, 28, 28), 105
RUNS, TURNS, IMAGES = 5, 15, 1_000
RECIPE = {"network": {"widths": [500, 500, 500], "embedding": 256}, "training": {"epochs": 1, "batch_size": KNOWN}}


def make_run(folder: Path) -> Path:
    """Train a model whose references have the right size; the time of a prediction does not depend on their values."""
    pixels = np.random.default_rng(0).integers(256, size=(KNOWN, *SHAPE), dtype=np.uint8)
    data = pixels, np.array([f"known {number:04d}" for number in range(KNOWN)])
    faustnet.train(RECIPE, folder, data=data, test=data, device="cpu")
    return folder


def make_classes(folder: Path) -> Path:
    """Write one image file in a folder for each new class."""
    random = np.random.default_rng(1)
    for number in range(NEW):
        (folder / f"new {number:04d}").mkdir(parents=True)
        strokes = 255 * (random.random((FILE_SIDE, FILE_SIDE)) > 0.1)
        Image.fromarray(strokes.astype(np.uint8)).save(folder / f"new {number:04d}" / "1.png")
    return folder


def seconds_to_add(run: Path, classes: Path, out: Path) -> list[float]:
    """Return the time of each call of the command."""
    words = [sys.executable, "-m", "faustnet", "add-classes", str(run), str(classes), "--out", str(out), "--device", "cpu"]
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return times


def predictions(small: Model, large: Model) -> dict[str, Any]:
    """Return the median times of a prediction in microseconds per image, and the median ratio of neighbouring turns."""
    pixels = torch.randint(256, (IMAGES, *SHAPE), dtype=torch.uint8)
    times: dict[int, list[float]] = {KNOWN: [], KNOWN + NEW: []}
    for _ in range(TURNS + 1):
        for model in (small, large):
            begin = time.perf_counter()
            model.predict(pixels)
            times[len(model.class_names)].append((time.perf_counter() - begin) / IMAGES * 1e6)
    before, after = (found[1:] for found in times.values())  # the first turn warms up
    return {
        "microseconds": {str(classes): statistics.median(found[1:]) for classes, found in times.items()},
        "ratio": statistics.median(b / a for a, b in zip(before, after, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        run, classes = make_run(Path(scratch) / "run"), make_classes(Path(scratch) / "classes")
        file = Path(scratch) / "large.safetensors"
        seconds = seconds_to_add(run, classes, file)
        small, large = faustnet.load(run, device="cpu"), faustnet.load(file, device="cpu")
        begin = time.perf_counter()
        found = {path.name: str(path / "1.png") for path in sorted(classes.iterdir())}
        small.add_classes(found)
        in_python = time.perf_counter() - begin
        sizes = {"bytes_before": (run / "model.safetensors").stat().st_size, "bytes_after": file.stat().st_size}
        result = {
            "classes": KNOWN, "added": NEW, "cores": len(os.sched_getaffinity(0)), "command_seconds": seconds,
            "python_seconds": in_python, **sizes, **predictions(small, large),
            "environment": environment(torch.device("cpu"), 0),
        }  # fmt: skip
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    times = (f"µs per image, {classes} classes" for classes in result["microseconds"])
    columns = ("add-classes, shortest (s)", "longest (s)", "in Python (s)", *times, "ratio")
    cells = (min(seconds), max(seconds), in_python, *result["microseconds"].values(), result["ratio"])
    print_table(columns, [[f"{cell:.2f}" for cell in cells]])


if __name__ == "__main__":
    main()
