"""Measure the time and the memory of a prediction among 1,000, 10,000 and 100,000 classes.

    python benchmarks/many_references.py results/many-references.json      ten minutes

A model with one dense layer and embeddings of 256 has one random reference per class; the time of an exact search does not
depend on their values. `memory` is the largest resident memory during the predictions, minus that before the model was made,
divided by the size of the references.

If faiss is installed (`pip install 'faustnet[faiss]'`), `Model.indexed` is compared with the exact prediction, on one thread
each, by the processor time. The references are then embeddings of random images, and images to predict are changed copies of
them. The pixels of the images are "independent" or, like those of photographs, "related": a random network maps 32 random
numbers to the pixels of an image. The index has a recall of 0.99.
"""

import argparse
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faustnet.data import Images
from faustnet.report.tables import print_table
from faustnet.runs.indexed import IndexedModel
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.system.environment import environment
from faustnet.training.evaluation import all_embeddings

CLASSES = (1_000, 10_000, 100_000)
EMBEDDING, SHAPE = 256, (1, 28, 28)
TURNS, AT_ONCE = 30, 100
KINDS = ("independent", "related")
RECALL, QUERIES, LATENT = 0.99, 500, 32


def make_model(classes: int) -> Model:
    recipe = recipe_from({"method": "faust-tuplet", "network": {"widths": [500], "embedding": EMBEDDING}})
    images = Images(torch.randint(256, (2, *SHAPE), dtype=torch.uint8), torch.zeros(2, dtype=torch.long))
    model = Model.fresh(recipe, images, [f"class {number}" for number in range(classes)])
    for layer in model.method.references:
        layer.normal_()
    model.method.mark_ready()
    return model


def times(action: Callable[[], object], clock: Callable[[], float], turns: int = TURNS) -> list[float]:
    """Return the milliseconds of each of some calls, after two more that warm up."""
    found = []
    for _ in range(turns + 2):
        begin = clock()
        action()
        found.append((clock() - begin) * 1e3)
    return found[2:]


def memory(key: str) -> int:
    """Return a number of bytes from the kernel's account of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def predictions(classes: int) -> dict[str, Any]:
    """Return the measurements of predictions. Call it in a new process, because memory that was freed is not counted."""
    make_model(10).predict(torch.zeros(1, *SHAPE, dtype=torch.uint8))  # imports
    before = memory("VmRSS")
    model = make_model(classes)
    pixels = torch.randint(256, (AT_ONCE, *SHAPE), dtype=torch.uint8)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest resident memory so far
    one = times(lambda: model.predict(pixels[:1]), time.perf_counter, 5 * TURNS)
    several = times(lambda: model.predict(pixels), time.perf_counter)
    size = sum(layer.numel() * layer.element_size() for layer in model.method.references)
    peak = memory("VmHWM") - before
    torch.set_num_threads(1)
    return {
        "classes": classes,
        "bytes": size,
        "milliseconds": {"median": statistics.median(one), "shortest": min(one)},
        "milliseconds_one_thread": statistics.median(times(lambda: model.predict(pixels[:1]), time.process_time)),
        "milliseconds_per_image_of_100": min(several) / AT_ONCE,
        "peak_bytes": peak,
        "memory": peak / size,
    }


def make_images(kind: str, classes: int) -> tuple[Tensor, Tensor]:
    """Return an image of each class, and changed copies of some. → (C, 1, 28, 28), (n, 1, 28, 28)"""
    random = torch.Generator().manual_seed(0)
    pixels, own = math.prod(SHAPE), torch.randint(classes, (QUERIES,), generator=random)
    size = pixels if kind == "independent" else LATENT
    causes = torch.randn(classes, size, generator=random)
    changed = causes[own] + torch.randn(QUERIES, size, generator=random) / 4
    if kind == "related":
        first = torch.randn(LATENT, 512, generator=random) * 2 / LATENT**0.5
        second = torch.randn(512, pixels, generator=random) / 512**0.5
        causes, changed = ((one @ first).relu() @ second for one in (causes, changed))
    return tuple((128 + 40 * one).clamp(0, 255).byte().view(-1, *SHAPE) for one in (causes, changed))


def compare(kind: str, classes: int) -> dict[str, Any]:
    """Compare predictions with an index and exact ones."""
    images, queries = make_images(kind, classes)
    model = make_model(classes)
    source = model.source(model.images(images))
    model.method.references.set(all_embeddings(model.method, source))
    begin = time.process_time()
    indexed = model.indexed(queries, RECALL)
    seconds = time.process_time() - begin
    found = {str(count): in_turns(model, indexed, queries[:count]) for count in (1, AT_ONCE)}
    return {
        "images": kind,
        "classes": classes,
        "visited": indexed.visited,
        "recall": indexed.recall,
        "seconds_to_build": seconds,
        "milliseconds_per_image": {count: {"exact": exact, "index": fast} for count, (exact, fast) in found.items()},
        "ratio": {count: exact / fast for count, (exact, fast) in found.items()},
    }


def in_turns(model: Model, indexed: IndexedModel, images: Tensor) -> list[float]:
    """Return the milliseconds per image of both predictions, in turns, so that the speed of the machine affects both."""
    exact, fast = [], []
    for _ in range(TURNS):
        exact += times(lambda: model.predict(images), time.process_time, 1)
        fast += times(lambda: indexed.predict(images), time.process_time, 1)
    return [statistics.median(one) / len(images) for one in (exact, fast)]


def compare_all() -> tuple[str, list[dict[str, Any]]]:
    """Return the version of faiss and the comparisons; nothing if faiss is not installed."""
    try:
        faiss = import_module("faiss")
    except ImportError:
        return "", []
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    return faiss.__version__, [compare(kind, classes) for classes in CLASSES for kind in KINDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    out = parser.parse_args().out
    found = []
    for classes in CLASSES:
        with get_context("spawn").Pool(1) as process:
            found.append(process.apply(predictions, [classes]))
    with get_context("spawn").Pool(1) as process:
        version, compared = process.apply(compare_all)
    about = {"embedding": EMBEDDING, "layers": 1, "cores": len(os.sched_getaffinity(0))}
    result = {**about, "predictions": found, "faiss": {"version": version, "comparisons": compared}}
    result["environment"] = environment(torch.device("cpu"), 0)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    columns = ("classes", "one image (ms)", "one thread (ms)", "per image of 100 (ms)", "memory / references")
    rows = [
        (
            f"{one['classes']:,}", f"{one['milliseconds']['median']:.2f}", f"{one['milliseconds_one_thread']:.2f}",
            f"{one['milliseconds_per_image_of_100']:.3f}", f"{one['memory']:.2f}",
        )
        for one in found
    ]  # fmt: skip
    print_table(columns, rows, numbers=columns)
    columns = ("classes", "images", "recall", "exact / index", "exact / index, 100 at once", "build (s)")
    rows = [
        (
            f"{one['classes']:,}", one["images"], f"{one['recall']:.3f}", f"{one['ratio']['1']:.1f}",
            f"{one['ratio'][str(AT_ONCE)]:.1f}", f"{one['seconds_to_build']:.1f}",
        )
        for one in compared
    ]  # fmt: skip
    print_table(columns, rows, numbers=("classes", *columns[2:]))


if __name__ == "__main__":
    main()
