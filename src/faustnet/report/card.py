"""Model cards: one page of Markdown about an exported model, from the results of its run."""

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from faustnet.errors import printable
from faustnet.report.paper import TITLES
from faustnet.report.tables import markdown

PAIRS = 8  # confused pairs of classes shown, at most
SPECIAL = re.compile(r"([\\`*_{}\[\]|~$@:#!^=])")  # characters with a meaning in Markdown

RUN_IT = """```python
import json

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({file!r}, providers=["CPUExecutionProvider"])
names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
images = np.zeros((1, {sizes}), np.{kind})  # {axes}
votes, joined, prediction = session.run(None, {{"images": images}})
print([names[number] for number in prediction])
```"""


def render_card(about: dict[str, Any]) -> str:
    """Return the card of a model that `export_run` describes, as Markdown."""
    parts = (
        _opening(about),
        _how_to_run(about),
        _accuracy(about["metrics"], [text(name) for name in about["class_names"]]),
        _cost(about),
        _training(about),
        _limits(about),
        "## Recipe\n\nSave this as a file to train the model again with `faustnet train --recipe FILE.toml`:\n\n"
        f"```toml\n{about['recipe_file']}```",
    )
    return "\n\n".join(parts) + "\n"


def text(value: object) -> str:
    """Return a value as one line of Markdown text, without formatting; invalid Unicode becomes question marks."""
    plain = printable(" ".join(str(value).encode(errors="replace").decode().split()))
    return SPECIAL.sub(r"\\\1", html.escape(plain, quote=False))


def _opening(about: dict[str, Any]) -> str:
    metrics, recipe = about["metrics"], about["recipe"]
    images = sum(map(sum, metrics["confusion"]))
    facts = {
        "data set": _dataset(about),
        "method": f"{recipe['method']}: {about['summary']}",
        "network": about["network"],
        "prediction from": _voters(about),
        "file": f"ONNX, {_bytes(about['size'])}, with class names, references and pixel scaling",
        "made by": f"faustnet {about['environment'].get('faustnet', '')}",
    }
    return f"""# {text(about["file"])}

Classifies {_one_image(about)} into {len(about["class_names"])} classes. Test accuracy: \
**{metrics["test_accuracy"]:.2%}** of {images:,} test images of {text(_dataset(about))}.

{_facts(facts)}"""


def _voters(about: dict[str, Any]) -> str:
    prediction, voters = about["recipe"]["prediction"], about["metrics"]["voters"]
    weights = prediction["weights"] or [1.0] * len(voters)
    named = [name if weight == 1 else f"{name} × {weight:g}" for name, weight in zip(voters, weights, strict=True)]
    if prediction.get("layers") == "last":
        named = voters[-1:]
    return ", ".join(named) + ("; averaged over an image and its mirror image" if prediction["mirror"] else "")


def _how_to_run(about: dict[str, Any]) -> str:
    kind, values = ("uint8", "pixels from 0 to 255") if about["of_bytes"] else ("float32", "values as in the data set")
    sizes = ", ".join(map(str, about["shape"]))
    snippet = RUN_IT.format(file=about["file"], sizes=sizes, kind=kind, axes="(n, channels, height, width)")
    classes, voters = len(about["class_names"]), len(about["metrics"]["voters"])
    rows = [
        ("`images`", f"(n, {sizes})", kind, f"{values}; the model scales them"),
        ("`votes`", f"(n, {voters}, {classes})", "float32", "score of each class by each layer or output; larger is better"),
        ("`joined`", f"(n, {classes})", "float32", "weighted sum of the votes"),
        ("`prediction`", "(n)", "int64", "number of the class with the largest sum"),
    ]
    return f"""## How to run it

After `pip install numpy onnxruntime`:

{snippet}

{markdown(("", "shape", "type", "meaning"), rows, numbers=0)}

`examples/predict_onnx.py` in the repository of faustnet does this for image files of any size."""


def _accuracy(metrics: dict[str, Any], names: Sequence[str]) -> str:
    voters = zip(metrics["voters"], metrics["layer_accuracy"], metrics["first_layers_accuracy"], strict=True)
    by_voter = [(text(name), f"{alone:.2%}", f"{together:.2%}") for name, alone, together in voters]
    classes = ("class", "number", "test images", "recall", "precision")
    return f"""## Accuracy

Test accuracy of each layer or output, alone and together with all before it:

{markdown(("", "alone", "with all before"), by_voter)}

Recall and precision of each class on the test images:

{markdown(classes, _by_class(metrics["confusion"], names))}

{_pairs(metrics["confusion"], names)}"""


def _by_class(confusion: list[list[int]], names: Sequence[str]) -> Iterable[Sequence[str]]:
    given = [sum(column) for column in zip(*confusion, strict=True)]
    for number, (name, row) in enumerate(zip(names, confusion, strict=True)):
        right = row[number]
        yield name, str(number), f"{sum(row):,}", _share(right, sum(row)), _share(right, given[number])


def _pairs(confusion: list[list[int]], names: Sequence[str]) -> str:
    found = [
        (count, row, column)
        for row, counts in enumerate(confusion)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    if not found:
        return "No test image is misclassified."
    worst = sorted(found, key=lambda pair: -pair[0])[:PAIRS]
    rows = [(names[row], names[column], f"{count:,}", _share(count, sum(confusion[row]))) for count, row, column in worst]
    columns = ("true class", "predicted class", "test images", "share of the class")
    return f"Most frequent errors:\n\n{markdown(columns, rows, numbers=2)}"


def _cost(about: dict[str, Any]) -> str:
    metrics = about["metrics"]
    passes = metrics["forward_passes"]
    where = _device(about["environment"])
    return "## Cost\n\n" + _facts(
        {
            "parameters": f"{metrics['parameters']:,}",
            "multiplications per image": f"{about['multiplications']:,}, in {passes} forward pass{'es' * (passes > 1)}",
            "time per image, one at a time": f"{about['onnx_seconds'] * 1e6:,.0f} µs in ONNX Runtime with one thread, "
            f"{about['onnx_processor']}",
            "time per image, in large batches": f"{metrics['seconds_per_image'] * 1e6:,.1f} µs in PyTorch, {where}",
            "file": _bytes(about["size"]),
            "difference to PyTorch": f"at most {about['difference']:.1g} in a score, on random images",
        }
    )


def _training(about: dict[str, Any]) -> str:
    metrics, made, recipe = about["metrics"], about["environment"], about["recipe"]
    commit = made.get("commit")
    lines = {
        "epochs": _epochs(metrics),
        "time": f"{metrics['train_seconds']:,.1f} s, without evaluations",
        "schedule": metrics["schedule"],
        "batch size": f"{recipe['training']['batch_size']}",
        "optimiser": f"{recipe['optimiser']['name']}, peak learning rate {recipe['optimiser']['learning_rate']:g}",
        "device": _device(made),
        "versions": f"faustnet {made.get('faustnet')}, PyTorch {made.get('torch')}, Python {made.get('python')}",
        "commit": commit.replace("+", ", with local changes") if commit else "unknown",
        "seed": str(recipe["seed"]),
        "started": str(made.get("started")),
    }
    if (start := recipe.get("start", {})).get("model"):
        lines["started from"] = _start(start)
    if metrics.get("validation_accuracy") is not None:
        lines["validation accuracy"] = f"{metrics['validation_accuracy']:.2%} of held-out training images"
    return "## How it was trained\n\n" + _facts(lines)


def _epochs(metrics: dict[str, Any]) -> str:
    """Return the number of epochs, and when it was changed after the training had begun."""
    changes = [f"changed from {one['from']} to {one['to']} after {one['after']}" for one in metrics.get("epoch_changes", [])]
    return "; ".join([str(metrics["epochs"]), *changes])


def _start(start: dict[str, Any]) -> str:
    """Return the name and the digest of the model that the training started from, and the layers that were trained."""
    layers = ", ".join(map(str, start["train_layers"])) or "all"
    return f"{PurePath(start['model']).name}, SHA-256 {start['digest']}; layers trained: {layers}"


def _limits(about: dict[str, Any]) -> str:
    classes, dataset = len(about["class_names"]), text(_dataset(about))
    confusion = about["metrics"]["confusion"]
    shares = [row[number] / sum(row) for number, row in enumerate(confusion) if sum(row)]
    return f"""## Intended use and limits

- The model expects images like those of {dataset}: {_one_image(about)}. It was evaluated on the test images \
of that data set only. Evaluate it on your own images before you rely on it.
- It predicts one of its {classes} classes for every image, even if the image shows none of them.
- Scores compare classes with each other. They are not probabilities.
- Accuracy differs between classes: from {min(shares):.1%} to {max(shares):.1%} of the test images of a class \
are classified correctly."""


def _one_image(about: dict[str, Any]) -> str:
    channels, height, width = about["shape"]
    if height * width == 1:
        return f"rows of {channels} numbers"
    kind = {1: "grey images", 3: "colour images"}.get(channels, f"images with {channels} channels")
    return f"{kind} of {height}×{width} pixels"


def _dataset(about: dict[str, Any]) -> str:
    """Return the title of a known data set, or its own name, which may contain any characters."""
    return TITLES.get(about["recipe"]["dataset"], about["dataset"])


def _device(made: dict[str, Any]) -> str:
    device, threads = made.get("device"), made.get("threads")
    return f"{made.get('processor')}, {threads} thread{'s' * (threads != 1)}" if device == "cpu" else str(device)


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}" if of else "–"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def _facts(facts: dict[str, str]) -> str:
    """Return a table of names and values; values may contain any characters."""
    return markdown(("", ""), [(f"**{name}**", text(value)) for name, value in facts.items()], numbers=0)
