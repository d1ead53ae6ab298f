"""Curves of a training for TensorBoard, in its own files."""

import io
import json
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from faustnet.data import DataSet
from faustnet.errors import FaustnetError
from faustnet.runs.model import Model
from faustnet.runs.progress import Lines
from faustnet.runs.recipes import dotted, write_recipe
from faustnet.runs.session import Progress
from faustnet.system.files import write_whole
from faustnet.training.history import Epoch, curves
from faustnet.training.trainer import Trainer

FOLDER = "tensorboard"  # in a run's


def watching(run: Path, tensorboard: bool) -> Progress:
    """Who watches a training: lines on the screen, and TensorBoard where it is asked for or has watched before."""
    folder = run / FOLDER
    return TensorBoard(folder, Lines()) if tensorboard or folder.is_dir() else Lines()


class TensorBoard:
    """Writes every epoch's curves and the recipe into a folder while another watches too.

    A training that is continued gets a new file with all of its epochs in place of the old one: no epoch is missing, and
    none is there twice. Nothing is written before an epoch is complete.
    """

    def __init__(self, folder: Path, other: Progress):
        self.folder, self.other = folder, other
        self.path: Path | None = None
        try:
            self.torch_part = import_module("torch.utils.tensorboard")
            self.messages = import_module("tensorboard.compat.proto.event_pb2")
        except ImportError:
            raise FaustnetError(
                "--tensorboard needs the package tensorboard: install it with pip install 'faustnet[tensorboard]'."
            ) from None

    def begin(self, model: Model, data: DataSet, trainer: Trainer) -> None:
        self.model, self.trainer = model, trainer
        self.other.begin(model, data, trainer)

    def batch(self) -> None:
        self.other.batch()

    def epoch(self, epoch: Epoch) -> None:
        try:
            if self.path is None:
                self.path = self._start()
            else:
                with self.path.open("ab") as file:
                    file.write(self._records(self._events(epoch)))
        except OSError as error:
            raise FaustnetError(
                f"{self.folder} could not be written to ({error.strerror}): make room for it, then continue with "
                f"'faustnet train --resume --out {self.folder.parent}' from what was saved before."
            ) from None
        self.other.epoch(epoch)

    def end(self) -> None:
        self.other.end()

    def _start(self) -> Path:
        """A file with all that there is so far; its name says that it comes after those that it replaces."""
        self.folder.mkdir(exist_ok=True)
        old = list(self.folder.glob("events.out.tfevents.*"))
        path = self.folder / f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}"
        epochs = [event for epoch in self.trainer.history for event in self._events(epoch)]
        write_whole(path, self._records([*self._opening(), *epochs]))
        for other in old:
            if other != path:
                other.unlink()
        return path

    def _opening(self) -> list[Any]:
        """What every file begins with, a word to forget what came before, and the recipe."""
        recipe, summary = self.model.recipe, self.torch_part.summary
        log = self.messages.SessionLog(status=self.messages.SessionLog.START)
        values = {
            key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for key, value in dotted(recipe).items()
        }
        indented = "".join(f"    {line}\n" for line in write_recipe(recipe).splitlines())
        about = [summary.text("recipe", indented), *summary.hparams(values, {"accuracy/all": None})]
        return [
            self._event(file_version="brain.Event:2"),
            self._event(session_log=log),
            *(self._event(summary=part) for part in about),
        ]

    def _events(self, epoch: Epoch) -> list[Any]:
        method, scalar = self.model.method, self.torch_part.summary.scalar
        values = curves(epoch, method.learners, method.voters).items()
        return [self._event(step=epoch.epoch, summary=scalar(name, value)) for name, value in values if value is not None]

    def _event(self, **content: Any) -> Any:
        return self.messages.Event(wall_time=time.time(), **content)

    def _records(self, events: list[Any]) -> bytes:
        file = io.BytesIO()
        writer = self.torch_part.RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        return file.getvalue()
