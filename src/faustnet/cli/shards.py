"""`faustnet shards`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faustnet.cli.defaults import COMMON_SIZE, KEPT_SIZE, LARGEST_IMAGE
from faustnet.cli.options import DataDir
from faustnet.system.interrupts import importing

if TYPE_CHECKING:
    from faustnet.data import DataSet


def shards(
    source: Annotated[str, typer.Argument(help="Data set: a name or a path, as for 'faustnet train --dataset'.")],
    folder: Annotated[Path, typer.Argument(help="New folder for the shards; 'faustnet train --dataset' reads it.")],
    image_size: Annotated[
        int,
        typer.Option(
            help="Height and width in pixels, for a folder of images. 0: if all images have the same size of at most "
            f"{KEPT_SIZE}×{KEPT_SIZE}, they keep it; otherwise they are resized to {COMMON_SIZE}×{COMMON_SIZE}.",
            min=0,
            max=LARGEST_IMAGE,
        ),
    ] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop if an image cannot be read, instead of skipping it.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Convert a data set to shards, which are read during training and may be larger than memory.

    A folder of images is read one image at a time. After an interruption the same command continues.
    """
    try:
        data = _make_shards(source, folder, data_dir, image_size, strict)
    except KeyboardInterrupt:
        typer.echo("Stopped. Run the same command again to continue.", err=True)
        raise typer.Exit(130) from None
    for line in data.left_out:
        typer.echo(f"skipped: {line}", err=True)
    shape = "×".join(map(str, data.train.shape))
    typer.echo(
        f"{folder}: {len(data.train):,} training images and {len(data.test):,} test images of {shape}, "
        f"{len(data.class_names)} classes"
    )


def _make_shards(source: str, folder: Path, data_dir: Path | None, image_size: int, strict: bool) -> "DataSet":
    """Write the shards, with a progress bar on a terminal."""
    with importing():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from faustnet.data import make_shards
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("images", total=None)

        def on_images(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return make_shards(source, folder, data_dir, image_size, strict=strict, on_images=on_images)
