"""Checkpoints of a training: the last one, and the one before it in case the last one is damaged."""

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from faustnet.errors import FaustnetError
from faustnet.nn.old_names import current_names
from faustnet.runs.tensor_file import ABOUT, CHECKSUM, is_intact, pack, read_tensors
from faustnet.runs.validation import are_epoch_changes, is_epoch, parse_json
from faustnet.system.files import PARTIAL, write_whole
from faustnet.training.loop import TrainingLoop

LAST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint."""

    path: Path
    about: dict[str, Any]  # values of the trainer's state, and notes
    tensors: dict[str, Tensor]


class Checkpoints:
    """The checkpoints in a run folder."""

    def __init__(self, folder: Path):
        self.last, self.previous = folder / LAST, folder / PREVIOUS

    @property
    def paths(self) -> list[Path]:
        """The checkpoints that exist, the last one first."""
        return [path for path in (self.last, self.previous) if path.exists()]

    def remove(self) -> None:
        for path in self.paths:
            path.unlink()

    def save(self, trainer: TrainingLoop, notes: dict[str, Any]) -> None:
        """Save the state of the trainer, and notes. The old checkpoints are kept until the new one is complete."""
        tensors, facts = trainer.state()
        kept = self.previous.with_name(f".{PREVIOUS}{PARTIAL}")
        try:
            if self.last.exists():
                _link(self.last, kept)
            write_whole(self.last, pack(tensors, {**facts, **notes}))
            if kept.exists():
                os.replace(kept, self.previous)
        finally:
            kept.unlink(missing_ok=True)

    def find(self, trainer: TrainingLoop) -> Checkpoint | None:
        """Return the last state that can be read, if there is one."""
        paths = self.paths
        for path in paths:
            if found := _read(path, trainer):
                return found
            if path != paths[-1]:
                logging.getLogger(__name__).warning(f"{path} is damaged: continuing from the previous checkpoint.")
        if not paths:
            return None
        are, them = ("is", "it") if len(paths) == 1 else ("are", "them")
        raise FaustnetError(
            f"{' and '.join(map(str, paths))} {are} damaged or from another run: delete {them}, then run "
            "the same command again to restart the run."
        )

    def restore(self, trainer: TrainingLoop, found: Checkpoint) -> None:
        """Restore a state that `find` returned."""
        try:
            trainer.restore(found.tensors, found.about)
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError):
            raise FaustnetError(
                f"{found.path} does not match the recipe of the run: delete it, then run the same "
                "command again to restart the run."
            ) from None
        if found.path != self.last:
            os.replace(found.path, self.last)  # otherwise the damaged one would become the previous one


def _read(path: Path, trainer: TrainingLoop) -> Checkpoint | None:
    """Return a checkpoint, or None if it is damaged or does not match the trainer."""
    try:
        metadata, tensors = read_tensors(path)
        about = parse_json(metadata[ABOUT])
        if CHECKSUM not in about or not is_intact(tensors, about):
            return None
        learners, voters = len(trainer.method.learners), len(trainer.method.voters)
        if not all(is_epoch(epoch, learners, voters) for epoch in about["history"]):
            return None
        if not are_epoch_changes(about.get("epoch_changes", [])) or not isinstance(about.get("epochs", 1), int):
            return None
    except (FaustnetError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    expected = {name: tensor.shape for name, tensor in trainer.method.state_dict().items()}
    learned = {name.removeprefix("method."): tensor for name, tensor in tensors.items() if name.startswith("method.")}
    try:
        found = {name: tensor.shape for name, tensor in current_names(learned, trainer.method).items()}
    except RuntimeError:  # a tensor of another size
        return None
    return Checkpoint(path, about, tensors) if found == expected else None


def _link(path: Path, other: Path) -> None:
    """Give a file a second name, which replaces a file of that name. Where the file system has no links, copy it."""
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
