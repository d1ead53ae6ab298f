"""A model card: one page of Markdown about an exported model, from its run's own figures."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from faustnet.errors import printable
from faustnet.report.comparisons import markdown
from faustnet.report.paper import TITLES

PAIRS = 8  # confusions that are shown, at most
SPECIAL = re.compile(r"([\\`*_{}\[\]|~$@:#!^=])")  # what may be more than a character where Markdown is shown

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
    """What `export_run` knows of a model → Markdown."""
    parts = (
        _opening(about),
        _how_to_run(about),
        _accuracy(about["metrics"], [text(name) for name in about["class_names"]]),
        _cost(about),
        _training(about),
        _limits(about),
        "## Recipe\n\n`faustnet train --recipe FILE.toml` trains it again, from this file:\n\n"
        f"```toml\n{about['recipe_file']}```",
    )
    return "\n\n".join(parts) + "\n"


def text(value: object) -> str:
    """Anything as plain characters in a line of Markdown; bytes in names that are no characters become question marks."""
    plain = printable(" ".join(str(value).encode(errors="replace").decode().split()))
    return SPECIAL.sub(r"\\\1", html.escape(plain, quote=False))


def _opening(about: dict[str, Any]) -> str:
    metrics, recipe = about["metrics"], about["recipe"]
    images = sum(map(sum, metrics["confusion"]))
    return "\n\n".join(
        (
            f"# {text(about['file'])}",
            f"Names the class of {_one_image(about)}, out of {len(about['class_names'])}. "
            f"**{metrics['test_accuracy']:.2%}** of {images:,} test images of {text(_dataset(about))} are named rightly.",
            _facts(
                {
                    "data set": _dataset(about),
                    "method": f"{recipe['method']}: {about['summary']}",
                    "network": about["network"],
                    "who votes": _voters(about),
                    "file": f"ONNX, {_bytes(about['size'])}, with the classes, the references and the scaling of the pixels",
                    "made by": f"faustnet {about['environment'].get('faustnet', '')}",
                }
            ),
        )
    )


def _voters(about: dict[str, Any]) -> str:
    prediction, voters = about["recipe"]["prediction"], about["metrics"]["voters"]
    weights = prediction["weights"] or [1.0] * len(voters)
    named = [name if weight == 1 else f"{name} × {weight:g}" for name, weight in zip(voters, weights, strict=True)]
    if prediction.get("layers") == "last":
        named = voters[-1:]
    return ", ".join(named) + ("; each on an image and its mirror image" if prediction["mirror"] else "")


def _how_to_run(about: dict[str, Any]) -> str:
    kind, values = ("uint8", "bytes from 0 to 255") if about["of_bytes"] else ("float32", "numbers as in the data set")
    sizes = ", ".join(map(str, about["shape"]))
    snippet = RUN_IT.format(file=about["file"], sizes=sizes, kind=kind, axes="(n, channels, height, width)")
    columns, voters = ("", "shape", "type", "what it is"), len(about["metrics"]["voters"])
    classes = len(about["class_names"])
    rows = [
        ("`images`", f"(n, {sizes})", kind, f"{values}; the scaling is inside"),
        ("`votes`", f"(n, {voters}, {classes})", "float32", "each voter's score of each class; larger is better"),
        ("`joined`", f"(n, {classes})", "float32", "the votes by their weights, summed"),
        ("`prediction`", "(n)", "int64", "the number of the class with the largest sum"),
    ]
    return "\n\n".join(
        (
            "## How to run it",
            "`pip install numpy onnxruntime`, and then:",
            snippet,
            _table(columns, rows),
            "`examples/predict_onnx.py` in faustnet's repository does this with image files of any size.",
        )
    )


def _accuracy(metrics: dict[str, Any], names: Sequence[str]) -> str:
    voters = zip(metrics["voters"], metrics["layer_accuracy"], metrics["first_layers_accuracy"], strict=True)
    by_voter = [(text(name), f"{alone:.2%}", f"{together:.2%}") for name, alone, together in voters]
    return "\n\n".join(
        (
            "## Accuracy",
            "Of the test images, by who answers, alone and together with all before:",
            markdown(("", "alone", "with all before"), by_voter),
            "By class, the share of its test images that are named so (found), and of the images named so the share "
            "that are of it (right):",
            markdown(("class", "number", "test images", "found", "right"), _by_class(metrics["confusion"], names)),
            _pairs(metrics["confusion"], names),
        )
    )


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
        return "No test image is taken for one of another class."
    worst = sorted(found, key=lambda pair: -pair[0])[:PAIRS]
    rows = [(names[row], names[column], f"{count:,}", _share(count, sum(confusion[row]))) for count, row, column in worst]
    columns = ("class", "taken for", "test images", "of the class")
    return f"What is taken for something else most often:\n\n{_table(columns, rows, numbers=2)}"


def _cost(about: dict[str, Any]) -> str:
    metrics = about["metrics"]
    passes = metrics["forward_passes"]
    where = _device(about["environment"])
    return "## Cost\n\n" + _facts(
        {
            "parameters": f"{metrics['parameters']:,}",
            "multiplications for an image": f"{about['multiplications']:,}, in {passes} forward pass{'es' * (passes > 1)}",
            "time for an image, alone": f"{about['onnx_seconds'] * 1e6:,.0f} µs in ONNX Runtime with one thread, "
            f"{about['onnx_processor']}",
            "time for an image, many at once": f"{metrics['seconds_per_image'] * 1e6:,.1f} µs in PyTorch, {where}",
            "file": _bytes(about["size"]),
            "difference to PyTorch": f"{about['difference']:.1g} at most in a score, on random images",
        }
    )


def _training(about: dict[str, Any]) -> str:
    metrics, made, recipe = about["metrics"], about["environment"], about["recipe"]
    commit = made.get("commit")
    lines = {
        "epochs": str(metrics["epochs"]),
        "time": f"{metrics['train_seconds']:,.1f} s without evaluations",
        "schedule": metrics["schedule"],
        "batch": f"{recipe['training']['batch_size']} images",
        "optimiser": f"{recipe['optimiser']['name']}, learning rate {recipe['optimiser']['learning_rate']:g} at its highest",
        "device": _device(made),
        "versions": f"faustnet {made.get('faustnet')}, PyTorch {made.get('torch')}, Python {made.get('python')}",
        "commit": "not known" if not commit else f"{commit.rstrip('+')}{', changed' if commit.endswith('+') else ''}",
        "seed": str(recipe["seed"]),
        "begun": str(made.get("started")),
    }
    if metrics.get("validation_accuracy") is not None:
        lines["validation accuracy"] = f"{metrics['validation_accuracy']:.2%} of training images that were held out"
    return "## How it was trained\n\n" + _facts(lines)


def _limits(about: dict[str, Any]) -> str:
    classes, dataset = len(about["class_names"]), text(_dataset(about))
    confusion = about["metrics"]["confusion"]
    shares = [row[number] / sum(row) for number, row in enumerate(confusion) if sum(row)]
    return "\n".join(
        (
            "## Intended use and limits",
            "",
            f"- It is for images like those of {dataset}, as {_one_image(about)}. It has been measured on the test images "
            "of that data set and on nothing else: measure it on images of your own before you rely on it.",
            f"- It names one of its {classes} classes for every image, also for one that shows none of them; there is no "
            "answer for something unknown.",
            "- Scores compare classes with each other. They are no probabilities.",
            f"- Classes differ: of the one that is found least often {min(shares):.1%} of the test images are named "
            f"rightly, of the one that is found most often {max(shares):.1%}.",
        )
    )


def _one_image(about: dict[str, Any]) -> str:
    channels, height, width = about["shape"]
    if height * width == 1:
        return f"a row of {channels} numbers"
    kind = {1: "a grey image", 3: "a colour image"}.get(channels, f"an image of {channels} channels")
    return f"{kind} of {height}×{width} pixels"


def _dataset(about: dict[str, Any]) -> str:
    """By its title if it is a well-known one, or else by its own name, which may hold anything."""
    return TITLES.get(about["recipe"]["dataset"], about["dataset"])


def _device(made: dict[str, Any]) -> str:
    device, threads = made.get("device"), made.get("threads")
    return f"{made.get('processor')}, {threads} thread{'s' * (threads != 1)}" if device == "cpu" else str(device)


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}" if of else "–"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def _facts(facts: dict[str, str]) -> str:
    """What is known by name, whatever characters it is made of."""
    return _table(("", ""), [(f"**{name}**", text(value)) for name, value in facts.items()])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """The last columns may hold numbers."""
    rules = ["---"] * (len(columns) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rules, *rows))
