"""The command that measures how well a model recognises new classes from a few images."""

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from faustnet.cli.options import AsJson, DataDir, Device, numbers, option, print_json
from faustnet.errors import printable
from faustnet.report.tables import print_table


def few_shot(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or a model file.")],
    dataset: Annotated[
        str,
        typer.Option(
            help="Data set with classes that the model was not trained on, by name or path, for example a folder with one "
            "folder per class. Training and test images are used."
        ),
    ],
    ways: Annotated[str, typer.Option(help="Numbers of classes of an episode, separated by commas.")] = "5,20",
    shots: Annotated[str, typer.Option(help="Numbers of images of each class to learn from, separated by commas.")] = "1,5",
    queries: Annotated[int, typer.Option(help="Images of each class to classify in an episode.")] = 5,
    layers: Annotated[
        str | None, option("Compare images by these layers, for example 1,3.", "all for FAUST, the last for other methods")
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="Classes of an episode: random, or alphabet (of one alphabet, for Omniglot).")
    ] = "random",
    episodes: Annotated[int, typer.Option(help="Number of random episodes of each kind.")] = 1000,
    seed: Annotated[int, typer.Option(help="Random seed of the episodes.")] = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well a model recognises new classes from a few images, without training: N-way K-shot accuracy.

    In each episode, N classes are added from K images each, as by 'faustnet add-classes', and other images of these classes
    are classified among them. Methods other than FAUST compare images by the cosine of the last layer's features. The
    accuracy of raw pixels is given for comparison, except for texts.
    """
    from faustnet.data.findings import noun_of
    from faustnet.runs.few_shot import all_images, measure_task, model_features, pixel_features, with_interval
    from faustnet.runs.folder import model_at
    from faustnet.system.devices import choose_device
    from faustnet.training.few_shot import Task

    pairs = product(numbers(ways, "--ways"), numbers(shots, "--shots"))
    tasks = [Task(n, k, queries, protocol) for n, k in pairs]
    chosen = None if layers is None else numbers(layers, "--layers")
    where = choose_device(device)
    model = model_at(run, where)
    found = model.load_data(dataset, model.recipe.data, data_dir)
    images = all_images(found).to(where)
    compared = {model.recipe.method: model_features(model, images, chosen)}
    if found.tokeniser is None:  # distances of token ids mean nothing
        compared["pixels"] = pixel_features(images)
    rows = [
        {"method": name, **with_interval(measure_task(features, task, images.labels, found.class_names, episodes, seed))}
        for task in tasks
        for name, features in compared.items()
    ]
    about = {"run": str(run), "dataset": found.name, "seed": seed}
    if as_json:
        print_json([{**about, **row} for row in rows])
        return
    noun = noun_of(found)
    typer.echo(f"Accuracy in % on {printable(found.name)}, {len(images)} {noun} of {len(found.class_names)} classes:")
    _print_rows(rows, noun)


def _print_rows(rows: list[dict[str, Any]], noun: str) -> None:
    """Print the accuracy of all layers with its interval, and that of each layer, if there are several."""
    columns = ("accuracy", "95 % interval", "each layer alone")
    lines = [
        (
            f"{row['ways']}-way {row['shots']}-shot",
            row["method"],
            f"{100 * row['mean']:.2f}",
            " to ".join(f"{100 * end:.2f}" for end in row["interval"]),
            " ".join(f"{100 * one:.2f}" for one in row["layer_accuracy"]) if len(row["layers"]) > 1 else "–",
        )
        for row in rows
    ]
    print_table(("task", "method", *columns), lines, numbers=columns)
    typer.echo(f"{rows[0]['episodes']:,} episodes; {rows[0]['queries']} {noun} of each class are classified in each.")
