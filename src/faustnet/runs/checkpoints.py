"""The state of a training, in a run's folder: as it was saved last, and the time before, in case that one is damaged."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from faustnet.errors import FaustnetError
from faustnet.runs.model import ABOUT, CHECKSUM, is_whole, packed, read_tensors
from faustnet.runs.validation import is_epoch_of, parse_json
from faustnet.system.files import PARTIAL, write_whole
from faustnet.training.trainer import Trainer

LAST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


class Checkpoints:
    """Those in a folder."""

    def __init__(self, folder: Path):
        self.last, self.previous = folder / LAST, folder / PREVIOUS

    @property
    def paths(self) -> list[Path]:
        """Those that are there, the last one first."""
        return [path for path in (self.last, self.previous) if path.exists()]

    def remove(self) -> None:
        for path in self.paths:
            path.unlink()

    def save(self, trainer: Trainer, environment: dict[str, Any] | None) -> None:
        """Keep the trainer's state, and where it comes from. Neither checkpoint goes before the new one is in place."""
        tensors, facts = trainer.state()
        kept = self.previous.with_name(f".{PREVIOUS}{PARTIAL}")
        try:
            if self.last.exists():
                _link(self.last, kept)
            write_whole(self.last, packed(tensors, {**facts, "environment": environment}))
            if kept.exists():
                os.replace(kept, self.previous)
        finally:
            kept.unlink(missing_ok=True)

    def restore(self, trainer: Trainer) -> dict[str, Any] | None:
        """Take up the last state that can be read, if any was saved; and where it comes from."""
        paths = self.paths
        for path in paths:
            if found := _read(path, trainer):
                break
            if path != paths[-1]:
                logging.getLogger(__name__).warning(f"{path} is damaged: going on from the checkpoint before it.")
        else:
            self._refuse(paths)
            return None
        about, tensors = found
        try:
            trainer.restore(tensors, about)
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError):
            raise FaustnetError(f"{path} does not fit its recipe: delete it to start the run anew.") from None
        if path != self.last:
            os.replace(path, self.last)  # lest a damaged one become the previous one
        return about.get("environment")

    def _refuse(self, paths: list[Path]) -> None:
        if paths:
            names = " and ".join(map(str, paths))
            are, them = ("is", "it") if len(paths) == 1 else ("are", "them")
            raise FaustnetError(f"{names} {are} damaged or of another run: delete {them}, and --resume starts the run anew.")


def _read(path: Path, trainer: Trainer) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """What a checkpoint says and its tensors, if it is whole and of such a method as the trainer's."""
    try:
        notes, tensors = read_tensors(path)
        about = parse_json(notes[ABOUT])
        if CHECKSUM not in about or not is_whole(tensors, about):
            return None
        learners, voters = len(trainer.method.learners), len(trainer.method.voters)
        if not all(is_epoch_of(epoch, learners, voters) for epoch in about["history"]):
            return None
    except (FaustnetError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    wanted = {f"method.{name}": tensor.shape for name, tensor in trainer.method.state_dict().items()}
    there = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("method.")}
    return (about, tensors) if there == wanted else None


def _link(path: Path, other: Path) -> None:
    """The same file under another name, in place of what was there; a copy where a file system has no links."""
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
