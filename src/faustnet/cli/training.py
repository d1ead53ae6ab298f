"""`faustnet train`."""

from pathlib import Path
from typing import Annotated

import typer

from faustnet.cli.defaults import DATASETS, RECIPE, RECIPES
from faustnet.cli.options import AsJson, DataDir, Device, numbers, option, print_json
from faustnet.errors import require

OWN_DATA = "a folder with one folder per class, a folder of shards, an .npz file, or a .tsv, .csv or .jsonl file of texts"
WIDTHS = ",".join(map(str, RECIPE["network.widths"]))


def train(
    dataset: Annotated[
        str | None,
        option(f"Data set: {', '.join(DATASETS)}, or the path of your own data: {OWN_DATA}.", RECIPE["dataset"]),
    ] = None,
    method: Annotated[str | None, option("Training method; 'faustnet methods' lists them.", RECIPE["method"])] = None,
    widths: Annotated[str | None, option("Number of units of each layer, separated by commas.", WIDTHS)] = None,
    embedding: Annotated[
        int | None,
        option("Size of the embeddings, for FAUST and FFCM; 0 for no projection.", RECIPE["network.embedding"]),
    ] = None,
    epochs: Annotated[int | None, option("Number of epochs.", RECIPE["training.epochs"])] = None,
    batch_size: Annotated[int | None, option("Images per batch.", RECIPE["training.batch_size"])] = None,
    learning_rate: Annotated[float | None, option("Peak learning rate.", RECIPE["optimiser.learning_rate"])] = None,
    schedule: Annotated[
        str | None,
        option(
            "Order in which layers process batches. sequential: all layers on one batch, then all layers on the next; "
            "wavefront: all layers at the same time, each on a different batch; greedy: the first layer for all epochs, "
            "then the second, and so on; auto: wavefront on a GPU if the method supports it, otherwise sequential.",
            RECIPE["training.schedule"],
        ),
    ] = None,
    seed: Annotated[int | None, option("Random seed.", RECIPE["seed"])] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help=f"Recipe: a TOML file, or one of {', '.join(RECIPES)}. Other options override it."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the recipe, for example options.scale=0.1."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Stop at an image that cannot be read or is in no class folder, instead of skipping it."
        ),
    ] = False,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start from the weights of a trained model: a run folder or a model file. Its data set, method and network "
            "are the defaults.",
        ),
    ] = None,
    train_layers: Annotated[
        str | None, option("With --from, layers to train, for example 2,3; the others are frozen.", "all")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, option("Run folder.", "a new folder in runs/")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; a finished run, if --epochs is raised.")
    ] = False,
    parallel: Annotated[
        str,
        typer.Option(
            help="How the processes (ranks) of torchrun share the work: data (each has a part of every batch), layers (each "
            "has some of the layers), or a grid of both such as 2x2. The result is the same in each case."
        ),
    ] = "data",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard files, into the folder 'tensorboard' of the run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network and write a run folder: recipe, history, metrics and model."""
    require(not resume or out is not None, "--resume needs the folder of the run: add --out FOLDER.")
    options = {
        "dataset": dataset,
        "method": method,
        "network.widths": None if widths is None else numbers(widths, "--widths"),
        "network.embedding": embedding,
        "training.epochs": epochs,
        "training.batch_size": batch_size,
        "training.schedule": schedule,
        "optimiser.learning_rate": learning_rate,
        "seed": seed,
        "data.strict": strict or None,
        "start.model": None if from_ is None else str(from_.resolve()),
        "start.train_layers": _layers(train_layers),
    }
    from faustnet.cli.launch import launch, recipe_table, stated_table

    run = launch(
        recipe_table(recipe, options, set_ or []),
        out,
        stated=stated_table(recipe, options, set_ or []),
        resume=resume,
        device=device,
        data_dir=data_dir,
        parallel=parallel,
        with_tensorboard=tensorboard,
    )
    if run is None:  # on all ranks but the first
        return
    metrics = run.metrics
    if as_json:
        print_json({"run": str(run.folder), **metrics})
        return
    typer.echo(
        f"test accuracy {metrics['test_accuracy']:.2%} after {metrics['train_seconds']:.1f} s of training, in {run.folder}"
    )


def _layers(text: str | None) -> list[int] | None:
    return None if text is None else [] if text == "all" else numbers(text, "--train-layers")
