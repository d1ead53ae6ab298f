"""Options that several commands have, and functions for reading options and printing results."""

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from faustnet.errors import FaustnetError


def option(about: str, default: object, *names: str) -> Any:
    """Return a Typer option that is None unless given; `default` is shown in the help text."""
    return typer.Option(*names, help=about, show_default=str(default))


Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or mps. auto selects a GPU if there is one.")]
DataDir = Annotated[
    Path | None, option("Folder of downloaded data sets.", "$FAUSTNET_DATA, or a folder in the user's cache")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Layers = Annotated[str | None, option("Predict from these layers only, for example 1,3.", "all")]


def numbers(text: str, option: str) -> list[int]:
    """Read whole numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise FaustnetError(f"{option} must be whole numbers separated by commas, got {text!r}.") from None


def check_writable(path: Path) -> None:
    """Raise FaustnetError if the file cannot be written, before the work that produces its content."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FaustnetError(f"{path} could not be written ({error.strerror}): choose another path.") from None


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2))
