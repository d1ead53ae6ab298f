"""Making data sets that may be larger than memory."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from faustnet.cli.options import DataDir
from faustnet.data import DataSet, make_shards
from faustnet.runs.recipes import LARGEST_IMAGE


def shards(
    source: Annotated[str, typer.Argument(help="Anything that --dataset takes.")],
    folder: Annotated[Path, typer.Argument(help="The new folder of shards; --dataset takes it.")],
    image_size: Annotated[
        int,
        typer.Option(
            help="Pixels along a side, for a folder of images; 0 keeps a small common size.", min=0, max=LARGEST_IMAGE
        ),
    ] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a folder of images if one cannot be read, in place of leaving it out.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Write a data set as shards, which are read while training and need not fit in memory.

    A folder of images is read image by image. Where it was interrupted, the same command goes on.
    """
    try:
        data = _made(source, folder, data_dir, image_size, strict)
    except KeyboardInterrupt:
        typer.echo("Stopped; what was done is kept, and the same command goes on.", err=True)
        raise typer.Exit(130) from None
    for line in data.left_out:
        typer.echo(f"left out: {line}", err=True)
    shape = "×".join(map(str, data.train.shape))
    typer.echo(
        f"{folder}: {len(data.train):,} images to train on and {len(data.test):,} to test on, of {shape}, "
        f"in {len(data.class_names)} classes"
    )


def _made(source: str, folder: Path, data_dir: Path | None, image_size: int, strict: bool) -> DataSet:
    """With a bar on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("images", total=None)

        def on_images(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return make_shards(source, folder, data_dir, image_size, strict=strict, on_images=on_images)
