"""The two functions that most scripts need."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faustnet.runs.folder import Run, model_at
from faustnet.runs.model import Model
from faustnet.runs.session import train as train_recipe
from faustnet.runs.start import complete_recipe
from faustnet.runs.tensorboard import make_progress
from faustnet.system.devices import choose_device


def train(
    recipe: Mapping[str, Any],
    out: str | Path,
    *,
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
        data_dir: Folder of downloaded data sets; by default `$FAUSTNET_DATA`, or a folder in the user's cache.
        device: "auto", "cpu", "cuda" or "mps".
        resume: Whether to continue the run in `out`. The recipe may have another number of epochs.
        tensorboard: Whether to write TensorBoard files to the folder `tensorboard` in `out`.

    >>> run = train({"dataset": "mnist", "network": {"widths": [500, 500, 500]}, "training": {"epochs": 5}}, "runs/mnist")
    >>> run.metrics["test_accuracy"]
    """
    return train_recipe(
        complete_recipe(recipe, Run.open(Path(out)).recipe if resume else None),
        Path(out),
        device=choose_device(device),
        progress=make_progress(Path(out), tensorboard),
        data_dir=Path(data_dir) if data_dir else None,
        resume=resume,
        change_epochs=True,
    )


def load(run: str | Path, *, device: str = "auto") -> Model:
    """Return the model of a finished run or of a model file, for example `load("runs/mnist").predict(pixels)`."""
    return model_at(Path(run), choose_device(device))
