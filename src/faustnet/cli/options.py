"""What the commands share: options that several take, and ways to answer."""

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from faustnet.errors import FaustnetError


def option(about: str, default: object, *names: str) -> Any:
    """An option that is left out unless given, shown with what a recipe has by default; by its own name or these."""
    return typer.Option(*names, help=about, show_default=str(default))


Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
DataDir = Annotated[Path | None, option("Where data sets lie, or are put.", "$FAUSTNET_DATA, or a cache folder")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Layers = Annotated[str | None, option("Answer from these layers alone, e.g. 1,3.", "all")]


def numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise FaustnetError(f"{option} takes whole numbers with commas between them, not {text!r}.") from None


def check_writable(path: Path) -> None:
    """Find out before the work whether its result can be kept."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FaustnetError(f"{path} cannot be written ({error.strerror}): choose another place.") from None


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2))
