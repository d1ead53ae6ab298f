"""TensorBoard files of a training."""

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
from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.recipes import dotted, write_recipe
from faustnet.runs.session import Progress
from faustnet.system.files import write_whole
from faustnet.training.history import Epoch, curves
from faustnet.training.loop import TrainingLoop

FOLDER = "tensorboard"  # in the run folder


def make_progress(run: Path, tensorboard: bool) -> Progress:
    """Return the progress of a training: on the console, and for TensorBoard if requested or if the run already has it."""
    folder, console = run / FOLDER, ConsoleProgress()
    return TensorBoard(folder, console) if tensorboard or folder.is_dir() else console


class TensorBoard:
    """Writes the recipe and the curves of every epoch into a folder, and passes all events on to another progress.

    A resumed training replaces the old file by a new one with all epochs, so that no epoch is missing and none appears
    twice. Nothing is written before the first epoch is complete.
    """

    def __init__(self, folder: Path, other: Progress):
        self.folder, self.other = folder, other
        self.path: Path | None = None
        try:
            self.torch_part = import_module("torch.utils.tensorboard")
            self.messages = import_module("tensorboard.compat.proto.event_pb2")
        except ImportError:
            raise FaustnetError(
                "TensorBoard files need the package tensorboard: install it with pip install 'faustnet[tensorboard]'."
            ) from None

    def begin(self, model: Model, data: DataSet, trainer: TrainingLoop) -> None:
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
                f"{self.folder} could not be written to ({error.strerror}): free disk space, then continue from the last "
                f"checkpoint with 'faustnet train --resume --out {self.folder.parent}'."
            ) from None
        self.other.epoch(epoch)

    def end(self) -> None:
        self.other.end()

    def _start(self) -> Path:
        """Write a file with all epochs so far. Its name sorts after those of the files that it replaces."""
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
        """Return the first events of a file: its version, a session start, which hides earlier events, and the recipe."""
        recipe, summary = self.model.recipe, self.torch_part.summary
        log = self.messages.SessionLog(status=self.messages.SessionLog.START)
        values = {
            key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for key, value in dotted(recipe).items()
        }
        indented = "".join(f"    {line}\n" for line in write_recipe(recipe).splitlines())
        about = [summary.text("recipe", indented), *summary.hparams(values, {"accuracy/all": None})]
        first = [self._event(file_version="brain.Event:2"), self._event(session_log=log)]
        return first + [self._event(summary=part) for part in about]

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
