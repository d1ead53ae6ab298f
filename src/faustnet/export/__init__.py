"""A finished run as one ONNX file, which needs no PyTorch, and a model card beside it.

The file takes `images`, (n, channels, height, width), as bytes, or as float32 where the model was trained on numbers of
another kind, and scales them itself. It gives `votes`, (n, voters, classes), each voter's scores; `joined`, (n, classes),
these by their weights as one; and `prediction`, (n,), the number of the best class. `METADATA` lies in it as text.
"""

import json
import statistics
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faustnet.errors import FaustnetError, require
from faustnet.report.card import render_card
from faustnet.runs.analysis import network_in_words
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import as_table, write_recipe
from faustnet.system.environment import environment
from faustnet.system.files import partials, prepared, write_whole
from faustnet.version import VERSION

METADATA = ("faustnet", "class_names", "voters", "shape", "recipe", "test_accuracy")  # lists as JSON, the recipe as TOML
LARGEST = 2**31 - 1  # bytes in one ONNX file
COMPARED = 16  # images whose scores must be PyTorch's before a file is written
TOLERANCE = 1e-4  # of the largest score, or of 1
TIMED = 50  # predictions of one image


@dataclass(frozen=True)
class Exported:
    path: Path
    card: Path
    size: int  # bytes
    difference: float  # the largest between a score there and PyTorch's


def export_run(run: Run, path: Path, *, force: bool = False) -> Exported:
    """Write a finished run's model to an .onnx file and a model card to the .md file of that name."""
    card = path.with_suffix(".md")
    require(path.suffix.lower() == ".onnx", f"{path} is no name for an ONNX file: call it something.onnx.")
    killed = partials(path)  # then the card is of the export that was killed
    for file in [path] if killed else [path, card]:
        require(force or not file.exists(), f"{file} exists already: choose another name, or replace it with --force.")
    model, metrics, made = run.model_as_trained(), run.metrics, run.environment
    content, multiplications = to_onnx(model, metrics["test_accuracy"])
    difference, seconds = _tried(content, model)
    about = {
        "file": path.name,
        "dataset": _dataset(model),
        "shape": list(model.shape),
        "of_bytes": model.of_bytes,
        "network": network_in_words(model),
        "summary": model.method.summary,
        "class_names": list(model.class_names),
        "recipe": as_table(model.recipe),
        "recipe_file": _recipe_file(model),
        "metrics": metrics,
        "environment": made,
        "multiplications": multiplications,
        "size": len(content),
        "difference": difference,
        "onnx_seconds": seconds,
        "onnx_processor": environment(torch.device("cpu"), model.recipe.seed)["processor"],
    }
    with prepared(path, content):
        write_whole(card, render_card(about).encode())
    for file in [*killed, *partials(card)]:
        file.unlink(missing_ok=True)
    return Exported(path, card, len(content), difference)


def to_onnx(model: Model, test_accuracy: float) -> tuple[bytes, int]:
    """The contents of an ONNX file, and how many multiplications one image takes in it."""
    _imported("onnx")
    from faustnet.export.graph import Graph
    from faustnet.export.translation import write_model

    graph = Graph()
    write_model(graph, model)
    numbers = sum(len(constant.raw_data) for constant in graph.constants)
    require(numbers < LARGEST, f"The model's {numbers:,} bytes do not fit in one ONNX file: train a smaller one.")
    facts = {
        "faustnet": VERSION,
        "class_names": json.dumps(model.class_names),
        "voters": json.dumps(model.method.voters),
        "shape": json.dumps(model.shape),
        "recipe": _recipe_file(model),
        "test_accuracy": str(test_accuracy),
    }
    return graph.to_model(("faustnet", VERSION), facts).SerializeToString(), graph.multiplications


def session_of(content: bytes) -> Any:
    """ONNX Runtime with one thread, quiet."""
    runtime = _imported("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _tried(content: bytes, model: Model) -> tuple[float, float]:
    """By how much scores of noise differ from PyTorch's, and how many seconds the prediction of one image takes."""
    session = session_of(content)
    noise = np.random.default_rng(0).normal(size=(COMPARED, *model.shape))
    pixels = noise * model.scaling.deviation.numpy() + model.scaling.mean.numpy()
    images = pixels.clip(0, 255).astype(np.uint8) if model.of_bytes else pixels.astype(np.float32)
    wanted = model.scores(images).transpose(0, 1).numpy()
    found = session.run(["votes"], {"images": images})[0]
    difference = float(np.abs(found - wanted).max())
    require(
        difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max())),
        f"ONNX Runtime's scores differ from PyTorch's by up to {difference:.2g}, so nothing was written: "
        "install the version of onnxruntime in constraints.txt.",
    )
    times = []
    for _ in range(TIMED):
        begin = time.perf_counter()
        session.run(["prediction"], {"images": images[:1]})
        times.append(time.perf_counter() - begin)
    return difference, statistics.median(times)


def _dataset(model: Model) -> str:
    """Its name; of the user's own the last part of its path, for where it lies is nobody else's business."""
    return Path(model.recipe.dataset).name


def _recipe_file(model: Model) -> str:
    return write_recipe(replace(model.recipe, dataset=_dataset(model)))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise FaustnetError(f"An export needs {name}: install it with pip install 'faustnet[export]'.") from None
