"""Start a training from the options of `faustnet train`, in one process or as one of several ranks."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from faustnet.errors import require
from faustnet.runs.folder import RECIPE, Run
from faustnet.runs.recipes import Recipe, is_shipped, put, read_recipe, recipe_from, set_key, states_all
from faustnet.runs.session import Stopped, follow
from faustnet.runs.session import train as train_recipe
from faustnet.runs.start import complete_recipe
from faustnet.runs.tensorboard import make_progress
from faustnet.system.devices import choose_device
from faustnet.training.distributed import Ranks, current_ranks, grid_size


def recipe_table(recipe: str | None, options: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the tables of a recipe with the options that are not None, and then the assignments KEY=VALUE, applied."""
    table = read_recipe(recipe) if recipe is not None else {}
    for key, value in options.items():
        if value is not None:
            put(table, key, value)
    for assignment in assignments:
        set_key(table, assignment)
    return table


def stated_table(recipe: str | None, options: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the part of `recipe_table` that the user has set. It contains no recipe that comes with the package, where a
    baseline has the keys of the method that it is compared with, and no recipe of an earlier run."""
    is_record = recipe is not None and (is_shipped(recipe) or states_all(read_recipe(recipe)))
    return recipe_table(None if is_record else recipe, options, assignments)


def launch(
    table: Mapping[str, Any],
    out: Path | None,
    *,
    stated: Mapping[str, Any],
    resume: bool,
    device: str,
    data_dir: Path | None,
    parallel: str,
    with_tensorboard: bool,
) -> Run | None:
    """Train, and return the finished run; None on all ranks but the first. `stated` is the part of the table that the user
    has set, where keys without effect are refused."""
    ranks = current_ranks()
    require(
        parallel != "layers" or "WORLD_SIZE" in os.environ,  # which torchrun sets, even if it starts one process only
        "--parallel layers has no effect on one process: start several with torchrun, or leave it out.",
    )
    size = grid_size(ranks.broadcast(parallel) if ranks else parallel, ranks.count if ranks else 1)
    choose = partial(_recipe_and_folder, table, stated, out, resume, ranks)
    recipe, folder, resume = ranks.from_first(choose) if ranks else choose()
    where = choose_device(device)
    grid = ranks.grid(*size, where) if ranks else None
    try:
        if grid and not grid.is_first:
            follow(recipe, grid, data_dir=data_dir)
            return None
        return train_recipe(
            recipe,
            folder,
            device=grid.device if grid else where,
            progress=make_progress(folder, with_tensorboard),
            data_dir=data_dir,
            resume=resume,
            change_epochs=True,
            communicator=grid,
        )
    except Stopped:
        typer.echo(f"Stopped. The run is saved; continue it with: faustnet train --resume --out {folder}", err=True)
        raise typer.Exit(130) from None


def _recipe_and_folder(
    table: Mapping[str, Any], stated: Mapping[str, Any], out: Path | None, resume: bool, ranks: Ranks | None
) -> tuple[Recipe, Path, bool]:
    """Complete the recipe, choose the folder and whether to resume. Ranks that torchrun has restarted resume their run."""
    begun = ranks.run_folder if ranks else None
    folder = Path(begun) if begun else out
    resume = resume or bool(begun and (Path(begun) / RECIPE).exists())
    begin = partial(complete_recipe, table, stated=stated)
    recipe = recipe_from(table, Run.open(folder).recipe) if resume and folder else begin()
    return recipe, folder or _free_folder(f"{Path(recipe.dataset).stem}-{recipe.method}"), resume


def _free_folder(name: str) -> Path:
    """Return runs/NAME, or the first of runs/NAME-2, runs/NAME-3, … that does not exist."""
    number = 1
    while (folder := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder
