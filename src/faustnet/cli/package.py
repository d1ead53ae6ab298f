"""Commands that need no run: methods, datasets, shards and bench."""

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faustnet.cli.defaults import BENCH_PARTS, COMMON_SIZE, KEPT_SIZE, LARGEST_IMAGE
from faustnet.cli.options import AsJson, DataDir, Device, check_writable, option, print_json
from faustnet.errors import require, unknown
from faustnet.report.tables import print_table
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from faustnet.data import DataSet


def methods(
    name: Annotated[str | None, typer.Argument(help="Method to describe.", show_default="list all")] = None,
    as_json: AsJson = False,
) -> None:
    """List the training methods and their options, or describe one method."""
    from faustnet.methods import METHODS, LocalMethod, method_named

    chosen = [method_named(name)] if name else list(METHODS.values())
    if as_json:
        about = [(m.name, m.summary, issubclass(m, LocalMethod), m.options()) for m in chosen]
        print_json([dict(zip(("name", "summary", "local", "options"), facts, strict=True)) for facts in about])
        return
    rows = [(m.name, m.summary, "\n".join(f"{o} = {json.dumps(v)}" for o, v in m.options().items())) for m in chosen]
    print_table(("method", "summary", "options, set with --set options.NAME=VALUE"), rows)
    typer.echo(inspect.getdoc(chosen[0]) if name else "To describe one method, run: faustnet methods NAME")


def datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets that can be given by name, and the formats of your own data."""
    from faustnet.data import DATASETS, data_folder

    if as_json:
        print_json([{"name": name, "about": about} for name, about in DATASETS.items()])
        return
    rows = list(DATASETS.items())
    rows.append(("FOLDER", "your own images: FOLDER/CLASS/*.png, or FOLDER/train/CLASS/… and FOLDER/test/CLASS/…"))
    rows.append(("SHARDS", "your own images, which may be larger than memory: a folder written by 'faustnet shards'"))
    rows.append(("FILE.npz", "your own arrays: x_train, y_train, x_test, y_test; or texts written by 'faustnet tokens'"))
    rows.append(("FILE.tsv", "your own texts with labels; also .csv and .jsonl, or a folder with train.tsv and test.tsv"))
    print_table(("data set", "description"), rows)
    typer.echo(f"Downloads are stored in {data_folder(data_dir)}.")


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
        bool,
        typer.Option(
            "--strict", help="Stop at an image that cannot be read or is in no class folder, instead of skipping it."
        ),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Convert a data set to shards, which are read during training and may be larger than memory.

    A folder of images is read one image at a time. After an interruption the same command continues.
    """
    from faustnet.data.findings import noun_of
    from faustnet.data.images import described

    try:
        data = _make_shards(source, folder, data_dir, image_size, strict)
    except KeyboardInterrupt:
        typer.echo("Stopped. Run the same command again to continue.", err=True)
        raise typer.Exit(130) from None
    for line in data.left_out:
        typer.echo(f"skipped: {line}", err=True)
    typer.echo(
        f"{folder}: {len(data.train):,} training {noun_of(data)} and {len(data.test):,} test {described(data.train.shape)}, "
        f"{len(data.class_names)} classes"
    )


def _make_shards(source: str, folder: Path, data_dir: Path | None, image_size: int, strict: bool) -> "DataSet":
    """Write the shards, with a progress bar on a terminal."""
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


def bench(
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Parts to measure: {', '.join(BENCH_PARTS)}.", show_default="all")
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "JSON file for the measurements. Other parts in an existing file stay. Until a benchmark is complete, its "
            "starts are kept in FILE.starts.",
            "no file",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Measuring time of each case in steps, scaling and prediction, in seconds.")
    ] = 10,
    starts: Annotated[
        int,
        typer.Option(
            help="Number of measurements of each case of steps and convolutions, in new processes, and of each run of "
            "training. The median and the slowest time are reported."
        ),
    ] = 1,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Measure the time and memory of training and prediction, compared with backpropagation in plain PyTorch.

    All parts together take about 15 minutes on two CPU cores. early-exit and training use Fashion-MNIST and CIFAR-10, which
    are downloaded if they are missing.
    """
    for part in parts or []:
        if part not in BENCH_PARTS:
            raise unknown("part of the benchmark", part, BENCH_PARTS)
    require(0 < seconds < float("inf"), f"--seconds must be a positive number, got {seconds}.")
    require(starts >= 1, f"--starts must be at least 1, got {starts}.")
    earlier = _earlier_measurements(out) if out is not None else None
    from faustnet.bench import Bench, MeasurementCache
    from faustnet.bench import run as run_bench
    from faustnet.system.devices import choose_device

    where = choose_device(device)
    require(where.type != "mps", "--device must be cpu or cuda for the benchmark, got mps.")
    cache = MeasurementCache(out.with_name(f"{out.name}.starts") if out is not None else None)
    if cache.holds_any_of(where):
        typer.echo(f"{cache.path}: measurements with the same code, machine and options are not repeated")
    waiting = list(parts or BENCH_PARTS)

    def save(found: dict[str, Any]) -> None:
        waiting.pop(0)
        if out is not None:
            write_whole(out, (json.dumps(found, indent=1) + "\n").encode())

    try:
        run_bench(list(waiting), Bench(where, seconds, data_dir, typer.echo, starts, cache), save, earlier)
    except KeyboardInterrupt:
        started = cache.path is not None and cache.path.exists()
        complete = out is not None and len(waiting) < len(parts or BENCH_PARTS)
        said = [f"{out} has the completed parts."] if complete else []
        said += [f"{cache.path} has the measurements of the part that was stopped."] if started else []
        said += [f"To go on: faustnet bench {' '.join(waiting)}, with the same options."] if said else ["Nothing was saved."]
        typer.echo(f"Stopped. {' '.join(said)}", err=True)
        raise typer.Exit(130) from None


def _earlier_measurements(out: Path) -> dict[str, Any] | None:
    """Return the contents of a file that measurements are added to, if it exists."""
    check_writable(out)
    if not out.exists():
        return None
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    require(
        isinstance(found, dict) and isinstance(found.get("environment"), dict),
        f"--out must be a new file or one that this command wrote, got {out}: choose another name.",
    )
    return found
