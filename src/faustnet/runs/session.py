"""Training a recipe into a run folder, by one process or by several ranks."""

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from faustnet.data import DataSet, Images, ImageSource, absolute_name, load_data
from faustnet.errors import FaustnetError
from faustnet.runs.folder import METRICS, MODEL, Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, differences
from faustnet.system.locks import check_unlocked, folder_lock
from faustnet.training.distributed import Communicator, RankGrid, SingleProcess, current_ranks
from faustnet.training.history import Epoch
from faustnet.training.signals import stopped_by_signals
from faustnet.training.trainer import Diverged, Trainer

SAVE_EVERY = 1.0  # seconds at least, so that short epochs are not spent on writing; a stopped run is saved at once
DATA = "data set"


class Stopped(KeyboardInterrupt):
    """A training was interrupted, and its state is saved; like any interrupt, it ends what it is not caught by."""


class Progress(Protocol):
    """Somebody who watches a training."""

    def begin(self, model: Model, data: DataSet, trainer: Trainer) -> None: ...
    def batch(self) -> None: ...
    def epoch(self, epoch: Epoch) -> None: ...
    def end(self) -> None: ...


def train(
    recipe: Recipe,
    folder: Path,
    *,
    device: torch.device,
    progress: Progress,
    data_dir: Path | None = None,
    resume: bool = False,
    data: DataSet | None = None,
    communicator: Communicator | None = None,
) -> Run:
    """Train a recipe into a folder, or continue the run that is there, on the recipe's data set, which may have been read
    already. Everything that a user may have got wrong is found out before the folder is made. Raises Stopped when it was
    interrupted. With several ranks this is what the first one does, and the others `follow`."""
    communicator = communicator or SingleProcess()
    recipe = replace(recipe, dataset=absolute_name(recipe.dataset))
    run = _open_to_resume(folder, recipe) if resume else Run(folder)
    with ExitStack() as held:
        finished = resume and run.tidy
        if resume and not finished:
            held.enter_context(folder_lock(folder))
            finished = run.conclude()
        elif not resume:
            check_unlocked(folder)
            run.refuse_existing()
        communicator.broadcast(finished)
        if finished:
            return run
        data = data or data_of(recipe, data_dir)
        communicator.barrier()  # the others read the data when they have been downloaded
        model, trainer = set_up(recipe, data, device, communicator)
        communicator.require_equal(digest(data) if not communicator.alone else "", DATA)
        if ranks := current_ranks():
            ranks.set_run_folder(str(folder))
        if resume:
            run.restore(trainer)
        else:
            run.make_folder()
            held.enter_context(folder_lock(folder))
            run.begin(recipe)
        run.note_environment(device)
        if not communicator.alone:
            communicator.broadcast(trainer.state_on_host())
        progress.begin(model, data, trainer)
        try:
            _train(run, trainer, progress)
        except Stopped:
            communicator.barrier()  # the others may end when all is saved
            raise
        _write_result(run, model, trainer, data.test)
    return run


def _train(run: Run, trainer: Trainer, progress: Progress) -> None:
    """To the end, keeping the state from time to time."""
    saved = -math.inf

    def on_epoch(epoch: Epoch) -> None:
        nonlocal saved
        if time.monotonic() - saved >= SAVE_EVERY:
            run.save(trainer)
            saved = time.monotonic()
        progress.epoch(epoch)

    try:
        with stopped_by_signals(trainer):
            complete = trainer.run(progress.batch, on_epoch)
    except Diverged:
        if not run.checkpoints.paths:
            run.discard()
        raise
    finally:
        progress.end()
    if not complete:
        run.save(trainer)
        raise Stopped(run.folder)


def data_of(recipe: Recipe, data_dir: Path | None) -> DataSet:
    """What a recipe is trained and tested on."""
    how = recipe.data
    return load_data(recipe.dataset, data_dir, how.image_size, strict=how.strict, stream=how.stream)


def follow(recipe: Recipe, grid: RankGrid, *, data_dir: Path | None) -> None:
    """Train what the first rank trains, as another one: with no folder, and from the first one's state. Raises Stopped when
    all were interrupted."""
    recipe = replace(recipe, dataset=absolute_name(recipe.dataset))
    if grid.broadcast(True):  # the run was finished before
        return
    grid.barrier()  # the first rank may have to download the data
    data = data_of(recipe, data_dir)
    _, trainer = set_up(recipe, data, grid.device, grid)
    grid.require_equal(digest(data), DATA)
    trainer.restore(*grid.broadcast(trainer.state_on_host()))
    with stopped_by_signals(trainer):
        complete = trainer.run(lambda: None, lambda epoch: None)
    if not complete:
        grid.barrier()  # the first rank has saved the state
        raise Stopped


def set_up(
    recipe: Recipe, data: DataSet, device: torch.device, communicator: Communicator | None = None
) -> tuple[Model, Trainer]:
    """An untrained model, and the trainer that will train it on the training images or all but a validation split."""
    images, held_out = divided(recipe, data)
    recipe.data.augmentation.check(images.shape)
    images = images.to(device)
    model = Model.fresh(recipe, images, data.class_names).to(device)
    source = ImageSource(images, model.scaling, data.class_names, recipe.data.augmentation)
    measured = model.source(held_out.to(device))
    settings = recipe.training, recipe.optimiser, recipe.seed
    return model, Trainer(model.method, source, measured, *settings, communicator)


def divided(recipe: Recipe, data: DataSet) -> tuple[Images, Images]:
    """The images that a recipe trains on, and those it is measured on meanwhile: a validation split, or the test images."""
    share = recipe.training.validation
    return data.train.split(share, seed=0) if share else (data.train, data.test)


def digest(data: DataSet) -> str:
    """Another one if the classes or the images are others."""
    return repr((data.class_names, data.train.digest(), data.test.digest()))


def _open_to_resume(folder: Path, recipe: Recipe) -> Run:
    run = Run.open(folder)
    for key, (begun, asked) in differences(run.recipe, recipe).items():
        raise FaustnetError(
            f"{folder} was begun with another {key}, {begun!r} and not {asked!r}: leave it as it was, or start a new run."
        )
    return run


def _write_result(run: Run, model: Model, trainer: Trainer, test: Images) -> None:
    """The model, what it is worth on the test images, and nothing that was needed only to get there."""
    result = model.measure(test.to(trainer.device))
    history = trainer.history
    metrics = {
        "test_accuracy": result.pop("accuracy"),
        "validation_accuracy": history[-1].accuracy if model.recipe.training.validation else None,
        **result,
        "schedule": trainer.schedule.name,
        "epochs": len(history),
        "train_seconds": sum(epoch.seconds for epoch in history),
        "parameters": sum(parameter.numel() for parameter in model.method.parameters()),
        "trunk_parameters": sum(parameter.numel() for layer in model.method.network for parameter in layer.body_parameters),
    }
    run.write_history(trainer)
    run.write(MODEL, model.to_bytes())
    run.write_json(METRICS, metrics)
    run.checkpoints.remove()
