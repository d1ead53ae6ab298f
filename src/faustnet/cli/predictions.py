"""Read image files and print predictions, for `faustnet predict`."""

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import typer
from torch import Tensor

from faustnet.cli.options import print_json
from faustnet.data import image_files, read_image
from faustnet.errors import FaustnetError, printable
from faustnet.report.tables import print_table
from faustnet.runs.prediction import UNKNOWN, EarlyPrediction, Prediction

AT_ONCE = 256  # images in memory
SHOWN = 5  # names in a message

AnyPrediction = Prediction | EarlyPrediction


def predict_files(
    given: Sequence[Path], shape: tuple[int, int, int], predict: Callable[[Tensor], Sequence[AnyPrediction]]
) -> tuple[list[tuple[Path, AnyPrediction]], int]:
    """Predict image files and the image files in folders, each file once.

    Returns the predictions, in the order of `given` and by name within a folder, and the number of files that could not be
    read. Those are listed on standard error. `predict`: (n, c, h, w) → n
    """
    paths = list(dict.fromkeys(image_files(given)))
    found: list[tuple[Path, AnyPrediction]] = []
    for first in range(0, len(paths), AT_ONCE):
        read = {path: _read(path, shape) for path in paths[first : first + AT_ONCE]}
        good = {path: pixels for path, pixels in read.items() if pixels is not None}
        if good:
            found += zip(good, predict(torch.stack(list(good.values()))), strict=True)
    return found, len(paths) - len(found)


def _read(path: Path, shape: tuple[int, int, int]) -> Tensor | None:
    try:
        return read_image(path, shape)
    except FaustnetError as error:
        typer.echo(f"faustnet: {' '.join(str(error).split())}", err=True)
        return None


def print_predictions(
    kind: str, found: Sequence[tuple[object, AnyPrediction]], voters: Sequence[str], *, as_json: bool, as_csv: bool
) -> None:
    """Print JSON, CSV or a table. `kind` is what was predicted: "file" or "text". `voters` is empty for predictions with
    early exit."""
    if as_json:
        print_json([{kind: str(one), **asdict(prediction)} for one, prediction in found])
        return
    number = "score" if voters else "layers used"
    columns = (kind, "class", number, *voters)
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        lines = (_cells(str(one), prediction, "{}") for one, prediction in found)
        writer.writerows(map(printable, line) if sys.stdout.isatty() else line for line in lines)
    elif found:
        print_table(columns, [_cells(str(one), prediction, "{:.3f}") for one, prediction in found], numbers=(number,))


def print_far(found: Sequence[tuple[object, AnyPrediction]]) -> None:
    """Name the inputs that are far from all classes, on standard error."""
    far = [str(one) for one, prediction in found if isinstance(prediction, Prediction) and prediction.far]
    if far:
        more = f" and {len(far) - SHOWN} more" if len(far) > SHOWN else ""
        names = printable(", ".join(far[:SHOWN]))
        typer.echo(f"far from all classes: {names}{more}; --reject prints {UNKNOWN} for them", err=True)


def _cells(given: str, prediction: AnyPrediction, score: str) -> tuple[str, ...]:
    if isinstance(prediction, EarlyPrediction):
        return given, prediction.class_name, str(prediction.layers)
    return given, prediction.class_name, score.format(prediction.score), *prediction.votes
