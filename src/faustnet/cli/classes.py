"""Commands that change what a trained model knows: a class more, or what is none of its classes."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import torch
import typer

from faustnet.cli.options import DataDir, Device, check_writable, option
from faustnet.data import image_files, read_image
from faustnet.errors import printable, require
from faustnet.runs.folder import MODEL, Run
from faustnet.runs.model import UNKNOWN, Model
from faustnet.runs.session import divided
from faustnet.system.devices import choose_device
from faustnet.system.files import write_whole

Out = Annotated[Path | None, option("Write the new model there, and leave the run as it is.", "the run's model")]


def add_class(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run of a FAUST method.")],
    name: Annotated[str, typer.Argument(help="What the new class is called.")],
    images: Annotated[list[Path], typer.Argument(help="Examples of it: image files of any size, or folders of them.")],
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Teach a model one class more from a few examples, without training.

    The mean of the examples' embeddings stands for the class in every layer; ten examples do well. The run's metrics stay
    those of its training.
    """
    model = Run.open(run).model(choose_device(device))
    target = out or run / MODEL
    check_writable(target)
    pixels = torch.stack([read_image(path, model.image_shape) for path in image_files(images)])
    larger = model.add_class(name, pixels)
    write_whole(target, larger.to_bytes())
    before, after = _counted(model, pixels), _counted(larger, pixels)
    if model.threshold is not None:
        typer.echo("It no longer rejects: calibrate it anew, on images of all its classes.")
    typer.echo(f"{target} knows {len(larger.class_names)} classes now: {printable(', '.join(larger.class_names))}")
    typer.echo(f"The {len(pixels)} examples of {name} were taken for {before}; now they are taken for {after}.")


def calibrate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run of a FAUST method.")],
    accept: Annotated[float, typer.Option(help="The share of images of known classes that is not to be rejected.")] = 0.95,
    data: Annotated[
        str | None,
        option("Data whose test images are used: a name, a folder or an .npz file.", "the run's validation images"),
    ] = None,
    out: Out = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Find out how far from every class an image must be to be "unknown", on images that were not trained on.

    Afterwards 'faustnet predict --reject' rejects images that are farther.
    """
    model = Run.open(run).model(choose_device(device))
    target = out or run / MODEL
    check_writable(target)
    recipe = model.recipe
    require(
        data is not None or recipe.training.validation > 0,
        f"{run} held out no images: give others of its classes with --data, "
        "or train with --set training.validation=0.1, say.",
    )
    found = model.read_data(data, data_dir)
    held_out = found.test if data else divided(recipe, found)[1]
    calibrated = model.calibrate(held_out.all_pixels, accept)
    write_whole(target, calibrated.to_bytes())
    rejected = sum(one.class_name == UNKNOWN for one in calibrated.predict(held_out.all_pixels, reject=True))
    typer.echo(
        f"{target} rejects {rejected} of these {len(held_out)} images of known classes, {rejected / len(held_out):.2%}."
    )
    typer.echo("Use it with: faustnet predict --reject")


def _counted(model: Model, pixels: torch.Tensor) -> str:
    """How many images are taken for which class, as words: 4 (7), 9 (3)"""
    counts = Counter(prediction.class_name for prediction in model.predict(pixels))
    return ", ".join(f"{printable(name)} ({count})" for name, count in counts.most_common())
