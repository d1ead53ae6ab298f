"""`faustnet reproduce`: the paper's table and figures."""

from pathlib import Path
from typing import Annotated

import typer

from faustnet.cli.app import DataDir, Device, app
from faustnet.devices import choose_device
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS
from faustnet.reproduce.table1 import reproduce_table1
from faustnet.reproduce.wanted import FAMILIES, NETWORKS, all_wanted
from faustnet.runs import Stopped

reproduce = typer.Typer(help="Make the paper's table and figures anew: train what is missing, then write them.")
app.add_typer(reproduce, name="reproduce", no_args_is_help=True)

Jobs = Annotated[int, typer.Option(help="How many runs to train at the same time, each in a process of its own.")]
Out = Annotated[Path, typer.Option(help="Where results are kept; what is there already is not made again.")]


def _listed(about: str) -> object:
    return typer.Option(help=f"{about}, with commas between them.")


@reproduce.command()
def table1(
    methods: Annotated[str, _listed("Methods")] = ",".join(METHODS),
    datasets: Annotated[str, _listed("Data sets")] = "mnist,fashion-mnist,cifar10",
    networks: Annotated[str, _listed("Networks, as layers and their units")] = ",".join(NETWORKS),
    recipes: Annotated[
        str, _listed("Families of recipes: paper, what the paper states; tuned, what was best on validation images")
    ] = ",".join(FAMILIES),
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 5,
    jobs: Jobs = 1,
    out: Out = Path("results"),
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Accuracy of every method on every data set and network: mean ± standard deviation, the paper's, the difference.

    Each run's result is a file in OUT/table1; the table is OUT/table1.json, .md and .tex. Ctrl-C loses nothing: the same
    command goes on.
    """
    if jobs < 1:
        raise FaustnetError(f"Runs are trained by one process or more, not {jobs}.")
    wanted = all_wanted(_names(recipes), _names(methods), _names(datasets), _names(networks), seeds)
    try:
        reproduce_table1(wanted, out, choose_device(device).type, data_dir, jobs)
    except (Stopped, KeyboardInterrupt):
        typer.echo(f"Stopped; what was done is kept in {out}. The same command goes on.", err=True)
        raise typer.Exit(130) from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
