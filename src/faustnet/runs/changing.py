"""Changes of a stored model that are written whole or not at all, and of which none is lost."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from faustnet.errors import FaustnetError, require
from faustnet.runs.folder import MODEL, Run, model_at
from faustnet.runs.model import Model
from faustnet.system.files import write_whole
from faustnet.system.locks import folder_lock

PATIENCE = 5.0  # seconds that writing a model file waits for another process that writes to its folder


def change_stored_model(
    path: Path, change: Callable[[Model], Model], device: torch.device, out: Path | None = None
) -> tuple[Model, Model]:
    """Read the model of a run folder or a model file, change it, and write it back or to the file `out`. Return the model
    before and after.

    If the model is written back, this process holds the lock of its folder from reading to writing. It is an error if
    another process holds it. Another file is written while this process holds the lock of that file's folder, for which it
    waits a few seconds.
    """
    stored = path if path.is_file() else Run.open(path).folder / MODEL
    target = out or stored
    replaced = _place(target) == _place(stored)
    with folder_lock(stored.parent) if replaced else nullcontext():
        model = model_at(path, device)
        changed = change(model)
        require(
            isinstance(changed, Model),
            f"change must return the changed model, got {type(changed).__name__}: return the result of a method such as "
            "model.add_classes.",
        )
        missing = not target.parent.is_dir()  # of which writing says so
        try:
            with nullcontext() if replaced or missing else folder_lock(target.parent, wait=PATIENCE):
                write_whole(target, changed.to_bytes())
        except OSError as error:
            reason = error.strerror or error
            raise FaustnetError(
                f"{target} could not be written ({reason}): free disk space, or choose another path."
            ) from None
    return model, changed


def _place(path: Path) -> Path:
    """Return where a file is replaced: a symbolic link in the place of the file is not followed."""
    return Path(os.path.realpath(path.parent)) / path.name
