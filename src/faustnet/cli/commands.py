"""Commands that use finished runs: evaluate, votes, report, predict, play and export."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faustnet.cli.options import (
    AsJson,
    DataDir,
    Device,
    Layers,
    Text,
    check_takes_texts,
    check_writable,
    numbers,
    option,
    print_json,
    require_images_or_texts,
)
from faustnet.errors import printable, require
from faustnet.report.tables import print_comparison, print_early_exit, print_evaluation, print_weightings
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from faustnet.data import DataSet
    from faustnet.runs.model import Inputs, Model
    from faustnet.runs.prediction import EarlyPrediction, Prediction

OtherData = Annotated[str | None, option("Data set: a name or a path.", "the data set of the run")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a finished run.")]


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or model files; several are compared.")],
    dataset: OtherData = None,
    layers: Layers = None,
    early_exit: Annotated[
        bool,
        typer.Option(
            "--early-exit",
            help="Also measure early exit for several margins: an image stops at the first layer where the best class "
            "leads by the margin (FAUST only).",
        ),
    ] = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure the accuracy on the test images: of each layer alone, of the first 1, 2, … layers together, and of all."""
    from faustnet.runs.folder import model_at
    from faustnet.system.devices import choose_device

    where = choose_device(device)
    results = []
    for folder in runs:
        model = model_at(folder, where)
        data = _read_data(model, data_dir, dataset)
        result = model.measure(data.test.to(where), _layer_numbers(layers), early_exit=early_exit)
        results.append({"run": str(folder), "method": model.recipe.method, "dataset": data.name, **result})
    if as_json:
        print_json(results)
        return
    if len(results) == 1:
        print_evaluation(results[0])
    else:
        print_comparison(results)
    if early_exit:
        for result in results:
            print_early_exit(result)


def votes(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run that was trained with validation images.")],
    dataset: Annotated[
        str | None, option("Data set, by name or path, whose test images are used.", "the validation images of the run")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare the accuracy of several weightings of the layers, on the validation images.

    The weightings are equal weights, only the last layers, and weights fitted to the validation images.
    """
    from faustnet.runs.folder import Run
    from faustnet.runs.session import held_out_images
    from faustnet.system.devices import choose_device
    from faustnet.training.evaluation import compare_weightings

    where = choose_device(device)
    model = Run.open(run).model(where)
    recipe, voters = model.recipe, model.method.voters
    require(
        dataset is not None or recipe.training.validation > 0,
        f"{run} has no validation images: train with --set training.validation=0.1, or give other images with --dataset.",
    )
    require(
        len(voters) > 1,
        f"{run} predicts from one layer only, so there are no weights to compare: choose a "
        "run that predicts from several layers.",
    )
    data = held_out_images(model, dataset, data_dir)
    _print_left_out(data)
    held_out = data.test
    ways = [asdict(way) for way in compare_weightings(model.method, model.source(held_out.to(where)))]
    if as_json:
        print_json({"run": str(run), "voters": voters, "images": len(held_out), "weightings": ways})
        return
    typer.echo(
        f"{recipe.method} on {printable(data.name)}: weights of the layers, and accuracy on {len(held_out)} validation "
        "images"
    )
    print_weightings(voters, ways)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs; several are shown side by side.")],
    out: Annotated[
        Path | None, option("HTML file to write; an existing file is overwritten.", "report.html in the first run's folder")
    ] = None,
    images: Annotated[int, typer.Option(help="Number of test images in the plots of the embeddings.")] = 1000,
    charts: Annotated[
        Path | None,
        option("Folder for every chart as an SVG and a PDF file; existing files are overwritten.", "no charts are written"),
    ] = None,
    dataset: OtherData = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Write an HTML page about runs: accuracy by layer, by class and with early exit, learning curves, plots of the
    embeddings, confusion matrices, wrong answers with the distances and votes of every layer, and recipes.

    The page is a single file and opens in any browser without a network connection.
    """
    out = out or runs[0] / "report.html"
    require(out.suffix.lower() in (".html", ".htm"), f"--out must end in .html, got {out}.")
    require(images >= 1, f"--images must be at least 1, got {images}.")
    from faustnet.report.charts import check_charts, write_charts
    from faustnet.report.page import plotly_script, render_page
    from faustnet.runs.analysis import inspect_run
    from faustnet.runs.folder import Run
    from faustnet.system.devices import choose_device

    opened = [Run.open(folder) for folder in runs]
    check_writable(out)
    plotly_script()  # fails early if plotly is not installed
    if charts is not None:
        check_charts(charts)
    where = choose_device(device)
    facts = []
    for run in opened:

        def say(step: str, folder: Path = run.folder) -> None:
            typer.echo(printable(f"{folder}: {step}"), err=True)

        facts.append(inspect_run(run, device=where, data_dir=data_dir, points=images, dataset=dataset, say=say))
    typer.echo("writing the page", err=True)
    write_whole(out, render_page(facts).encode())
    typer.echo(f"written: {out}")
    if charts is not None:
        write_charts(facts, charts, lambda name: typer.echo(f"drawing {name}", err=True))
        typer.echo(f"written: {charts}, every chart as SVG and PDF")


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or a model file.")],
    images: Annotated[list[Path] | None, typer.Argument(help="Image files of any size, and folders of image files.")] = None,
    text: Text = None,
    layers: Layers = None,
    exit_margin: Annotated[
        float | None,
        option(
            "Early exit: stop at the first layer where the best class leads by at least this margin (FAUST only); "
            "'faustnet evaluate --early-exit' shows the accuracy for several margins.",
            "no early exit",
        ),
    ] = None,
    reject: Annotated[
        bool,
        typer.Option("--reject", help="Print 'unknown' for images that are far from every class; see 'faustnet calibrate'."),
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Print the class of each image or text, its score, and the class that each layer alone would predict.

    Folders are searched recursively. Files that cannot be read are listed and skipped; the exit code is then 1. After
    'faustnet calibrate', images that are far from all classes are listed on standard error.
    """
    require(not (as_json and as_csv), "--json and --csv exclude each other: give one of them.")
    early = exit_margin is not None
    require(layers is None or not early, "--layers and --exit-margin exclude each other: give one of them.")
    require(not (early and reject), "--exit-margin and --reject exclude each other: give one of them.")
    require_images_or_texts(images, text)
    chosen = _layer_numbers(layers)
    from faustnet.cli.predictions import predict_files, print_far, print_predictions
    from faustnet.runs.folder import model_at
    from faustnet.system.devices import choose_device

    model = model_at(run, choose_device(device))

    def predictions_for(pixels: "Inputs") -> "Sequence[Prediction | EarlyPrediction]":
        if exit_margin is not None:
            return model.predict_early(pixels, exit_margin)
        return model.predict(pixels, chosen, reject=reject)

    found: Sequence[tuple[object, Prediction | EarlyPrediction]]
    if text:
        check_takes_texts(model, run)
        found, failed = list(zip(text, predictions_for(text), strict=True)), 0
    else:
        found, failed = predict_files(images or [], model.image_shape, predictions_for)
    voters = [] if early else model.method.voters
    print_predictions("text" if text else "file", found, voters, as_json=as_json, as_csv=as_csv)
    if not reject:
        print_far(found)
    if failed:
        raise typer.Exit(1)


def play(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of a FAUST method on images, or a model file.")],
    out: Annotated[
        Path | None, option("HTML file to write; an existing file is overwritten.", "play.html in the folder of the model")
    ] = None,
    dataset: OtherData = None,
    data_dir: DataDir = None,
) -> None:
    """Write an HTML page that runs a model: draw an image, and see the distances and the vote of every layer.

    The page also shows where early exit would stop, and adds a class from three drawings. It is a single file and opens in
    any browser without a network connection. Dense and convolutional models of up to 20 MB are supported.
    """
    out = out or (run.parent if run.is_file() else run) / "play.html"
    require(out.suffix.lower() in (".html", ".htm"), f"--out must end in .html, got {out}.")
    import torch

    from faustnet.play.page import PageModel, render_play
    from faustnet.runs.folder import model_at

    model = model_at(run, torch.device("cpu"))
    check_writable(out)
    page = PageModel.of(model)  # fails early if a page cannot run this model
    content = render_play(page, _read_data(model, data_dir, dataset)).encode()
    write_whole(out, content)
    typer.echo(f"written: {out}, {len(content) / 1e6:.1f} MB; open it in a browser")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="ONNX file to write; a model card is written next to it, as .md.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a model as a single ONNX file, from pixels to classes, and a model card with its results."""
    from faustnet.export import export_run
    from faustnet.runs.folder import Run

    finished = Run.open(run)
    check_writable(out)
    made = export_run(finished, out, force=force)
    typer.echo(f"written: {made.path}, {made.size / 1e6:.1f} MB, and {made.card}")
    typer.echo(f"Scores in ONNX Runtime differ from PyTorch's by at most {made.difference:.1g}.")


def _read_data(model: "Model", data_dir: Path | None, dataset: str | None = None) -> "DataSet":
    """Read the data set of the model, or another one, and list the files that were skipped."""
    data = model.read_data(dataset, data_dir)
    _print_left_out(data)
    return data


def _print_left_out(data: "DataSet") -> None:
    for line in data.left_out:
        typer.echo(printable(f"skipped: {line}"), err=True)


def _layer_numbers(layers: str | None) -> list[int] | None:
    return None if layers is None else numbers(layers, "--layers")
