"""Run folders. Every file in one is complete or does not exist, and an unfinished run can be continued."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from faustnet.data import Tokeniser
from faustnet.errors import FaustnetError
from faustnet.runs.checkpoints import Checkpoints
from faustnet.runs.confusion import restored_matrix
from faustnet.runs.continuation import NEW_OPTIMISER, check_epochs_left, finished_state
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, read_recipe, recipe_from, write_recipe
from faustnet.runs.validation import is_consistent, is_environment, is_epoch, parse_json
from faustnet.system.environment import environment
from faustnet.system.files import is_partial, read_limited, write_whole
from faustnet.system.locks import LOCK
from faustnet.training.history import history_csv
from faustnet.training.loop import TrainingLoop

RECIPE, ENVIRONMENT, HISTORY, METRICS = "recipe.toml", "environment.json", "history.json", "metrics.json"
HISTORY_TABLE = "history.csv"  # the history for spreadsheets
MODEL = "model.safetensors"
TOKENISER = "tokeniser.json"  # of a run on texts
START = "start.safetensors"  # copy of the model that the training started from
LARGEST_JSON = 32 << 20  # bytes
METRIC_TYPES = {
    "test_accuracy": float, "train_seconds": float, "seconds_per_image": float, "voters": list, "layer_accuracy": list,
    "first_layers_accuracy": list, "confusion": list, "forward_passes": int, "schedule": str, "epochs": int,
    "parameters": int,
}  # fmt: skip


class Run:
    """Folder with the files of one training: recipe, history, metrics, environment, model, checkpoints."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.checkpoints = Checkpoints(self.folder)
        self.epoch_changes: list[dict[str, int]] = []  # changes of the number of epochs after the run began
        self._environment: dict[str, Any] | None = None  # of this session, or of the checkpoint that was restored
        self._changed: Recipe | None = None  # the recipe with another number of epochs, written with the next checkpoint

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Return the run in a folder."""
        if not (Path(folder) / RECIPE).is_file():
            raise FaustnetError(
                f"{folder} is not a run folder, because it has no {RECIPE}: choose a folder that training wrote."
            )
        return cls(folder)

    def make_folder(self) -> None:
        """Create the folder, if it does not exist."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FaustnetError(f"{self.folder} cannot be created ({error.strerror}): choose another folder.") from None

    def begin(self, recipe: Recipe) -> None:
        """Write the first file of a new run. The folder may contain partial files of a start that was killed."""
        self.refuse_existing()
        self.remove_partial()
        self.write(RECIPE, write_recipe(recipe).encode())

    def refuse_existing(self) -> None:
        """Raise an error if the folder contains anything but partial files."""
        if self.folder.exists() and not self.folder.is_dir():
            raise FaustnetError(f"The run must be a folder, but {self.folder} is a file: choose another --out.")
        if self.folder.exists() and any(not _is_leftover(path) for path in self.folder.iterdir()):
            raise FaustnetError(
                f"{self.folder} already exists: choose another --out, or continue the run with "
                "--resume (resume=True in Python)."
            )

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe: the contents of recipe.toml."""
        return recipe_from(read_recipe(self.folder / RECIPE))

    @property
    def finished(self) -> bool:
        """Whether the training is complete. A finished run that is being continued for more epochs is not, but has the
        files of the finished training."""
        return self.has_result and not self._continues

    @property
    def has_result(self) -> bool:
        """Whether the folder has the model and the metrics of a complete training."""
        return (self.folder / METRICS).exists() and (self.folder / MODEL).exists()

    @property
    def _continues(self) -> bool:
        """Whether the recipe has more epochs than the finished model was trained for."""
        try:
            trained = parse_json(read_limited(self.folder / METRICS, LARGEST_JSON).decode())["epochs"]
            return bool(trained < self.recipe.training.epochs)  # of the greedy schedule, `trained` counts all layers
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return False

    @property
    def metrics(self) -> dict[str, Any]:
        """Accuracies on the test images and costs: the contents of metrics.json."""
        metrics = self.read(METRICS)
        with suppress(ValueError):  # then it stays a dictionary, which is refused
            metrics["confusion"] = restored_matrix(metrics.get("confusion"))
        self._check(
            METRICS, all(type(metrics.get(key)) is kind for key, kind in METRIC_TYPES.items()) and is_consistent(metrics)
        )
        return metrics

    @property
    def history(self) -> list[dict[str, Any]]:
        """Losses and accuracies of every epoch: the contents of history.json."""
        history = self.read(HISTORY, list)
        self._check(HISTORY, all(map(is_epoch, history)))
        return history

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and hardware of the training: the contents of environment.json."""
        found = self.read(ENVIRONMENT)
        last, earlier = {key: value for key, value in found.items() if key != "earlier"}, found.get("earlier", [])
        self._check(ENVIRONMENT, isinstance(earlier, list) and all(map(is_environment, [last, *earlier])))
        return found

    def model(self, device: torch.device = torch.device("cpu")) -> Model:
        """Return the trained model."""
        if not (self.folder / MODEL).exists():
            command = f"faustnet train --resume --out {self.folder}"
            raise FaustnetError(f"{self.folder} has no model yet: finish the training with '{command}'.")
        return Model.load(self.folder / MODEL, device)

    def model_as_trained(self, device: torch.device = torch.device("cpu")) -> Model:
        """Return the model. It is an error if its classes were changed after training, except for their names, because the
        metrics are those of the trained ones."""
        model = self.model(device)
        if not self.covers_classes(model):
            how = "added to" if len(model.class_names) > len(self.metrics["confusion"]) else "changed in"
            raise FaustnetError(
                f"Classes were {how} the model in {self.folder} after training, and the metrics do not cover them: "
                "use 'faustnet evaluate', or undo the changes with 'faustnet undo-classes'."
            )
        return model

    def covers_classes(self, model: Model) -> bool:
        """Return whether the metrics are those of all classes of this run's model, which may have been renamed."""
        self._check(METRICS, self.metrics["voters"] == model.method.voters)
        return len(model.class_names) == len(self.metrics["confusion"]) and model.class_history.as_trained

    def read(self, name: str, kind: type[Any] = dict) -> Any:
        """Return the contents of one of the JSON files, which must be of this type."""
        content: Any = None
        try:
            content = parse_json(read_limited(self.folder / name, LARGEST_JSON).decode())
        except FileNotFoundError:
            fix = "which was deleted: restore it" if self.finished else "which training has not written yet: resume the run"
            raise FaustnetError(f"{self.folder} has no {name}, {fix}, or train again.") from None
        except (ValueError, RecursionError):
            pass
        self._check(name, isinstance(content, kind))
        return content

    def _check(self, name: str, good: bool) -> None:
        """Raise an error that says how to replace a damaged file, unless it is good."""
        if not good:
            fix = (
                "train again in another folder" if self.finished else "continue the run with --resume, which writes it again"
            )
            raise FaustnetError(f"{self.folder / name} is damaged: {fix}.")

    def write(self, name: str, content: bytes) -> None:
        """Write a complete file, or leave the existing one as it is."""
        with self._writing(self.folder / name):
            write_whole(self.folder / name, content)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FaustnetError(
                f"{path} could not be written ({error.strerror}): free disk space, then continue from the last checkpoint "
                f"with 'faustnet train --resume --out {self.folder}'."
            ) from None

    def write_json(self, name: str, content: Any) -> None:
        self.write(name, (json.dumps(content, indent=1) + "\n").encode())

    def discard(self) -> None:
        """Remove a run that has nothing to continue from."""
        for name in (RECIPE, ENVIRONMENT, TOKENISER, START, LOCK):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # the folder may contain files of the user
            self.folder.rmdir()

    def remove_partial(self) -> None:
        """Remove files that were being written when the run was killed."""
        for path in filter(is_partial, self.folder.iterdir()):
            path.unlink()

    @property
    def tidy(self) -> bool:
        """Whether the run is finished, and has neither checkpoints nor partial files."""
        return self.finished and not self.checkpoints.paths and not any(map(_is_leftover, self.folder.iterdir()))

    def conclude(self) -> bool:
        """Return whether there is nothing more to train, and if so remove the checkpoints. As long as there is a checkpoint,
        damaged metrics or a damaged model are written again from it."""
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

    def note_tokeniser(self, tokeniser: Tokeniser | None) -> None:
        """Write the tokeniser of a run on texts. A continued run must have the same, because weights belong to token ids."""
        path = self.folder / TOKENISER
        if tokeniser is None:
            return
        if not path.exists():
            self.write(TOKENISER, tokeniser.to_json().encode())
        elif path.read_bytes() != tokeniser.to_json().encode():
            raise FaustnetError(
                f"The training texts have other tokens than when {self.folder} was started: restore the texts and the "
                "version of the package tokenizers, or start a new run."
            )

    def note_environment(self, device: torch.device) -> None:
        """Write the environment of this session, with those of earlier sessions of a continued run."""
        before = self._environment
        with suppress(FaustnetError):  # if the file is damaged, that of the checkpoint is used
            before = self.environment
        now = environment(device, self.recipe.seed)
        if before:
            now["earlier"] = [*before.pop("earlier", ()), before]
        self._environment = now
        self.write_json(ENVIRONMENT, now)

    def save(self, trainer: TrainingLoop) -> None:
        """Write a checkpoint, and the history so far. The history of a finished training is kept until its continuation is
        complete."""
        if self._changed is not None:
            self.write(RECIPE, write_recipe(self._changed).encode())
            self.recipe, self._changed = self._changed, None
        notes = {"environment": self._environment, "epochs": trainer.settings.epochs, "epoch_changes": self.epoch_changes}
        with self._writing(self.checkpoints.last):
            self.checkpoints.save(trainer, notes)
        if not self.has_result:
            self.write_history(trainer)

    def write_history(self, trainer: TrainingLoop) -> None:
        """Write the history so far, as JSON and as CSV."""
        self.write_json(HISTORY, [asdict(epoch) for epoch in trainer.history])
        table = history_csv(trainer.history, trainer.method.learners, trainer.method.voters)
        self.write(HISTORY_TABLE, table.encode())

    def restore(self, trainer: TrainingLoop, recipe: Recipe | None = None) -> None:
        """Restore the last checkpoint, or the end of a finished training, if there is one. `recipe` is that of the trainer,
        if it has another number of epochs than that of the run."""
        if recipe is not None and recipe.training.epochs != self.recipe.training.epochs:
            self._changed = recipe
        if found := self.checkpoints.find(trainer):
            self._environment = found.about.get("environment")
            before = found.about.get("epochs", self.recipe.training.epochs)
            self._note_epochs(before, trainer, found.about.get("epoch_changes", []), len(found.about["history"]))
            self.checkpoints.restore(trainer, found)
        elif self.has_result:
            metrics = self.metrics
            self._note_epochs(metrics["epochs"], trainer, metrics.get("epoch_changes", []), metrics["epochs"])
            state = finished_state(self.model(), self.history, trainer)
            trainer.restore(*state)
            logging.getLogger(__name__).warning(f"{self.folder}: {NEW_OPTIMISER}.")

    def _note_epochs(self, before: int, trainer: TrainingLoop, changes: list[dict[str, int]], done: int) -> None:
        """Record it if the run had another number of epochs before."""
        epochs = trainer.settings.epochs
        self.epoch_changes = list(changes)
        if epochs != before:
            check_epochs_left(epochs, done)
            self.epoch_changes.append({"after": done, "from": before, "to": epochs})


def model_at(path: Path, device: torch.device) -> Model:
    """Return the model of a run folder, or of a model file."""
    return Model.load(path, device) if path.is_file() else Run.open(path).model(device)


def _is_leftover(path: Path) -> bool:
    """Return whether this file was left behind by a process that was killed."""
    return is_partial(path) or path.name == LOCK
