"""`faustnet reproduce`: the table and figures of the paper, and what its commands share."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faustnet.cli.defaults import RECIPES
from faustnet.cli.options import DataDir, Device, option
from faustnet.cli.spelling import Command
from faustnet.report.tables import print_table

if TYPE_CHECKING:
    from faustnet.reproduce.jobs import Job
    from faustnet.reproduce.results import ResultTable
    from faustnet.reproduce.workers import Workers

reproduce = typer.Typer(
    help="Reproduce the tables and figures of the paper, and further experiments: train the missing runs, then write the "
    "tables and figures.",
    no_args_is_help=True,
)

OUT = Path("runs/reproduce")
Out = Annotated[Path, typer.Option(help="Folder for the results; results that are already there are reused.")]
Seeds = Annotated[int, typer.Option(help="Number of random seeds; the seeds are 0, 1, …")]
Dataset = Annotated[str, typer.Option(help="Data set.")]
Network = Annotated[str, typer.Option(help="Network: number of layers x units per layer.")]


def listed(about: str, values: str = "") -> object:
    """Return an option with several values."""
    return typer.Option(help=f"{about}, separated by commas{values and ': '}{values}.")


@dataclass(frozen=True)
class Training:
    """The options of all commands that train many runs."""

    jobs: Annotated[
        int | None,
        option("Number of runs to train at the same time, each in its own process.", "1, or the size of the cluster"),
    ] = None
    backend: Annotated[
        str, typer.Option(help="Where to train: loky (this machine), or dask or ray (the cluster at --address).")
    ] = "loky"
    address: Annotated[
        str | None, option("Address of the cluster, for example tcp://HOST:8786 (dask) or HOST:6379 (ray).", "none")
    ] = None
    out: Out = OUT
    device: Device = "auto"
    data_dir: DataDir = None

    def workers(self) -> "Workers":
        from faustnet.reproduce.workers import Workers

        return Workers(self.device, self.data_dir, self.jobs, self.backend, self.address)

    def tabulate(self, table: "ResultTable", jobs: Sequence["Job"], note: str) -> None:
        """Train the missing runs, write the table and print it."""
        from faustnet.reproduce.dispatch import reproduce as train_and_write

        cells = train_and_write(table, jobs, self.out, self.workers())
        print_table(table.columns, table.rows(cells), numbers=table.columns[1:])
        typer.echo(f"{note} The table is in {self.out}/{table.name}.json and .md.")


def add_command(command: Callable[..., None]) -> None:
    """Register a command whose first argument is a Training, with the options of Training after its own."""
    _, *own = signature(command).parameters.values()
    shared = signature(Training).parameters

    @functools.wraps(command)
    def run(**options: Any) -> None:
        training = Training(**{name: options.pop(name) for name in shared})
        with resumable(training.out):
            command(training, **options)

    parameters = [*own, *shared.values()]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    reproduce.command(command.__name__.replace("_", "-"), cls=Command)(run)


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Turn Ctrl-C into a message and exit code 130; finished runs and checkpoints are kept."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Finished runs are kept in {out}; run the same command again to continue.", err=True)
        raise typer.Exit(130) from None


def print_paths(paths: list[Path]) -> None:
    typer.echo(f"written: {', '.join(map(str, paths))}")


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@add_command
def table1(
    training: Training,
    methods: Annotated[str | None, option("Methods, separated by commas.", "all that have recipes")] = None,
    datasets: Annotated[
        str | None, option("Data sets, separated by commas.", "those of the paper; for tuned recipes also CIFAR-100")
    ] = None,
    networks: Annotated[str, listed("Networks", "number of layers x units per layer")] = "3x500,4x800",
    recipes: Annotated[
        str,
        listed(
            "Kinds of recipes",
            "paper (settings of the paper), tuned (best on validation images), default (default settings, for methods "
            "without recipes)",
        ),
    ] = "paper,tuned",
    seeds: Seeds = 5,
) -> None:
    """Table 1: accuracy of every method on every data set and network, next to the accuracy in the paper.

    Writes the result of each run to OUT/table1, and the table to OUT/table1.json, .md and .tex. After Ctrl-C the same
    command continues.
    """
    from faustnet.reproduce.jobs import table1_jobs
    from faustnet.reproduce.table1 import reproduce_table1

    named, sets = (None if names is None else names_in(names) for names in (methods, datasets))
    table_jobs = table1_jobs(names_in(recipes), named, sets, names_in(networks), seeds)
    reproduce_table1(table_jobs, training.out, training.workers())


@reproduce.command("figure1", cls=Command)
def figure1_(
    dataset: Dataset = "mnist",
    network: Network = "3x500",
    out: Annotated[Path, typer.Option(help="Folder for the results; an existing figure in it is overwritten.")] = OUT,
    data_dir: DataDir = None,
) -> None:
    """Figure 1: the architecture of a network."""
    from faustnet.reproduce.figures import draw_figure1

    print_paths(draw_figure1(out, dataset, network, data_dir))


@reproduce.command("figure2", cls=Command)
def figure2_(
    dataset: Dataset = "fashion-mnist",
    network: Network = "4x500",
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Figure 2: t-SNE of the embeddings of test images in each layer, with the Fisher score of the layer.

    The Fisher score is the scatter between classes divided by the scatter within classes:
    F = Σ_c n_c ‖μ_c − μ‖² / Σ_i ‖x_i − μ_y‖².
    """
    from faustnet.reproduce.figures import draw_figure2
    from faustnet.runs.progress import ConsoleProgress
    from faustnet.system.devices import choose_device

    with resumable(out):
        print_paths(draw_figure2(out, dataset, network, choose_device(device), data_dir, ConsoleProgress()))


@add_command
def figure3(training: Training, dataset: Dataset = "cifar10", network: Network = "3x500", seeds: Seeds = 5) -> None:
    """Figure 3: convergence of Forward-Forward, FAUST and backprop, from the runs of table 1 with the paper's recipes."""
    from faustnet.reproduce.figures import draw_figure3

    print_paths(draw_figure3(training.out, dataset, network, seeds, training.workers()))


@reproduce.command("animation", cls=Command)
def animation_(
    recipe: Annotated[str, typer.Option(help=f"Recipe: a TOML file, or one of {', '.join(RECIPES)}.")] = "digits",
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Animation: how each layer's map of 200 test images forms over the epochs, as SVG for web pages and GIF for slides.

    Not in the paper. Trains the recipe, and draws t-SNE maps of the embeddings with the Fisher score of figure 2. The map of
    an epoch starts from that of the next epoch, so that images move little. Writes the points to OUT/animation.json. After
    Ctrl-C the same command continues.
    """
    from faustnet.reproduce.animation import draw_animation
    from faustnet.runs.progress import ConsoleProgress
    from faustnet.runs.recipes import read_recipe, recipe_from
    from faustnet.system.devices import choose_device

    chosen = recipe_from(read_recipe(recipe))
    with resumable(out):
        print_paths(draw_animation(out, chosen, choose_device(device), data_dir, ConsoleProgress()))
