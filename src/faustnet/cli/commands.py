"""Commands about finished runs, and about the package: each reads what was asked for, calls the library, prints what came of
it."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from faustnet.bench import PARTS as BENCH_PARTS
from faustnet.bench import run as run_bench
from faustnet.cli.options import AsJson, DataDir, Device, Layers, check_writable, numbers, option, print_json
from faustnet.cli.predictions import predict_files, print_predictions
from faustnet.data import DATASETS, DataSet, data_folder
from faustnet.errors import FaustnetError, printable, require, unknown
from faustnet.export import export_run
from faustnet.methods import METHODS, LocalMethod, method_named
from faustnet.report.page import plotly_script, render_page
from faustnet.report.tables import print_comparison, print_early_exit, print_evaluation, print_table, print_weightings
from faustnet.runs.analysis import inspect_run
from faustnet.runs.folder import Run, model_at
from faustnet.runs.model import EarlyPrediction, Model, Prediction
from faustnet.runs.session import divided
from faustnet.system.devices import choose_device
from faustnet.system.files import write_whole
from faustnet.training.evaluation import compare_weightings


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs; several are compared.")],
    dataset: Annotated[str | None, typer.Option(help="Other data than the run's own.")] = None,
    layers: Layers = None,
    early_exit: Annotated[
        bool, typer.Option("--early-exit", help="Also what it gives to stop at the first layer that is sure (FAUST).")
    ] = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure models on the test images: each layer alone, the first ones together, the set you choose."""
    where = choose_device(device)
    results = []
    for folder in runs:
        model = model_at(folder, where)
        data = _data_for(model, data_dir, dataset)
        result = model.measure(data.test.to(where), _chosen(layers), early_exit=early_exit)
        results.append({"run": str(folder), "method": model.recipe.method, "dataset": data.name, **result})
    if as_json:
        print_json(results)
    elif len(results) == 1:
        print_evaluation(results[0])
    else:
        print_comparison(results)
    if early_exit and not as_json:
        for result in results:
            print_early_exit(result)


def votes(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run that held out validation images.")],
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare ways to join the layers' votes, on the validation images: all alike, the last ones only, fitted weights."""
    where = choose_device(device)
    model = Run.open(run).model(where)
    recipe, voters = model.recipe, model.method.voters
    require(recipe.training.validation > 0, f"{run} held out no images: train with --set training.validation=0.1, say.")
    require(len(voters) > 1, f"Only one voter answers in {run}, so there is nothing to join: choose another method.")
    data = _data_for(model, data_dir)
    _, held_out = divided(recipe, data)
    ways = [asdict(way) for way in compare_weightings(model.method, model.source(held_out.to(where)))]
    if as_json:
        print_json({"run": str(run), "voters": voters, "images": len(held_out), "weightings": ways})
        return
    typer.echo(
        f"{recipe.method} on {printable(data.name)}: weights of votes, and the accuracy on {len(held_out)} validation images"
    )
    print_weightings(voters, ways)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs; several are shown side by side.")],
    out: Annotated[Path | None, option("The page, an .html file; what was there goes.", "report.html in the run")] = None,
    images: Annotated[int, typer.Option(help="How many test images to show on the maps.")] = 1000,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Make one page of runs that opens in any browser, offline: table, curves, maps of the layers, confusion, recipe."""
    out = out or runs[0] / "report.html"
    require(out.suffix.lower() in (".html", ".htm"), f"{out} is no name for a page: call it something.html.")
    require(images >= 1, f"At least one image must be shown, not {images}.")
    check_writable(out)
    plotly_script()
    where = choose_device(device)
    facts = []
    for folder in runs:
        run = Run.open(folder)
        typer.echo(f"looking at {folder} …", err=True)
        facts.append(inspect_run(run, device=where, data_dir=data_dir, points=images))
    write_whole(out, render_page(facts).encode())
    typer.echo(f"written: {out}")


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files of any size, and folders of them.")],
    layers: Layers = None,
    exit_margin: Annotated[
        float | None,
        option("Stop at the first layer with at least this margin (FAUST); see 'evaluate --early-exit'.", "all answer"),
    ] = None,
    reject: Annotated[
        bool, typer.Option("--reject", help="Answer 'unknown' where an image is near no class; see 'faustnet calibrate'.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print lines with commas, for spreadsheets.")] = False,
) -> None:
    """Name the class of image files, with its score and what each layer would have said alone.

    Folders are searched with all folders in them. Files that cannot be read are named, and the rest is predicted; the exit
    code is then 1.
    """
    require(not (as_json and as_csv), "Either JSON or lines with commas: give --json or --csv.")
    early = exit_margin is not None
    require(
        layers is None or not early, "Either some layers answer or the first that is sure: give --layers or --exit-margin."
    )
    require(not (early and reject), "An image that leaves early is not rejected: give --exit-margin or --reject.")
    chosen = _chosen(layers)
    model = model_at(run, choose_device(device))

    def answers(pixels: torch.Tensor) -> Sequence[Prediction | EarlyPrediction]:
        if exit_margin is not None:
            return model.predict_early(pixels, exit_margin)
        return model.predict(pixels, chosen, reject=reject)

    found, failed = predict_files(images, model.image_shape, answers)
    print_predictions(found, [] if early else model.method.voters, as_json=as_json, as_csv=as_csv)
    if failed:
        raise typer.Exit(1)


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Argument(help="The .onnx file; a model card goes beside it, as .md.")],
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a model as one ONNX file, from bytes to classes, and a model card with its figures."""
    finished = Run.open(run)
    check_writable(out)
    made = export_run(finished, out, force=force)
    typer.echo(f"written: {made.path}, {made.size / 1e6:.1f} MB, and {made.card}")
    typer.echo(f"In ONNX Runtime scores differ from PyTorch's by {made.difference:.1g} at most.")


def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this one.", show_default="list them all")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods and their options, or explain one."""
    chosen = [method_named(name)] if name else list(METHODS.values())
    if as_json:
        about = [(m.name, m.summary, issubclass(m, LocalMethod), m.options()) for m in chosen]
        print_json([dict(zip(("name", "summary", "local", "options"), facts, strict=True)) for facts in about])
        return
    rows = [(m.name, m.summary, "\n".join(f"{o} = {json.dumps(v)}" for o, v in m.options().items())) for m in chosen]
    print_table(("method", "what it does", "options, set with --set options.NAME=VALUE"), rows)
    typer.echo(inspect.getdoc(chosen[0]) if name else "Explain one with: faustnet methods NAME")


def datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets that are known by name."""
    folder = data_folder(data_dir)
    if as_json:
        print_json([{"name": name, "about": about} for name, (_, about) in DATASETS.items()])
        return
    rows = [(name, about) for name, (_, about) in DATASETS.items()]
    rows.append(("FOLDER", "your own images: FOLDER/CLASS/*.png, or FOLDER/train/CLASS/… and FOLDER/test/CLASS/…"))
    rows.append(("SHARDS", "your own images in any number: SHARDS/train/x-*.npy and y-*.npy, …; see 'faustnet shards'"))
    rows.append(("FILE.npz", "your own arrays: x_train, y_train, x_test, y_test"))
    print_table(("data set", "about"), rows)
    typer.echo(f"Downloads are kept in {folder}.")


def bench(
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Which to measure: {', '.join(BENCH_PARTS)}.", show_default="all")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write what was measured there, as JSON; what was there goes.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to time each case of steps, scaling and prediction.")] = 10,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Measure the time and memory of training and predicting, side by side with plain PyTorch backprop.

    All parts take a quarter of an hour on two CPU cores. early-exit and training use Fashion-MNIST and CIFAR-10, which are
    downloaded where they are missing.
    """
    for part in parts or []:
        if part not in BENCH_PARTS:
            raise unknown("part of the benchmark", part, BENCH_PARTS)
    if not 0 < seconds < float("inf"):
        raise FaustnetError(f"Each case is timed for some seconds, not {seconds}.")
    if out is not None:
        check_writable(out)
    where = choose_device(device)
    if where.type == "mps":
        raise FaustnetError("The benchmark knows CPUs and CUDA devices: use --device cpu.")

    def save(found: dict[str, Any]) -> None:
        if out is not None:
            write_whole(out, (json.dumps(found, indent=1) + "\n").encode())

    try:
        run_bench(parts or list(BENCH_PARTS), where, seconds, data_dir, typer.echo, save)
    except KeyboardInterrupt:
        typer.echo(f"Stopped; {f'the parts that were complete are in {out}' if out else 'nothing was kept'}.", err=True)
        raise typer.Exit(130) from None


def _data_for(model: Model, data_dir: Path | None, dataset: str | None = None) -> DataSet:
    data = model.read_data(dataset, data_dir)
    for line in data.left_out:
        typer.echo(printable(f"left out: {line}"), err=True)
    return data


def _chosen(layers: str | None) -> list[int] | None:
    return None if layers is None else numbers(layers, "--layers")
