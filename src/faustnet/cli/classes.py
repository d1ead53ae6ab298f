"""Commands that extend a trained model: add a class, or set the threshold for rejecting images."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faustnet.cli.options import (
    DataDir,
    Device,
    Text,
    check_takes_texts,
    check_writable,
    option,
    require_images_or_texts,
)
from faustnet.errors import printable, require
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from torch import Tensor

    from faustnet.runs.model import Model

RunFolder = Annotated[Path, typer.Argument(help="Folder of a finished run of a FAUST method.")]
Out = Annotated[Path | None, option("Model file to write; the model of the run stays unchanged.", "the model of the run")]


def add_class(
    run: RunFolder,
    name: Annotated[str, typer.Argument(help="Name of the new class.")],
    images: Annotated[
        list[Path] | None, typer.Argument(help="Examples of the new class: image files of any size, or folders of them.")
    ] = None,
    text: Text = None,
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Add a class to a model from a few examples, without training.

    In every layer, the mean embedding of the examples becomes the reference of the class; about ten examples are enough.
    The metrics in the run folder are not updated.
    """
    require_images_or_texts(images, text)
    from faustnet.runs.folder import MODEL, Run
    from faustnet.system.devices import choose_device

    model = Run.open(run).model(choose_device(device))
    target = out or run / MODEL
    check_writable(target)
    examples = _examples(model, run, images or [], text or [])
    larger = model.add_class(name, examples)
    write_whole(target, larger.to_bytes())
    before, after = _count_predictions(model, examples), _count_predictions(larger, examples)
    if model.threshold is not None:
        typer.echo("The rejection threshold was removed: run 'faustnet calibrate' again, on images of all classes.")
    typer.echo(f"{target} now has {len(larger.class_names)} classes: {printable(', '.join(larger.class_names))}")
    typer.echo(f"Predictions for the {len(examples)} examples of {name}, before: {before}; now: {after}.")


def calibrate(
    run: RunFolder,
    accept: Annotated[float, typer.Option(help="Fraction of images of known classes that must not be rejected.")] = 0.95,
    dataset: Annotated[
        str | None,
        option("Data set to calibrate on, by name or path; its test images are used.", "the validation images of the run"),
    ] = None,
    out: Out = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Choose the rejection threshold: images further than this from every class are "unknown".

    The threshold is chosen on images that the model was not trained on. 'faustnet predict --reject' uses it.
    """
    from faustnet.runs.folder import MODEL, Run
    from faustnet.runs.prediction import UNKNOWN
    from faustnet.runs.session import validation_split
    from faustnet.system.devices import choose_device

    model = Run.open(run).model(choose_device(device))
    target = out or run / MODEL
    check_writable(target)
    recipe = model.recipe
    require(
        dataset is not None or recipe.training.validation > 0,
        f"{run} has no validation images: give other images of its classes with --dataset, "
        "or train with --set training.validation=0.1.",
    )
    found = model.read_data(dataset, data_dir)
    held_out = found.test if dataset else validation_split(recipe, found)[1]
    calibrated = model.calibrate(held_out.all_pixels, accept)
    write_whole(target, calibrated.to_bytes())
    rejected = sum(one.class_name == UNKNOWN for one in calibrated.predict(held_out.all_pixels, reject=True))
    typer.echo(
        f"{target} rejects {rejected} of these {len(held_out)} images of known classes ({rejected / len(held_out):.2%})."
    )
    typer.echo("To use the threshold, run: faustnet predict --reject")


def _examples(model: "Model", run: Path, images: Sequence[Path], texts: Sequence[str]) -> "Tensor | Sequence[str]":
    """Return the pixels of image files, or the texts."""
    import torch

    from faustnet.data import image_files, read_image

    if texts:
        check_takes_texts(model, run)
        return texts
    return torch.stack([read_image(path, model.image_shape) for path in image_files(images)])


def _count_predictions(model: "Model", examples: "Tensor | Sequence[str]") -> str:
    """Return the number of examples that are predicted as each class, for example "4 (7), 9 (3)"."""
    counts = Counter(prediction.class_name for prediction in model.predict(examples))
    return ", ".join(f"{printable(name)} ({count})" for name, count in counts.most_common())
