"""The run folder: every file in it is whole or not there, and an unfinished run can be continued."""

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from faustnet.errors import FaustnetError
from faustnet.runs.checkpoints import Checkpoints
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, read_recipe, recipe_from, write_recipe
from faustnet.runs.validation import is_consistent, is_environment, is_epoch, parse_json
from faustnet.system.environment import environment
from faustnet.system.files import is_partial, write_whole
from faustnet.system.locks import LOCK
from faustnet.training.history import history_csv
from faustnet.training.trainer import Trainer

RECIPE, ENVIRONMENT, HISTORY, METRICS = "recipe.toml", "environment.json", "history.json", "metrics.json"
LARGEST_JSON = 32 << 20  # bytes of one of these files
HISTORY_TABLE = "history.csv"  # the same for spreadsheets
NEEDED = {
    "test_accuracy": float, "train_seconds": float, "seconds_per_image": float, "voters": list, "layer_accuracy": list,
    "first_layers_accuracy": list, "confusion": list, "forward_passes": int, "schedule": str, "epochs": int,
    "parameters": int,
}  # fmt: skip
MODEL = "model.safetensors"


class Run:
    """The folder that a recipe produced, or is producing."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.checkpoints = Checkpoints(folder)
        self._environment: dict[str, Any] | None = None  # as the run has it, or the checkpoint that was taken up

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """The run in a folder."""
        if not (folder / RECIPE).is_file():
            raise FaustnetError(f"{folder} is not a run, which has a {RECIPE}: name a folder that 'faustnet train' made.")
        return cls(folder)

    def make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FaustnetError(f"{self.folder} cannot be made ({error.strerror}): choose another --out.") from None

    def begin(self, recipe: Recipe) -> None:
        """Write the first file of a new run, in a folder that may have what a killed start has left."""
        self.refuse_existing()
        self.remove_partial()
        self.write(RECIPE, write_recipe(recipe).encode())

    def refuse_existing(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(not _is_litter(p) for p in self.folder.iterdir())):
            raise FaustnetError(f"{self.folder} exists already: choose another --out, or continue it with --resume.")

    @cached_property
    def recipe(self) -> Recipe:
        """What it was made from."""
        return recipe_from(read_recipe(self.folder / RECIPE))

    @property
    def finished(self) -> bool:
        """Whether its training has come to the end."""
        return (self.folder / METRICS).exists() and (self.folder / MODEL).exists()

    @property
    def metrics(self) -> dict[str, Any]:
        """What it came to on the test images, and what that took: the contents of metrics.json."""
        metrics = self.read(METRICS)
        self._check(METRICS, all(type(metrics.get(key)) is kind for key, kind in NEEDED.items()) and is_consistent(metrics))
        return metrics

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every epoch's losses and accuracies: the contents of history.json."""
        history = self.read(HISTORY, list)
        self._check(HISTORY, all(map(is_epoch, history)))
        return history

    @property
    def environment(self) -> dict[str, Any]:
        """Where it was made: the contents of environment.json."""
        made = self.read(ENVIRONMENT)
        here, earlier = {key: value for key, value in made.items() if key != "earlier"}, made.get("earlier", [])
        self._check(ENVIRONMENT, isinstance(earlier, list) and all(map(is_environment, [here, *earlier])))
        return made

    def model(self, device: torch.device = torch.device("cpu")) -> Model:
        """What was learned, ready to predict."""
        if not (self.folder / MODEL).exists():
            again = f"finish it with 'faustnet train --resume --out {self.folder}'"
            raise FaustnetError(f"{self.folder} has no model yet: {again}.")
        return Model.load(self.folder / MODEL, device)

    def model_as_trained(self, device: torch.device = torch.device("cpu")) -> Model:
        """The model, if the run's metrics are of all its classes."""
        model, metrics = self.model(device), self.metrics
        self._check(METRICS, metrics["voters"] == model.method.voters)
        if len(model.class_names) != len(metrics["confusion"]):
            raise FaustnetError(
                f"The model in {self.folder} has learned classes after its training, which the run's figures are not of: "
                "measure it with 'faustnet evaluate'; or add classes to a copy, with --out."
            )
        return model

    def read(self, name: str, kind: type[Any] = dict) -> Any:
        """One of the run's JSON files, which is of this kind."""
        content: Any = None
        try:
            content = parse_json(self._text(name))
        except FileNotFoundError:
            gone = "it has been deleted: put it back" if self.finished else "its training has not come that far: continue it"
            raise FaustnetError(f"{self.folder} has no {name}: {gone}, or train anew.") from None
        except (ValueError, RecursionError):
            pass
        self._check(name, isinstance(content, kind))
        return content

    def _text(self, name: str) -> str:
        path = self.folder / name
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_JSON:
            raise ValueError("it is none of a run's files")
        return path.read_text()

    def _check(self, name: str, good: bool) -> None:
        """Whether one of the run's files is as it was written."""
        if not good:
            mend = (
                "train the run anew elsewhere" if self.finished else "continue the run with --resume, which makes it again"
            )
            raise FaustnetError(f"{self.folder / name} is damaged: {mend}.")

    def write(self, name: str, content: bytes) -> None:
        """Put a whole file in place, or leave what was there."""
        with self._writing(self.folder / name):
            write_whole(self.folder / name, content)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FaustnetError(
                f"{path} could not be written ({error.strerror}): make room for it, then continue with "
                f"'faustnet train --resume --out {self.folder}' from what was saved before."
            ) from None

    def write_json(self, name: str, content: Any) -> None:
        self.write(name, (json.dumps(content, indent=1) + "\n").encode())

    def discard(self) -> None:
        """Take back a run that has nothing worth continuing."""
        for name in (RECIPE, ENVIRONMENT, LOCK):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # the user may have put something else there
            self.folder.rmdir()

    def remove_partial(self) -> None:
        """Files that were being written when the run was killed."""
        for path in filter(is_partial, self.folder.iterdir()):
            path.unlink()

    @property
    def tidy(self) -> bool:
        """Whether nothing is left of the training of a finished run."""
        return self.finished and not self.checkpoints.paths and not any(map(_is_litter, self.folder.iterdir()))

    def conclude(self) -> bool:
        """Whether there is nothing more to train; what is left of the training goes then. As long as there is a checkpoint,
        figures or a model that cannot be read are made again from it."""
        self.remove_partial()
        if not self.finished or (self.checkpoints.paths and not self._readable):
            return False
        self.checkpoints.remove()
        return True

    @property
    def _readable(self) -> bool:
        try:
            return bool(self.metrics and self.history and self.model())
        except FaustnetError:
            return False

    def note_environment(self, device: torch.device) -> None:
        """Where the run is being made; a run that was continued says where it was made before."""
        now = environment(device, self.recipe.seed)
        if before := self._environment_before():
            now["earlier"] = [*before.pop("earlier", ()), before]
        self._environment = now
        self.write_json(ENVIRONMENT, now)

    def _environment_before(self) -> dict[str, Any] | None:
        """As it is in its file, or if that is damaged in the checkpoint."""
        with suppress(FaustnetError):
            return self.environment
        return self._environment

    def save(self, trainer: Trainer) -> None:
        """Keep the trainer's state and the history so far."""
        with self._writing(self.checkpoints.last):
            self.checkpoints.save(trainer, self._environment)
        self.write_history(trainer)

    def write_history(self, trainer: Trainer) -> None:
        self.write_json(HISTORY, [asdict(epoch) for epoch in trainer.history])
        table = history_csv(trainer.history, trainer.method.learners, trainer.method.voters)
        self.write(HISTORY_TABLE, table.encode())

    def restore(self, trainer: Trainer) -> None:
        """Take up the state that was saved last, if any was."""
        self._environment = self.checkpoints.restore(trainer)


def model_at(path: Path, device: torch.device) -> Model:
    """Of a finished run, by its folder, or of a model file."""
    return Model.load(path, device) if path.is_file() else Run.open(path).model(device)


def _is_litter(path: Path) -> bool:
    """Whether it is no more than a sign that somebody was killed."""
    return is_partial(path) or path.name == LOCK
