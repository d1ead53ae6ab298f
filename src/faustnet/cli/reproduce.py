"""`faustnet reproduce`: the table and figures of the paper, and further experiments."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faustnet.cli.defaults import RECIPES
from faustnet.cli.options import DataDir, Device, numbers, option
from faustnet.cli.spelling import Command
from faustnet.errors import require
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


def _listed(about: str, values: str = "") -> object:
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


def _command(command: Callable[..., None]) -> None:
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


def _print_paths(paths: list[Path]) -> None:
    typer.echo(f"written: {', '.join(map(str, paths))}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@_command
def table1(
    training: Training,
    methods: Annotated[str | None, option("Methods, separated by commas.", "all that have recipes")] = None,
    datasets: Annotated[
        str | None, option("Data sets, separated by commas.", "those of the paper; for tuned recipes also CIFAR-100")
    ] = None,
    networks: Annotated[str, _listed("Networks", "number of layers x units per layer")] = "3x500,4x800",
    recipes: Annotated[
        str,
        _listed(
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

    named, sets = (None if names is None else _names(names) for names in (methods, datasets))
    table_jobs = table1_jobs(_names(recipes), named, sets, _names(networks), seeds)
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

    _print_paths(draw_figure1(out, dataset, network, data_dir))


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
        _print_paths(draw_figure2(out, dataset, network, choose_device(device), data_dir, ConsoleProgress()))


@_command
def figure3(training: Training, dataset: Dataset = "cifar10", network: Network = "3x500", seeds: Seeds = 5) -> None:
    """Figure 3: convergence of Forward-Forward, FAUST and backprop, from the runs of table 1 with the paper's recipes."""
    from faustnet.reproduce.figures import draw_figure3

    _print_paths(draw_figure3(training.out, dataset, network, seeds, training.workers()))


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
        _print_paths(draw_animation(out, chosen, choose_device(device), data_dir, ConsoleProgress()))


@_command
def representatives(
    training: Training,
    datasets: Annotated[str, _listed("Data sets")] = "fashion-mnist,cifar10",
    network: Network = "3x500",
    draws: Annotated[int, typer.Option(help="Number of random draws of a single image per class.")] = 20,
    counts: Annotated[str, _listed("Numbers of references per class")] = "1,2,5,10,20,50",
) -> None:
    """Compare kinds and numbers of references per class: random images, k-means images, and learned vectors.

    Not in the paper; uses the tuned recipes. Writes the results to OUT/representatives and OUT/representatives.json, and a
    figure.
    """
    require(1 <= draws <= 1000, f"--draws must be from 1 to 1000, got {draws}.")
    from faustnet.reproduce.representatives import draw_representatives, representatives_jobs

    point_jobs = representatives_jobs(_names(datasets), network, draws, numbers(counts, "--counts"))
    _print_paths(draw_representatives(point_jobs, training.out, training.workers()))


@_command
def best(
    training: Training,
    names: Annotated[
        str | None, option("Recipes, separated by commas, for example cifar10/mlp,mnist/mlp.", "all except those of digits")
    ] = None,
    seeds: Seeds = 3,
    twins: Annotated[bool, typer.Option(help="Also train the backprop twin of each recipe.")] = True,
) -> None:
    """Compare the strongest recipes with backprop twins: the same network, data, optimiser and epochs.

    Not in the paper. Writes the result of each run to OUT/best, and the table to OUT/best.json and .md. After Ctrl-C the
    same command continues.
    """
    from faustnet.reproduce.best import TABLE, best_jobs

    table_jobs = best_jobs(None if names is None else _names(names), seeds, twins=twins)
    two = " Several numbers in a cell are those of the columns before, in their order." if twins else ""
    training.tabulate(TABLE, table_jobs, f"Test accuracy in %, mean ± standard deviation.{two}")


@_command
def class_counts(
    training: Training,
    base: Annotated[str, typer.Option(help="Recipe, as DATASET/NAME.")] = "cifar10/cnn",
    counts: Annotated[str, _listed("Numbers of classes")] = "2,5,10",
    seeds: Seeds = 3,
) -> None:
    """Measure the accuracy of a recipe and of its twins on some of the classes of their data set.

    Not in the paper. The seed determines the classes. Results of `faustnet reproduce best` in OUT are reused where all
    classes are wanted. Writes the results to OUT/class-counts and OUT/class-counts.json, and a figure.
    """
    from faustnet.reproduce.class_counts import class_count_jobs, draw_counts

    _print_paths(draw_counts(class_count_jobs(base, numbers(counts, "--counts"), seeds), training.out, training.workers()))


@_command
def incremental(
    training: Training,
    base: Annotated[
        str, typer.Option(help="Recipe of a FAUST method with a backprop twin, as DATASET/NAME.")
    ] = "cifar100/cnn",
    first: Annotated[int, typer.Option(help="Number of classes to train on.")] = 50,
    step: Annotated[int, typer.Option(help="Number of classes that are added in each step.")] = 5,
    seeds: Seeds = 3,
) -> None:
    """Add classes over time: train on some classes, then add the others in steps, and measure the accuracy after each step.

    Not in the paper. FAUST without further training, FAUST with a short training of its heads, and backprop with the nearest
    class mean. The seed determines the order of the classes. Writes the results to OUT/incremental and
    OUT/incremental.json, and a figure.
    """
    from faustnet.reproduce.incremental import draw_steps, incremental_jobs

    _print_paths(draw_steps(incremental_jobs(base, first, step, seeds), training.out, training.workers()))


@_command
def ablation(
    training: Training,
    base: Annotated[str, typer.Option(help="Recipe to change, as DATASET/NAME.")] = "cifar10/mlp",
    epochs: Annotated[int | None, option("Number of epochs of every run.", "as in the recipe")] = None,
    seeds: Seeds = 3,
) -> None:
    """Ablation of a strong recipe: change one setting at a time and measure the accuracy on validation images.

    Not in the paper. 5,000 training images (20% of digits) are held out for validation. Writes the result of each run to
    OUT/ablation, and the table to OUT/ablation.json and .md. After Ctrl-C the same command continues.
    """
    from faustnet.reproduce.ablation import TABLE, ablation_jobs

    note = "Validation accuracy in %, mean ± standard deviation."
    training.tabulate(TABLE, ablation_jobs(base, seeds, epochs), note)


@_command
def new_classes(
    training: Training,
    datasets: Annotated[str, _listed("Data sets")] = "mnist,fashion-mnist",
    classes: Annotated[
        str, typer.Option(help="Classes to leave out, as numbers separated by commas; each run leaves out one.")
    ] = "0,1,2,3,4,5,6,7,8,9",
    references: Annotated[str, _listed("Numbers of references per class")] = "1,10",
    seeds: Seeds = 1,
) -> None:
    """Add classes without training: train on all classes but one, then add that class from 1, 10 and 100 images.

    Not in the paper. Writes the result of each run to OUT/new-classes, and the table to OUT/new-classes.json and .md. After
    Ctrl-C the same command continues.
    """
    from faustnet.reproduce.new_classes import TABLE, new_class_jobs

    numbered, counts = numbers(classes, "--classes"), numbers(references, "--references")
    table_jobs = new_class_jobs(_names(datasets), numbered, counts, seeds)
    training.tabulate(TABLE, table_jobs, "Test accuracy in %, mean ± standard deviation over the classes.")


@_command
def rejection(
    training: Training,
    datasets: Annotated[
        str,
        _listed(
            "Data sets to train on",
            "mnist (images of fashion-mnist count as unknown), fashion-mnist (mnist), cifar10 (cifar100), omniglot "
            "(omniglot-evaluation)",
        ),
    ] = "mnist,fashion-mnist",
    seeds: Seeds = 3,
) -> None:
    """Measure how well FAUST and backprop distinguish images of another data set from images of known classes.

    Not in the paper. Writes the result of each run to OUT/rejection, and the table to OUT/rejection.json and .md. After
    Ctrl-C the same command continues.
    """
    from faustnet.reproduce.rejection import TABLE, rejection_jobs

    note = "In %, on test images unless the column says otherwise."
    training.tabulate(TABLE, rejection_jobs(_names(datasets), seeds), note)


@_command
def few_shot(
    training: Training,
    methods: Annotated[str, _listed("Methods")] = "faust-representative,faust-prototype,backprop",
    episodes: Annotated[int, typer.Option(help="Number of random episodes of each kind, for each seed.")] = 1000,
    seeds: Seeds = 3,
) -> None:
    """Recognise new characters of Omniglot from one or five drawings: N-way K-shot accuracy with 95 % intervals.

    Not in the paper. Trains on the background alphabets, and classifies characters of the evaluation alphabets, also by raw
    pixels. Writes the result of each run to OUT/few-shot, and the table to OUT/few-shot.json and .md. After Ctrl-C the same
    command continues.
    """
    from faustnet.reproduce.few_shot import TABLE, few_shot_jobs

    note = "Accuracy in % with half the length of its 95 % interval; ○: the intervals of the two methods overlap."
    training.tabulate(TABLE, few_shot_jobs(_names(methods), episodes, seeds), note)
