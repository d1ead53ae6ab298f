"""How commands change a stored model."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faustnet.cli.options import check_writable, option

if TYPE_CHECKING:
    from faustnet.runs.model import Model

RunOrModel = Annotated[Path, typer.Argument(help="Folder of a finished run of a FAUST method, or a model file.")]
Out = Annotated[Path | None, option("Model file to write; the model of the run stays unchanged.", "the model of the run")]


def change_model(
    run: Path, out: Path | None, device: str, change: "Callable[[Model], Model]"
) -> "tuple[Path, Model, Model]":
    """Change the model of a run or a model file. Return the file that was written, and the model before and after."""
    from faustnet.runs.changing import change_stored_model
    from faustnet.runs.folder import MODEL
    from faustnet.system.devices import choose_device

    target = out or (run if run.is_file() else run / MODEL)

    def checked(model: "Model") -> "Model":
        check_writable(target)
        return change(model)

    before, after = change_stored_model(run, checked, choose_device(device), out)
    if before.threshold is not None and after.threshold is None:
        typer.echo("The rejection threshold was removed: run 'faustnet calibrate' again, on images of all classes.")
    return target, before, after
