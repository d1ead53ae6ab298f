"""The section of docs/new-classes.md about very many classes, from results/many-classes.json and many-references.json."""

import json
from pathlib import Path
from typing import Any

from faustnet.report.tables import markdown

SECTION = """## Very many classes

A prediction compares an image with every reference, in pieces that fit in the processor's cache. Time and memory of a
prediction by one dense layer with embeddings of {embedding} on {cores} cores, the shortest of several, by
`benchmarks/many_references.py`. The last column is the memory of the model and of its predictions, divided by the size of
the references.

{predictions}

{indexed}`benchmarks/many_classes.py` adds {added} classes to {classes} with `faustnet add-classes`, from one image each, in
{dense:.1f} s for three dense layers of 500 units and in {convolutional:.1f} s for four convolutional layers, including the
start of Python, in the shortest of five calls. A prediction then takes {ratio:.2f} times as long with the dense layers, and
{other_ratio:.2f} times with the convolutional ones. The dense layers and the comparisons with their references need
{products:.2f} times as many multiplications as before.

"""
INDEXED = """Among 100,000 classes, an index is faster. It needs the package faiss (`pip install 'faustnet[faiss]'`) and is
made for a model in memory:

<!-- not run: needs many classes -->
```python
indexed = model.indexed(images, recall=0.99)  # images like those to predict, without labels
print(indexed.recall, indexed.predict(images[0]))
```

The index finds a few classes in every layer, whose scores are then computed exactly. At least the fraction `recall` of the
images that it is made with get the same class as without it. Time of a prediction without an index divided by that with one,
on one thread; the images are described in the benchmark:

{table}

"""


def section(folder: Path) -> str:
    """Return the section, or nothing if there are no results."""
    found = [_read(folder / f"{name}.json") for name in ("many-classes", "many-references")]
    if not all(found):
        return ""
    classes, references = found
    dense, convolutional = classes["networks"]
    compared = references["faiss"]["comparisons"]
    return SECTION.format(
        embedding=references["embedding"],
        cores=references["cores"],
        predictions=markdown(PREDICTIONS, [_prediction(one) for one in references["predictions"]]),
        indexed=INDEXED.format(table=markdown(COMPARISONS, [_comparison(one) for one in compared])) if compared else "",
        added=classes["added"],
        classes=classes["classes"],
        dense=min(dense["command_seconds"]),
        convolutional=min(convolutional["command_seconds"]),
        ratio=dense["ratio"],
        other_ratio=convolutional["ratio"],
        products=products(classes["classes"], classes["added"]),
    )


def products(classes: int, added: int) -> float:
    """Return the ratio of the multiplications for one image with and without the added classes, for three dense layers of
    500 units with embeddings of 256 and images of 28 × 28 pixels."""
    network = 784 * 500 + 2 * 500 * 500 + 3 * 500 * 256
    before, after = (network + 3 * 256 * count for count in (classes, classes + added))
    return after / before


PREDICTIONS = ("classes", "one image (ms)", "one image, one thread (ms)", "per image of 100 (ms)", "memory")


def _prediction(one: dict[str, Any]) -> list[str]:
    return [
        f"{one['classes']:,}", f"{one['milliseconds']['shortest']:.1f}", f"{one['milliseconds_one_thread']:.1f}",
        f"{one['milliseconds_per_image_of_100']:.2f}", f"{one['memory']:.2f}",
    ]  # fmt: skip


COMPARISONS = ("classes", "images", "recall", "one image", "100 images at once", "making the index (s)")


def _comparison(one: dict[str, Any]) -> list[str]:
    return [
        f"{one['classes']:,}", one["images"], f"{one['recall']:.3f}", f"{one['ratio']['1']:.1f}",
        f"{one['ratio']['100']:.1f}", f"{one['seconds_to_build']:.1f}",
    ]  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
