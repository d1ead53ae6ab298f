"""Export of a finished run to one ONNX file, which runs without PyTorch, and to a model card.

The input of the ONNX graph is `images`, (n, channels, height, width): uint8 for models of images, float32 for models of
other numbers. The graph scales them itself. For models of texts the input is `tokens`, (n, tokens), int64. The outputs are
`votes`, (n, voters, classes), the scores of each voter; `joined`, (n, classes), their weighted sum; and `prediction`, (n,),
the number of the class with the largest sum. The file stores the entries of `METADATA` as text.
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
from faustnet.system.files import partials, write_whole, writing
from faustnet.version import VERSION

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
METADATA = ("faustnet", "class_names", "voters", "shape", "recipe", "test_accuracy")  # lists as JSON, the recipe as TOML
TOKENISER = "tokeniser"  # entry of models of texts: JSON of the library tokenizers, whose ids are smaller by 1
LARGEST = 2**31 - 1  # bytes in one ONNX file
COMPARED = 16  # random images whose scores are compared with PyTorch's before a file is written
TOLERANCE = 1e-4  # relative to the largest score, or to 1 if that is larger
TIMED = 50  # predictions of one image


@dataclass(frozen=True)
class Exported:
    """The files of one export."""

    path: Path
    card: Path
    size: int  # bytes
    difference: float  # largest difference between a score of the file and PyTorch's


def export_run(run: Run, path: Path, *, force: bool = False) -> Exported:
    """Write the model of a finished run to an .onnx file, and a model card to the .md file of the same name. If its classes
    were changed after training, both name no accuracy."""
    card = path.with_suffix(".md")
    require(path.suffix.lower() == ".onnx", f"The name of the ONNX file must end in .onnx, got {path}.")
    killed = partials(path)  # of an earlier export, which may have written its card already
    for old in [path] if killed else [path, card]:
        require(force or not old.exists(), f"{old} already exists: choose another name, or overwrite it with --force.")
    for name in PACKAGES:
        _imported(name)
    model, metrics, made = run.model(), run.metrics, run.environment
    measured = run.covers_classes(model)
    content, multiplications = to_onnx(model, metrics["test_accuracy"] if measured else None)
    difference, seconds = check(content, model)
    about = {
        "file": path.name,
        "dataset": _dataset(model),
        "shape": list(model.shape),
        "of_bytes": model.of_bytes,
        "vocabulary": model.vocabulary,
        "network": network_in_words(model),
        "summary": model.method.summary,
        "class_names": list(model.class_names),
        "recipe": as_table(model.recipe),
        "recipe_file": _recipe_file(model),
        "metrics": metrics,
        "measured": measured,
        "environment": made,
        "multiplications": multiplications,
        "size": len(content),
        "difference": difference,
        "onnx_seconds": seconds,
        "onnx_processor": environment(torch.device("cpu"), model.recipe.seed)["processor"],
    }
    with writing(path) as file:
        file.write(content)
        file.flush()  # a full disk is noticed before the card is written
        write_whole(card, render_card(about).encode())
    for old in [*killed, *partials(card)]:
        old.unlink(missing_ok=True)
    return Exported(path, card, len(content), difference)


def to_onnx(model: Model, test_accuracy: float | None) -> tuple[bytes, int]:
    """Convert a model, which must be on the CPU. Return the contents of an ONNX file and the number of multiplications for
    one image. The entry of an unknown accuracy is empty."""
    import onnx
    import onnx_ir

    from faustnet.export.tracing import to_graph  # which imports the packages of the export extra

    graph, multiplications = to_graph(model)
    size = sum(value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value is not None)
    require(
        size < LARGEST,
        f"An ONNX file must be smaller than {LARGEST:,} bytes, but this model has {size:,}: train a smaller model.",
    )
    graph.producer_name, graph.producer_version = "faustnet", VERSION
    graph.metadata_props.update(
        faustnet=VERSION,
        class_names=json.dumps(model.class_names),
        voters=json.dumps(model.method.voters),
        shape=json.dumps(model.shape),
        recipe=_recipe_file(model),
        test_accuracy="" if test_accuracy is None else str(test_accuracy),
    )
    if model.tokeniser:
        graph.metadata_props[TOKENISER] = model.tokeniser.definition
    proto = onnx_ir.to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString(), multiplications


def session_of(content: bytes) -> Any:
    """Return a session of ONNX Runtime with one thread, which logs errors only."""
    runtime = _imported("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def check(content: bytes, model: Model) -> tuple[float, float]:
    """Compare the scores of random images with PyTorch's: of all at once, and of one alone. Return the largest difference,
    and the median time for one image in seconds."""
    images, name = _random_inputs(model), "tokens" if model.tokeniser else "images"
    wanted = model.scores(images).transpose(0, 1).numpy()
    try:
        session = session_of(content)
        found = np.concatenate([session.run(["votes"], {name: some})[0] for some in (images, images[:1])])
    except Exception as error:  # ONNX Runtime has no base class for its errors
        raise FaustnetError(
            f"{model.method.name} cannot be exported: ONNX Runtime cannot run it ({error}). "
            "Write its scores with other operations."
        ) from error
    difference = float(np.abs(found - np.concatenate([wanted, wanted[:1]])).max())
    require(
        difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max())),
        f"The scores of ONNX Runtime differ from PyTorch's by up to {difference:.2g}, so no file was written: "
        "install the version of onnxruntime in constraints.txt; in a method of your own, also check that "
        "the scores of an image do not depend on other images.",
    )
    times = []
    for _ in range(TIMED):
        begin = time.perf_counter()
        session.run(["prediction"], {name: images[:1]})
        times.append(time.perf_counter() - begin)
    return difference, statistics.median(times)


def _random_inputs(model: Model) -> np.ndarray:
    """Return random images like those of the training data, or random texts of any length."""
    random = np.random.default_rng(0)
    if model.tokeniser:
        ids = random.integers(1, model.vocabulary, (COMPARED, *model.shape))
        return np.where(np.arange(model.shape[0]) < random.integers(1, model.shape[0] + 1, (COMPARED, 1)), ids, 0)
    noise = random.normal(size=(COMPARED, *model.shape))
    if model.scaling:
        noise = noise * model.scaling.deviation.numpy() + model.scaling.mean.numpy()
    return noise.clip(0, 255).astype(np.uint8) if model.of_bytes else noise.astype(np.float32)


def _dataset(model: Model) -> str:
    """Return the name of the data set. Of a path only the last part: the rest is private."""
    return Path(model.recipe.dataset).name


def _recipe_file(model: Model) -> str:
    start = replace(model.recipe.start, model=Path(model.recipe.start.model).name)
    return write_recipe(replace(model.recipe, dataset=_dataset(model), start=start))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise FaustnetError(
            f"Exporting a model needs the package {name}: install it with pip install 'faustnet[export]'."
        ) from None
