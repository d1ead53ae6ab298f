"""Measure the time to add many classes to a model, and to predict among many classes.

    python benchmarks/many_classes.py results/many-classes.json      five minutes

Two models of images of 28 × 28 pixels with embeddings of 256, one with three dense layers of 500 units and one with four
convolutional layers, are trained for one epoch on noise with 964 classes, as many as Omniglot's background set has
characters. 659 classes, as many as in the evaluation set, are added from one PNG file of 105 × 105 pixels each by
`faustnet add-classes`. Its time includes the start of Python. Predictions of several images are made in turns with 964 and
1,623 classes, so that changes of the machine's speed affect both; the result is the median ratio, of the time on all cores
and of the processor time of one thread, which other work on the machine hardly changes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
RUNS, TURNS = 5, 15
NETWORKS: dict[str, dict[str, Any]] = {
    "dense": {"widths": [500, 500, 500], "embedding": 256},
    "convolutional": {"kind": "vgg", "widths": [32, 64, 64, 64], "embedding": 256},
}
IMAGES = {"dense": 1_000, "convolutional": 200}  # of a prediction


def make_run(folder: Path, network: dict[str, Any]) -> Path:
    """Train a model whose references have the right size; the time of a prediction does not depend on their values."""
    pixels = np.random.default_rng(0).integers(256, size=(KNOWN, *SHAPE), dtype=np.uint8)
    data = pixels, np.array([f"known {number:04d}" for number in range(KNOWN)])
    recipe = {"network": network, "training": {"epochs": 1, "batch_size": 64}}
    faustnet.train(recipe, folder, data=data, test=data, device="cpu")
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


def predictions(small: Model, large: Model, images: int) -> dict[str, Any]:
    """Return the median times of a prediction in microseconds per image, and the median ratio of neighbouring turns: on all
    cores, and of the processor time of one thread."""
    several = _predictions(small, large, images, time.perf_counter)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    one = _predictions(small, large, images, time.process_time)
    torch.set_num_threads(threads)
    return {**several, "one_thread": one}


def _predictions(small: Model, large: Model, images: int, clock: Callable[[], float]) -> dict[str, Any]:
    pixels = torch.randint(256, (images, *SHAPE), dtype=torch.uint8)
    times: dict[int, list[float]] = {KNOWN: [], KNOWN + NEW: []}
    for _ in range(TURNS + 1):
        for model in (small, large):
            begin = clock()
            model.predict(pixels)
            times[len(model.class_names)].append((clock() - begin) / images * 1e6)
    before, after = (found[1:] for found in times.values())  # the first turn warms up
    return {
        "microseconds": {str(classes): statistics.median(found[1:]) for classes, found in times.items()},
        "ratio": statistics.median(b / a for a, b in zip(before, after, strict=True)),
    }


def measure(name: str, scratch: Path, classes: Path) -> dict[str, Any]:
    """Return the measurements of one network."""
    run, file = make_run(scratch / name, NETWORKS[name]), scratch / f"{name}.safetensors"
    seconds = seconds_to_add(run, classes, file)
    small, large = faustnet.load(run, device="cpu"), faustnet.load(file, device="cpu")
    begin = time.perf_counter()
    small.add_classes({path.name: str(path / "1.png") for path in sorted(classes.iterdir())})
    return {
        "network": name,
        "command_seconds": seconds,
        "python_seconds": time.perf_counter() - begin,
        "bytes_before": (run / "model.safetensors").stat().st_size,
        "bytes_after": file.stat().st_size,
        **predictions(small, large, IMAGES[name]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        classes = make_classes(Path(scratch) / "classes")
        found = [measure(name, Path(scratch), classes) for name in NETWORKS]
    about = {"classes": KNOWN, "added": NEW, "cores": len(os.sched_getaffinity(0))}
    result = {**about, "networks": found, "environment": environment(torch.device("cpu"), 0)}
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    counts = f"µs, {KNOWN} classes", f"µs, {KNOWN + NEW} classes"
    columns = ("shortest (s)", "longest (s)", "in Python (s)", *counts, "ratio", "one thread")
    rows = [
        (min(one["command_seconds"]), max(one["command_seconds"]), one["python_seconds"], *one["microseconds"].values())
        for one in found
    ]
    cells = [
        (one["network"], *(f"{cell:.2f}" for cell in (*row, one["ratio"], one["one_thread"]["ratio"])))
        for one, row in zip(found, rows, strict=True)
    ]
    print_table(("network", *columns), cells, numbers=columns)


if __name__ == "__main__":
    main()
