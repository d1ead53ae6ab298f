"""Progress of a training: a line for each epoch, and on a terminal a bar below them."""

import shlex
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from faustnet.data import MEMORY, DataSet, obvious_findings
from faustnet.data.findings import noun_of
from faustnet.data.images import described
from faustnet.errors import printable
from faustnet.runs.columns import Columns
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe
from faustnet.training.history import Epoch
from faustnet.training.loop import TrainingLoop

UNEVEN = 3  # ratio of the largest to the smallest class from which a warning is printed
FEW = 10  # training images of a class below which a warning is printed
SHOWN = 5  # classes that a warning names, and warnings about the data, at most


class ConsoleProgress:
    """Prints the progress to standard error, so that the standard output has only the result."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} batches"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None
        self.trainer: TrainingLoop | None = None
        self.columns = Columns([], [], 0)

    def begin(self, model: Model, data: DataSet, trainer: TrainingLoop) -> None:
        recipe, method = model.recipe, model.method
        self.trainer = trainer
        what = f"texts of {model.shape[0]} tokens" if model.tokeniser else described(model.shape)
        layers = f"{recipe.network.kind} layers {'-'.join(map(str, recipe.network.widths))}"
        count = sum(parameter.numel() for parameter in method.parameters())
        for line in data.left_out:
            self.console.print(printable(f"skipped: {line}"))
        self.console.print(
            f"{recipe.method} on {printable(data.name)}: {len(trainer.train.labels):,} training {what}, "
            f"{len(model.class_names)} classes\n"
            f"{layers}, {count:,} weights; {trainer.batches} batches of {recipe.training.batch_size} per epoch, "
            f"{trainer.schedule.about} on {trainer.device.type}"
        )
        if recipe.start.model:
            self.console.print(printable(_note_on_start(recipe)))
        for line in [*_notes_on_streaming(data, trainer), *_notes_on_classes(data, trainer), *_notes_on_data(recipe, data)]:
            self.console.print(printable(line))
        if trainer.history or trainer.batch:
            done = len(trainer.history)
            self.console.print(f"continuing after {done} epoch{'' if done == 1 else 's'} and {trainer.batch} batches")
        held_out = "validation" if recipe.training.validation else "test"
        self.columns = Columns(method.learners, method.voters, trainer.epochs)
        for line in self.columns.heading(f"{held_out} accuracy, %"):
            self.console.print(line, style="dim")
        done = len(trainer.history) * trainer.batches + trainer.batch
        self.task = self.bar.add_task(recipe.method, total=trainer.epochs * trainer.batches, completed=done)
        self.bar.start()

    def batch(self) -> None:
        if self.task is not None:
            self.bar.advance(self.task)

    def epoch(self, epoch: Epoch) -> None:
        self.console.print(self.columns.line(epoch))
        if self.trainer is not None and self.trainer.warning:
            self.console.print(f"warning: {self.trainer.warning}", style="bold")

    def end(self) -> None:
        self.bar.stop()


def _note_on_start(recipe: Recipe) -> str:
    layers = recipe.start.train_layers
    frozen = f"; training only layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}" if layers else ""
    return f"starting from the weights of {recipe.start.model}{frozen}"


def _notes_on_streaming(data: DataSet, trainer: TrainingLoop) -> list[str]:
    """Say whether images in shards are read during training, or were read before it."""
    pixels = data.train.pixels
    if isinstance(pixels, torch.Tensor):
        return []
    how = "are read from the disk during training" if trainer.schedule.feed.streams else "were loaded into memory"
    return [f"{decimal(pixels.size)} of {noun_of(data)} {how}"]


def _notes_on_classes(data: DataSet, trainer: TrainingLoop) -> list[str]:
    """Warn about uneven classes, classes with few training images, and classes without test images."""
    names, noun = data.class_names, noun_of(data)
    trained, tested = (torch.bincount(x, minlength=len(names)).tolist() for x in (trainer.train.labels, data.test.labels))
    most, least = max(trained), min(trained)
    lines = []
    if most >= UNEVEN * least and not trainer.settings.balance:
        large, small = names[trained.index(most)], names[trained.index(least)]
        lines.append(
            f"imbalanced classes: {large!r} has {most:,} training {noun} and {small!r} {least:,}; "
            "--set training.balance=true draws all classes equally often"
        )
    if few := [f"{name!r} {count}" for name, count in zip(names, trained, strict=True) if count < FEW]:
        lines.append(f"few training {noun}: {_listed(few)}")
    if untested := [repr(name) for name, count in zip(names, tested, strict=True) if not count]:
        lines.append(f"no test {noun}: {_listed(untested)}")
    return lines


def _notes_on_data(recipe: Recipe, data: DataSet) -> list[str]:
    """Warn about mistakes in the data that a sample of them shows."""
    found = [f"warning: {finding.message}" for finding in obvious_findings(data)]
    command = "faustnet.data.check_data" if recipe.dataset == MEMORY else f"faustnet check {shlex.quote(recipe.dataset)}"
    return [*found[:SHOWN], f"To find everything in the data, use: {command}"] if found else []


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
