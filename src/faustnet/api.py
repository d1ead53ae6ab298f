"""The functions that most scripts need."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faustnet.data import MEMORY, DataSet, data_digest, data_in_memory
from faustnet.errors import require
from faustnet.runs.changing import change_stored_model
from faustnet.runs.folder import Run, model_at
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed
from faustnet.runs.session import train as train_recipe
from faustnet.runs.start import complete_recipe
from faustnet.runs.tensorboard import make_progress
from faustnet.system.devices import choose_device


def train(
    recipe: Mapping[str, Any],
    out: str | Path,
    *,
    data: Any = None,
    test: Any = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    tensorboard: bool = False,
) -> Run:
    """Train the network that a recipe describes, write the run folder `out`, and return the run.

    Ctrl-C stops the training after the current batch, saves its state, and raises KeyboardInterrupt.

    Args:
        recipe: Settings that differ from the defaults, as in a recipe file.
        out: Run folder.
        data: Training data in memory, in place of `dataset` in the recipe: a pair (x, y) of arrays, tensors or pandas
            tables; a map-style data set; an iterable data set or a data loader. All samples are read once.
            Images are (n, h, w), (n, c, h, w) or (n, h, w, c), tables (n, columns); with `network.kind = "transformer"`,
            whole numbers (n, T) are token ids, where 0 is padding. Labels can have any type.
        test: Test data of the same kinds. None: a fifth of `data`.
        data_dir: Folder of downloaded data sets; by default `$FAUSTNET_DATA`, or a folder in the user's cache.
        device: "auto", "cpu", "cuda" or "mps".
        resume: Whether to continue the run in `out`. The recipe may have another number of epochs.
        tensorboard: Whether to write TensorBoard files to the folder `tensorboard` in `out`.

    >>> run = train({"dataset": "mnist", "network": {"widths": [500, 500, 500]}, "training": {"epochs": 5}}, "runs/mnist")
    >>> run.metrics["test_accuracy"]
    """
    begun = Run.open(Path(out)).recipe if resume else None
    require(data is not None or test is None, "test needs data, the training data in memory: add it, or leave out test.")
    found = None
    if data is None:
        settings = complete_recipe(recipe, begun)
    else:
        settings, found = _with_memory(recipe, begun, data, test)
    return train_recipe(
        settings,
        Path(out),
        device=choose_device(device),
        progress=make_progress(Path(out), tensorboard),
        data_dir=Path(data_dir) if data_dir else None,
        resume=resume,
        change_epochs=True,
        data=found,
    )


def _with_memory(table: Mapping[str, Any], begun: Recipe | None, data: Any, test: Any) -> tuple[Recipe, DataSet]:
    """Return the recipe of a run on data in memory, with their digest, and the data."""
    name = table.get("dataset", MEMORY) if isinstance(table, Mapping) else MEMORY
    require(name == MEMORY, f"dataset must be left out of the recipe if data is given, got {name!r}.")
    settings = complete_recipe({**table, "dataset": MEMORY}, begun)
    found = data_in_memory(data, test, tokens=settings.network.kind == "transformer")
    digest = data_digest(found)
    wanted = (begun or settings).data.digest
    require(
        begun is None or bool(wanted),
        "data must be left out, because the run to resume was not started with data in memory.",
    )
    require(
        wanted in ("", digest),
        f"data and test must be those that the run began with, in the same order (SHA-256 {wanted[:12]}…, got "
        f"{digest[:12]}…): give the same data, or start a new run.",
    )
    return changed(settings, {"data.digest": digest}), found


def load(run: str | Path, *, device: str = "auto") -> Model:
    """Return the model of a finished run or of a model file, for example `load("runs/mnist").predict(pixels)`."""
    return model_at(Path(run), choose_device(device))


def change_model(
    run: str | Path, change: Callable[[Model], Model], *, out: str | Path | None = None, device: str = "auto"
) -> Model:
    """Change the model of a finished run or a model file, for example
    `change_model("runs/mnist", lambda model: model.remove_class("9"))`, and return the changed model.

    The file is written completely, or stays as it is if there is an error. Only one process at a time can change it, so that
    no change is lost.

    Args:
        run: Run folder or model file.
        change: Function that gets the model and returns the changed one, for example with `Model.add_classes`.
        out: Model file to write; by default the model is replaced.
        device: "auto", "cpu", "cuda" or "mps".
    """
    return change_stored_model(Path(run), change, choose_device(device), Path(out) if out else None)[1]
