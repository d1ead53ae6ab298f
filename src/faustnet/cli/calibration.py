"""The command that sets the threshold for rejecting images."""

from typing import TYPE_CHECKING, Annotated

import typer

from faustnet.cli.changes import Out, RunOrModel, change_model
from faustnet.cli.options import DataDir, Device, option
from faustnet.errors import require

if TYPE_CHECKING:
    from faustnet.data import Images
    from faustnet.runs.model import Model


def calibrate(
    run: RunOrModel,
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
    from faustnet.runs.prediction import UNKNOWN
    from faustnet.runs.session import held_out_images

    used: list[Images] = []

    def calibrated(model: "Model") -> "Model":
        model.check_rejection()
        require(
            dataset is not None or model.recipe.training.validation > 0,
            f"{run} has no validation images: give other images of its classes with --dataset, "
            "or train with --set training.validation=0.1.",
        )
        used.append(held_out_images(model, dataset, data_dir).test)
        return model.calibrate(used[0].all_pixels, accept)

    target, _, model = change_model(run, out, device, calibrated)
    (held_out,) = used
    rejected = sum(one.class_name == UNKNOWN for one in model.predict(held_out.all_pixels, reject=True))
    typer.echo(
        f"{target} rejects {rejected} of these {len(held_out)} images of known classes ({rejected / len(held_out):.2%})."
    )
    typer.echo("To use the threshold, run: faustnet predict --reject")
