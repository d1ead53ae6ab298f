"""`faustnet reproduce`: the paper's table and figures, and what goes past them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from faustnet.cli.options import DataDir, Device, numbers, option
from faustnet.errors import require
from faustnet.report.tables import print_table
from faustnet.reproduce import ablation as ablation_study
from faustnet.reproduce import best as best_study
from faustnet.reproduce import new_classes as class_study
from faustnet.reproduce import rejection as rejection_study
from faustnet.reproduce.dispatch import JobLog
from faustnet.reproduce.dispatch import reproduce as train_and_tabulate
from faustnet.reproduce.figures import draw_figure1, draw_figure2, draw_figure3
from faustnet.reproduce.jobs import FAMILIES, NETWORKS, Job, table1_jobs
from faustnet.reproduce.representatives import COUNTS, DRAWS, draw_representatives, representatives_jobs
from faustnet.reproduce.results import ResultTable
from faustnet.reproduce.table1 import reproduce_table1
from faustnet.reproduce.workers import Workers
from faustnet.runs.progress import Lines
from faustnet.system.devices import choose_device

reproduce = typer.Typer(
    help="Make tables and figures anew, the paper's and others: train what is missing, then write them.",
    no_args_is_help=True,
)

OUT = Path("runs/reproduce")

Jobs = Annotated[
    int | None,
    option("How many runs to train at the same time, each in a process of its own.", "1, or all that a cluster can"),
]
Backend = Annotated[
    str, typer.Option(help="Whose processes: loky, this machine's; dask or ray, those of the cluster at --address.")
]
Address = Annotated[str | None, option("Where a cluster is, e.g. tcp://HOST:8786 (dask) or HOST:6379 (ray).", "none")]
Out = Annotated[Path, typer.Option(help="Where results are kept; what is there already is not made again.")]

Seeds = Annotated[int, typer.Option(help="How many seeds, from 0.")]
Dataset = Annotated[str, typer.Option(help="The data set.")]
Network = Annotated[str, typer.Option(help="The network, as layers and their units.")]


def _listed(about: str) -> object:
    return typer.Option(help=f"{about}, with commas between them.")


@reproduce.command()
def table1(
    methods: Annotated[str | None, option("Methods, with commas between them.", "all that have recipes")] = None,
    datasets: Annotated[str, _listed("Data sets")] = "mnist,fashion-mnist,cifar10",
    networks: Annotated[str, _listed("Networks, as layers and their units")] = ",".join(NETWORKS),
    recipes: Annotated[
        str,
        _listed(
            "Families of recipes: paper, as stated in the paper; tuned, chosen on validation images; default, the default "
            "settings, for methods without a recipe"
        ),
    ] = ",".join(FAMILIES[:2]),
    seeds: Seeds = 5,
    jobs: Jobs = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Accuracy of every method on every data set and network: mean ± standard deviation, the paper's, the difference.

    Each run's result is a file in OUT/table1; the table is OUT/table1.json, .md and .tex. Ctrl-C loses nothing: the same
    command goes on.
    """
    named = None if methods is None else _names(methods)
    jobs_ = table1_jobs(_names(recipes), named, _names(datasets), _names(networks), seeds)
    workers = Workers(device, data_dir, jobs, backend, address)
    with _goes_on(out):
        reproduce_table1(jobs_, out, workers)


@reproduce.command("figure1")
def figure1_(dataset: Dataset = "mnist", network: Network = "3x500", out: Out = OUT, data_dir: DataDir = None) -> None:
    """The architecture, drawn from a network."""
    _say_where(draw_figure1(out, dataset, network, data_dir))


@reproduce.command("figure2")
def figure2_(
    dataset: Dataset = "fashion-mnist",
    network: Network = "4x500",
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """t-SNE of each layer's embeddings of test images, with its Fisher score.

    The Fisher score is the scatter between classes over the scatter within them: F = Σ_c n_c ‖μ_c − μ‖² / Σ_i ‖x_i − μ_y‖².
    """
    with _goes_on(out):
        _say_where(draw_figure2(out, dataset, network, choose_device(device), data_dir, Lines()))


@reproduce.command("figure3")
def figure3_(
    dataset: Dataset = "cifar10",
    network: Network = "3x500",
    seeds: Seeds = 5,
    jobs: Jobs = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Convergence of Forward-Forward, FAUST and backprop by the paper's recipes: table 1's runs, epoch by epoch."""
    workers = Workers(device, data_dir, jobs, backend, address)
    with _goes_on(out):
        _say_where(draw_figure3(out, dataset, network, seeds, workers, _said))


@reproduce.command()
def representatives(
    datasets: Annotated[str, _listed("Data sets")] = "fashion-mnist,cifar10",
    network: Network = "3x500",
    draws: Annotated[int, typer.Option(help="How many random choices of a single image.")] = DRAWS,
    counts: Annotated[str, _listed("How many references of each class")] = ",".join(map(str, COUNTS)),
    jobs: Jobs = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """How much it matters what stands for a class: random images, the middles of clusters or learned vectors, 1 to 50.

    Beyond the paper, by its tuned recipes. The results are in OUT/representatives, OUT/representatives.json and a figure.
    """
    require(1 <= draws <= 1000, f"--draws must be between 1 and 1000, got {draws}.")
    jobs_ = representatives_jobs(_names(datasets), network, draws, numbers(counts, "--counts"))
    workers = Workers(device, data_dir, jobs, backend, address)
    with _goes_on(out):
        _say_where(draw_representatives(jobs_, out, workers, _said))


@reproduce.command()
def best(
    names: Annotated[str | None, option("Recipes, e.g. cifar10/mlp,mnist/mlp.", "all but those of digits")] = None,
    seeds: Seeds = 3,
    twins: Annotated[bool, typer.Option(help="Train each one's backprop twin as well.")] = True,
    jobs: Jobs = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """The strongest recipes, FAUST's each beside its twin: the same network, data, optimiser and epochs, by backprop.

    Beyond the paper. Each run's result is a file in OUT/best; the table is OUT/best.json and .md. Ctrl-C loses nothing: the
    same command goes on.
    """
    jobs_ = best_study.best_jobs(None if names is None else _names(names), seeds, twins=twins)
    workers = Workers(device, data_dir, jobs, backend, address)
    two = "; two figures are those of the local recipe and of its backprop twin" if twins else ""
    _tabulate(best_study.TABLE, jobs_, out, workers, f"Test accuracy in %, mean ± standard deviation{two}.")


@reproduce.command()
def ablation(
    base: Annotated[str, typer.Option(help="A recipe among the best, as DATASET/NAME.")] = "cifar10/mlp",
    epochs: Annotated[int | None, option("Epochs of every run.", "the recipe's")] = None,
    seeds: Seeds = 3,
    jobs: Jobs = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """What each piece of a strong recipe gives: the recipe with one piece changed at a time, on validation images.

    Beyond the paper. 5,000 training images (20% of digits) are held out to measure on. Each run's result is a file in
    OUT/ablation; the table is OUT/ablation.json and .md. Ctrl-C loses nothing: the same command goes on.
    """
    jobs_ = ablation_study.ablation_jobs(base, seeds, epochs)
    workers = Workers(device, data_dir, jobs, backend, address)
    _tabulate(ablation_study.TABLE, jobs_, out, workers, "Validation accuracy in %, mean ± standard deviation.")


@reproduce.command("new-classes")
def new_classes(
    datasets: Annotated[str, _listed("Data sets")] = "mnist,fashion-mnist",
    classes: Annotated[str, _listed("Classes to leave out in turn, by number")] = ",".join(
        map(str, range(class_study.CLASSES))
    ),
    references: Annotated[str, _listed("How many references a class has")] = "1,10",
    seeds: Seeds = 1,
    jobs: Jobs = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Classes that are added without training: train on all but one, then add that from 1, 10 and 100 training images.

    Beyond the paper. Each run's result is a file in OUT/new-classes; the table is OUT/new-classes.json and .md. Ctrl-C loses
    nothing: the same command goes on.
    """
    numbered, counts = numbers(classes, "--classes"), numbers(references, "--references")
    jobs_ = class_study.new_class_jobs(_names(datasets), numbered, counts, seeds)
    workers = Workers(device, data_dir, jobs, backend, address)
    _tabulate(class_study.TABLE, jobs_, out, workers, "Test accuracy in %, ± standard deviation over the classes.")


@reproduce.command()
def rejection(
    datasets: Annotated[str, _listed("Data sets; images of the other one are rejected")] = ",".join(rejection_study.UNKNOWN),
    seeds: Seeds = 3,
    jobs: Jobs = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Out = OUT,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """How well images of another data set are told from those of known classes, by FAUST and by backprop.

    Beyond the paper. Each run's result is a file in OUT/rejection; the table is OUT/rejection.json and .md. Ctrl-C loses
    nothing: the same command goes on.
    """
    jobs_ = rejection_study.rejection_jobs(_names(datasets), seeds)
    workers = Workers(device, data_dir, jobs, backend, address)
    _tabulate(rejection_study.TABLE, jobs_, out, workers, "In %, on test images unless the column says otherwise.")


def _tabulate(table: ResultTable, jobs: Sequence[Job], out: Path, workers: Workers, note: str) -> None:
    """Train what is missing and print the table."""
    with _goes_on(out):
        cells = train_and_tabulate(table, jobs, out, workers, JobLog(out, _said))
    print_table(table.columns, table.rows(cells), numbers=table.columns[1:])
    typer.echo(f"{note} The table is in {out}/{table.name}.json and .md.")


def _said(job: object, what: str) -> None:
    typer.echo(f"{job}: {what}", err=True)


@contextmanager
def _goes_on(out: Path) -> Iterator[None]:
    """An interrupt is no error here: what was done is kept."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped; what was done is kept in {out}. The same command goes on.", err=True)
        raise typer.Exit(130) from None


def _say_where(paths: list[Path]) -> None:
    typer.echo(f"written: {', '.join(map(str, paths))}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
