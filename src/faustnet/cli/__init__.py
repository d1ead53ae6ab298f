"""The command line."""

import io
import sys
from typing import Annotated, NoReturn

import torch
import typer

from faustnet.cli import classes, commands, reproduce, shards, training
from faustnet.errors import FaustnetError, printable, require
from faustnet.system.devices import OUT_OF_MEMORY
from faustnet.training.distributed import here, joined
from faustnet.version import VERSION

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train neural networks layer by layer, without backpropagation between layers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for _command in (  # in the order of --help
    training.train,
    commands.evaluate,
    commands.predict,
    commands.report,
    commands.votes,
    classes.add_class,
    classes.calibrate,
    commands.export,
    commands.methods,
    commands.datasets,
    shards.shards,
    commands.bench,
):
    app.command()(_command)
app.add_typer(reproduce.reproduce, name="reproduce")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"faustnet {VERSION}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × and µ is no reason to fail
    try:
        with joined():
            _run(sys.argv[1:] if arguments is None else arguments)
    except FaustnetError as error:
        _fail(str(error))


def _run(arguments: list[str]) -> None:
    try:
        if here():
            require(arguments[:1] == ["train"], "Only 'faustnet train' works on several ranks: start this without torchrun.")
        app(arguments)
    except FaustnetError as error:
        _fail(str(error))
    except (MemoryError, torch.OutOfMemoryError):
        _fail(OUT_OF_MEMORY)
    except RuntimeError as error:
        if "alloc" not in str(error):  # how PyTorch says that the CPU's memory is full
            raise
        _fail(OUT_OF_MEMORY)
    except OSError as error:
        name = printable(str(error.filename or "a file"))
        _fail(f"{name} cannot be used ({error.strerror or error}): check its name, rights and disk.")
    except SystemExit as end:
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):  # which Typer makes a silent end
            typer.echo("faustnet: interrupted", err=True)
        raise


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"faustnet: {' '.join(sentence.split())}", err=True)
    sys.exit(2)
