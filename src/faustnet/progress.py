"""Watching a training: a line for each epoch, and on a terminal a bar below them."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from faustnet.data import DataSet
from faustnet.model import Model
from faustnet.training import Epoch, Trainer


class Lines:
    """Prints to standard error, so that what a command answers can be piped on."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
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

    def begin(self, model: Model, data: DataSet, trainer: Trainer) -> None:
        recipe, method = model.recipe, model.method
        self.epochs = trainer.epochs
        shape = "×".join(map(str, model.shape))
        widths = "-".join(map(str, recipe.network.widths))
        count = sum(parameter.numel() for parameter in method.parameters())
        held_out = "validation" if recipe.training.validation else "test"
        self.console.print(
            f"[bold]{recipe.method}[/bold] on {data.name}: {len(trainer.train.labels):,} training images of {shape}, "
            f"{len(model.class_names)} classes; layers {widths}, {count:,} weights, on {trainer.device.type}"
        )
        if trainer.history:
            self.console.print(f"continuing after epoch {len(trainer.history)}, batch {trainer.batch} of {trainer.batches}")
        several = len(method.voters) > 1
        self.console.print(
            f"[dim]{'epoch':>{_epoch_width(self.epochs)}}   loss of each layer, {held_out} accuracy "
            f"{'of each layer and of all together' if several else ''} in %, seconds[/dim]"
        )
        self.task = self.bar.add_task(
            recipe.method,
            total=trainer.epochs * trainer.batches,
            completed=len(trainer.history) * trainer.batches + trainer.batch,
        )
        self.bar.start()

    def batch(self) -> None:
        if self.task is not None:
            self.bar.advance(self.task)

    def epoch(self, epoch: Epoch) -> None:
        number = f"{epoch.epoch}/{self.epochs}".rjust(_epoch_width(self.epochs))
        layers = f"{_numbers(epoch.layer_accuracy, 100, 2)}   all " if len(epoch.layer_accuracy) > 1 else ""
        self.console.print(
            f"{number}   {_numbers(epoch.losses, 1, 4)}   {layers}[bold]{epoch.accuracy:.2%}[/bold]   {epoch.seconds:.1f} s"
        )

    def end(self) -> None:
        self.bar.stop()


def _epoch_width(epochs: int) -> int:
    return max(5, 2 * len(str(epochs)) + 1)


def _numbers(values: Sequence[float | None], factor: float, digits: int) -> str:
    return " ".join("   –" if value is None else f"{value * factor:.{digits}f}" for value in values)
