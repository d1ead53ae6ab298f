"""Commands that list and change the classes of a trained model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faustnet.cli.changes import Out, RunOrModel, change_model
from faustnet.cli.options import AsJson, Device, Text, check_takes_texts, print_json, require_images_or_texts
from faustnet.errors import printable
from faustnet.report.tables import print_table

if TYPE_CHECKING:
    from torch import Tensor

    from faustnet.runs.model import Model

    Examples = Tensor | Sequence[str]

CPU = "cpu"  # for changes that embed no image
ClassName = Annotated[str, typer.Argument(metavar="CLASS", help="Name of the class.")]


def classes(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or a model file.")], as_json: AsJson = False
) -> None:
    """List the classes of a model: references per layer, whether they were learned or added, and changes.

    The column "images added" counts the images from 'faustnet add-class', 'add-classes' and 'add-images'.
    """
    import torch

    from faustnet.runs.folder import model_at

    model = model_at(run, torch.device(CPU))
    found, changes = model.classes, list(map(str, model.class_history.changes))
    if as_json:
        about = {"run": str(run), "method": model.recipe.method}
        print_json({**about, "classes": [asdict(one) for one in found], "changes": changes})
        return
    columns = ("number", "class", "references", "origin", "images added")
    rows = [
        (str(one.number), one.name, _or_dash(one.references), "learned" if one.learned else "added", _or_dash(one.images))
        for one in found
    ]
    print_table(columns, rows, numbers=("number", "references", "images added"))
    if changes:
        typer.echo(printable(f"Last of {len(changes)} changes: {changes[-1]}. To undo it, run: faustnet undo-classes {run}"))


def add_class(
    run: RunOrModel,
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
    examples: list[Examples] = []

    def larger(model: "Model") -> "Model":
        examples.append(_examples(model, run, images or [], text or []))
        return model.add_class(name, examples[0])

    target, before, after = change_model(run, out, device, larger)
    typer.echo(f"{target} now has {len(after.class_names)} classes: {printable(', '.join(after.class_names))}")
    _print_predictions(name, before, after, examples[0])


def add_classes(
    run: RunOrModel,
    folder: Annotated[
        Path, typer.Argument(help="Folder that contains a folder of images, of any size, for each new class.")
    ],
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Add all classes of a folder to a model, without training. A class has the name of its folder.

    In every layer, the mean embedding of the images of a class becomes its reference; one image is enough. Either all
    classes are added or none. The metrics in the run folder are not updated.
    """
    from faustnet.data import read_classes

    examples: dict[str, Tensor] = {}

    def larger(model: "Model") -> "Model":
        found, others = read_classes(folder, model.image_shape)
        if others:
            typer.echo(f"skipped: {len(others)} files whose suffix is not that of an image", err=True)
        examples.update(found)
        return model.add_classes(examples)

    target, _, after = change_model(run, out, device, larger)
    images = sum(map(len, examples.values()))
    typer.echo(f"{target} now has {len(after.class_names)} classes; {len(examples)} were added from {images} images.")


def add_images(
    run: RunOrModel,
    name: ClassName,
    images: Annotated[
        list[Path] | None, typer.Argument(help="Further examples of the class: image files of any size, or folders of them.")
    ] = None,
    text: Text = None,
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Add examples to a class of a model, without training.

    The references of an added class are computed again from all of its examples. A learned reference moves by 3 % of the way
    to the mean of the new ones. The metrics in the run folder are not updated.
    """
    require_images_or_texts(images, text)
    examples: list[Examples] = []

    def improved(model: "Model") -> "Model":
        examples.append(_examples(model, run, images or [], text or []))
        return model.add_images(name, examples[0])

    target, before, after = change_model(run, out, device, improved)
    (about,) = (one for one in after.classes if one.name == name)
    typer.echo(f"{target}: class {printable(name)} now has {about.images} added {_noun(after)}.")
    _print_predictions(name, before, after, examples[0])


def rename_class(
    run: RunOrModel,
    name: ClassName,
    new: Annotated[str, typer.Argument(help="New name of the class.")],
    out: Out = None,
) -> None:
    """Rename a class of a model. Data sets may have the old name or the new one."""
    target, _, _ = change_model(run, out, CPU, lambda model: model.rename_class(name, new))
    typer.echo(printable(f"{target}: class {name} is now named {new}."))


def remove_class(run: RunOrModel, name: ClassName, out: Out = None) -> None:
    """Remove a class from a model. Images of the class in data sets are then left out."""
    target, _, after = change_model(run, out, CPU, lambda model: model.remove_class(name))
    typer.echo(printable(f"{target} now has {len(after.class_names)} classes, without {name}."))


def undo_classes(run: RunOrModel, out: Out = None) -> None:
    """Undo the last change of the classes of a model: added, renamed or removed classes, or added images.

    The last 100 changes can be undone, one by one.
    """
    target, before, after = change_model(run, out, CPU, lambda model: model.undo_classes())
    typer.echo(printable(f"Undone: {before.class_history.changes[-1]}."))
    typer.echo(f"{target} now has {len(after.class_names)} classes.")


def _noun(model: "Model") -> str:
    return "texts" if model.tokeniser else "images"


def _or_dash(number: int | None) -> str:
    return str(number or "–")


def _examples(model: "Model", run: Path, images: Sequence[Path], texts: Sequence[str]) -> "Examples":
    """Return the pixels of image files, or the texts."""
    import torch

    from faustnet.data import image_files, read_image

    if texts:
        check_takes_texts(model, run)
        return texts
    return torch.stack([read_image(path, model.image_shape) for path in image_files(images)])


def _print_predictions(name: str, before: "Model", after: "Model", examples: "Examples") -> None:
    counts = [_count_predictions(model, examples) for model in (before, after)]
    typer.echo(f"Predictions for the {len(examples)} examples of {printable(name)}, before: {counts[0]}; now: {counts[1]}.")


def _count_predictions(model: "Model", examples: "Examples") -> str:
    """Return the number of examples that are predicted as each class, for example "4 (7), 9 (3)"."""
    counts = Counter(prediction.class_name for prediction in model.predict(examples))
    return ", ".join(f"{printable(name)} ({count})" for name, count in counts.most_common())
