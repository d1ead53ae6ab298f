"""The command that trains."""

from pathlib import Path
from typing import Annotated, Any

import typer

from faustnet.cli.options import AsJson, DataDir, Device, numbers, option, print_json
from faustnet.data import DATASETS
from faustnet.errors import FaustnetError
from faustnet.runs.folder import RECIPE, Run
from faustnet.runs.recipes import Recipe, kinds_of_recipes, put, read_recipe, recipe_from, set_key
from faustnet.runs.session import Stopped, follow
from faustnet.runs.session import train as train_recipe
from faustnet.runs.tensorboard import watching
from faustnet.system.devices import choose_device
from faustnet.training.distributed import grid_size, here

DEFAULT = Recipe()
WIDTHS = ",".join(map(str, DEFAULT.network.widths))
OWN_DATA = "a folder of class folders or of shards, or an .npz file"


def train(
    dataset: Annotated[
        str | None,
        option(f"{', '.join(DATASETS)}, or your own: {OWN_DATA}.", DEFAULT.dataset, "--dataset", "--data"),
    ] = None,
    method: Annotated[str | None, option("How to train; see 'faustnet methods'.", DEFAULT.method)] = None,
    widths: Annotated[str | None, option("Units of each layer.", WIDTHS)] = None,
    embedding: Annotated[
        int | None,
        option("Size of embeddings, for FAUST and FFCM; 0 for no projection.", DEFAULT.network.embedding),
    ] = None,
    epochs: Annotated[int | None, option("How often every layer sees the training images.", DEFAULT.training.epochs)] = None,
    batch_size: Annotated[int | None, option("Images in a batch.", DEFAULT.training.batch_size)] = None,
    learning_rate: Annotated[
        float | None, option("Of the optimiser, at its highest.", DEFAULT.optimiser.learning_rate)
    ] = None,
    schedule: Annotated[
        str | None,
        option(
            "sequential: all layers on each batch; wavefront: the same, but all layers at once; greedy: one layer after "
            "the other. auto: wavefront on a GPU where the method allows it, or else sequential.",
            DEFAULT.training.schedule,
        ),
    ] = None,
    seed: Annotated[int | None, option("Of everything that is drawn at random.", DEFAULT.seed)] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"A TOML file, or one of {', '.join(kinds_of_recipes())}; options beside it win.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other key of a recipe, e.g. options.scale=0.1."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse your own images if one cannot be read, in place of leaving it out.")
    ] = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, option("The run's folder.", "a new one in runs/")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the unfinished run in --out.")] = False,
    parallel: Annotated[
        str,
        typer.Option(
            help="What ranks that torchrun starts divide among them: data, the rows of a batch; layers; or both, as a grid "
            "such as 2x2. What is learned stays the same."
        ),
    ] = "data",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard too, into 'tensorboard' in the run's folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network and write a run folder: recipe, history, metrics, model."""
    table: dict[str, Any] = read_recipe(recipe) if recipe is not None else {}
    given = {
        "dataset": dataset,
        "method": method,
        "network.widths": numbers(widths, "--widths") if widths is not None else None,
        "network.embedding": embedding,
        "training.epochs": epochs,
        "training.batch_size": batch_size,
        "training.schedule": schedule,
        "optimiser.learning_rate": learning_rate,
        "seed": seed,
        "data.strict": strict or None,
    }
    for key, value in given.items():
        if value is not None:
            put(table, key, value)
    for assignment in set_ or []:
        set_key(table, assignment)
    ranks = here()
    size = grid_size(ranks.broadcast(parallel) if ranks else parallel, ranks.count if ranks else 1)
    if resume and out is None:
        raise FaustnetError("Which run is to be continued? Name its folder with --out.")

    def chosen() -> tuple[Recipe, Path, bool]:
        begun = ranks.begun if ranks else None  # before torchrun started this again
        there = Path(begun) if begun else out
        continued = resume or bool(begun and (Path(begun) / RECIPE).exists())
        whole = recipe_from(table, Run.open(there).recipe if continued and there else None)
        return whole, there or _free_folder(f"{Path(whole.dataset).stem}-{whole.method}"), continued

    whole, folder, resume = ranks.from_first(chosen) if ranks else chosen()
    where = choose_device(device)
    grid = ranks.grid(*size, where) if ranks else None
    try:
        if grid and not grid.is_first:
            return follow(whole, grid, data_dir=data_dir)
        run = train_recipe(
            whole,
            folder,
            device=grid.device if grid else where,
            progress=watching(folder, tensorboard),
            data_dir=data_dir,
            resume=resume,
            communicator=grid,
        )
    except Stopped:
        typer.echo(f"Stopped; all that was done is kept. Continue with: faustnet train --resume --out {folder}", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json({"run": str(folder), **run.metrics})
        return
    metrics = run.metrics
    typer.echo(
        f"test accuracy {metrics['test_accuracy']:.2%} after {metrics['train_seconds']:.1f} s of training, in {folder}"
    )


def _free_folder(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, … that is not taken."""
    number = 1
    while (folder := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder
