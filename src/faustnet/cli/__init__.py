"""The command line.

A command imports the library when it runs, so that `--help` and `--version` answer without importing torch.
"""

import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from faustnet.cli import (
    calibration,
    check,
    classes,
    commands,
    compare,
    demo,
    few_shot,
    package,
    reproduce,
    studies,
    tokens,
    training,
)
from faustnet.cli.spelling import Command
from faustnet.errors import OUT_OF_MEMORY, FaustnetError, printable, require
from faustnet.version import VERSION

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train neural networks with a separate loss in every layer, without backpropagation between layers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for _command in (  # in the order of --help
    demo.demo,
    training.train,
    commands.evaluate,
    compare.compare,
    commands.predict,
    commands.report,
    commands.play,
    commands.votes,
    classes.classes,
    classes.add_class,
    classes.add_classes,
    classes.add_images,
    classes.rename_class,
    classes.remove_class,
    classes.undo_classes,
    few_shot.few_shot,
    calibration.calibrate,
    commands.export,
    package.methods,
    package.datasets,
    check.check,
    package.shards,
    tokens.tokens,
    package.bench,
):
    app.command(cls=compare.CompareCommand if _command is compare.compare else Command)(_command)
for _study in studies.STUDIES:
    reproduce.add_command(_study)
app.add_typer(reproduce.reproduce, name="reproduce")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"faustnet {VERSION}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Always raises SystemExit: 0, 1 or 2 as documented, 130 after Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot print × or µ
    try:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            _run(words)
        else:
            _run_on_ranks(words)
    except FaustnetError as error:
        _fail(str(error))


def _run_on_ranks(arguments: list[str]) -> None:
    from faustnet.training.distributed import current_ranks, join_ranks

    with join_ranks():
        _run(arguments, several_ranks=current_ranks() is not None)


def _run(arguments: list[str], *, several_ranks: bool = False) -> None:
    try:
        require(
            not several_ranks or arguments[:1] == ["train"],
            "Only 'faustnet train' can run on several ranks: start other commands without torchrun.",
        )
        app(arguments)
    except FaustnetError as error:
        _fail(str(error))
    except MemoryError:
        _fail(OUT_OF_MEMORY)
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        _fail(OUT_OF_MEMORY)
    except OSError as error:
        name = printable(str(error.filename or "a file"))
        _fail(f"{name} cannot be used ({error.strerror or error}): check its path, its permissions and the free disk space.")
    except SystemExit as end:
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):  # Typer exits without a message
            typer.echo("faustnet: interrupted", err=True)
        raise


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Recognise torch.OutOfMemoryError by its name, and the CPU's error, which has no class of its own, by its message."""
    return type(error).__name__ == "OutOfMemoryError" or "alloc" in str(error)


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"faustnet: {' '.join(sentence.split())}", err=True)
    sys.exit(2)
