"""Options that several commands have, and functions for reading options and printing results."""

import errno
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faustnet.errors import FaustnetError, require

if TYPE_CHECKING:
    from faustnet.runs.model import Model


def option(about: str, default: object, *names: str) -> Any:
    """Return a Typer option that is None unless given; `default` is shown in the help text."""
    return typer.Option(*names, help=about, show_default=str(default))


Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or mps. auto selects a GPU if there is one.")]
DataDir = Annotated[
    Path | None, option("Folder of downloaded data sets.", "$FAUSTNET_DATA, or a folder in the user's cache")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Text = Annotated[list[str] | None, typer.Option("--text", help="A text, for a model of texts. May be given several times.")]
Layers = Annotated[str | None, option("Predict from these layers only, for example 1,3.", "all")]


def numbers(text: str, option: str) -> list[int]:
    """Read whole numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise FaustnetError(f"{option} must be whole numbers separated by commas, got {text!r}.") from None


def require_images_or_texts(images: Sequence[Path] | None, texts: Sequence[str] | None) -> None:
    """Refuse a command line with image files and texts, or without any."""
    got = "both" if images else "neither"
    require(bool(images) != bool(texts), f"Give either image files or texts with --text, got {got}.")


def check_takes_texts(model: "Model", run: Path) -> None:
    """Refuse texts for a model of images."""
    require(model.tokeniser is not None, f"{run} was trained on images, not on texts: give image files, without --text.")


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
