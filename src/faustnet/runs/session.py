"""Train a recipe into a run folder, in one process or in several ranks."""

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from faustnet.data import DataSet, Images, ImageSource, absolute_name, load_data
from faustnet.errors import FaustnetError
from faustnet.nn.warm_up import starting
from faustnet.runs.confusion import stored_matrix
from faustnet.runs.continuation import check_schedule
from faustnet.runs.cost import with_cost
from faustnet.runs.folder import METRICS, MODEL, START, Run
from faustnet.runs.model import Model
from faustnet.runs.own import OwnMethod
from faustnet.runs.recipes import Recipe, check_data_effects, differences
from faustnet.runs.start import started, starting_model
from faustnet.system.locks import check_unlocked, folder_lock
from faustnet.training.distributed import Communicator, RankGrid, SingleProcess, current_ranks
from faustnet.training.history import Epoch
from faustnet.training.loop import Diverged, TrainingLoop
from faustnet.training.signals import stopped_by_signals

SAVE_EVERY = 1.0  # smallest number of seconds between checkpoints; an interrupted run is saved at once
SAVE_SHARE = 0.05  # of the time, at most, is spent on checkpoints if saving takes long


class Stopped(KeyboardInterrupt):
    """The training was interrupted, and its state is saved. A script that does not catch it ends, as after any Ctrl-C."""


class Progress(Protocol):
    """Receives the events of a training."""

    def begin(self, model: Model, data: DataSet, trainer: TrainingLoop) -> None: ...
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
    change_epochs: bool = False,
    data: DataSet | None = None,
    communicator: Communicator | None = None,
) -> Run:
    """Train a recipe into a folder, or continue the run in it, and return the run. Raises Stopped if it was interrupted.

    A run is continued with its own recipe; with `change_epochs`, `training.epochs` may be another one. `data` is the data
    set of the recipe, if it has been read already. Mistakes of the user are found before the folder is created. Of several
    ranks, the first calls this function, and the others call `follow`.
    """
    communicator = communicator or SingleProcess()
    recipe = replace(recipe, dataset=absolute_name(recipe.dataset))
    run = _open_to_resume(folder, recipe, change_epochs) if resume else Run(folder)
    with ExitStack() as locks:
        if communicator.broadcast(_is_finished(run, recipe, resume, locks)):
            return run
        start, copy = starting_model(run, recipe) or (None, b"")
        communicator.broadcast(start)
        with starting(device):
            data = data or _read_data(recipe, data_dir, start)
        if not resume and start is None:  # a recipe that starts from a model has the settings of its texts
            check_data_effects(recipe, data)
        communicator.barrier()  # the other ranks read the data after they were downloaded
        model, trainer = _set_up_equally(recipe, data, device, communicator, start)
        if ranks := current_ranks():
            ranks.set_run_folder(str(folder))
        if resume:
            run.restore(trainer, recipe)
        else:
            run.make_folder()
            locks.enter_context(folder_lock(folder))
            run.begin(recipe)
        run.note_tokeniser(data.tokeniser)
        if copy and not (folder / START).exists():
            run.write(START, copy)
        run.note_environment(device)
        if not communicator.alone:
            communicator.broadcast(trainer.state_on_host())
        progress.begin(model, data, trainer)
        try:
            _train(run, trainer, progress)
        except Stopped:
            communicator.barrier()  # the other ranks end after the state is saved
            raise
        _write_result(run, model, trainer, data.test)
    return run


def _is_finished(run: Run, recipe: Recipe, resume: bool, locks: ExitStack) -> bool:
    """Return whether there is nothing to train. Locks the folder of an unfinished run, and refuses a folder that a new run
    cannot use."""
    if not resume:
        check_unlocked(run.folder)
        run.refuse_existing()
        return False
    changed = recipe.training.epochs != run.recipe.training.epochs
    if run.tidy and not changed:
        return True
    locks.enter_context(folder_lock(run.folder))
    return run.conclude() and not changed


def _train(run: Run, trainer: TrainingLoop, progress: Progress) -> None:
    """Train to the end, and write checkpoints."""
    due = -math.inf  # when the next checkpoint is written

    def on_epoch(epoch: Epoch) -> None:
        nonlocal due
        if (begin := time.monotonic()) >= due:
            run.save(trainer)
            end = time.monotonic()
            due = end + SAVE_EVERY * max(1.0, (end - begin) / SAVE_SHARE)
        progress.epoch(epoch)

    try:
        with stopped_by_signals(trainer):
            complete = trainer.run(progress.batch, on_epoch)
    except Diverged:
        if not run.checkpoints.paths and not run.has_result:
            run.discard()
        raise
    finally:
        progress.end()
    if not complete:
        run.save(trainer)
        raise Stopped(run.folder)


def follow(recipe: Recipe, grid: RankGrid, *, data_dir: Path | None) -> None:
    """Train together with the first rank, from its state, without writing files. Raises Stopped if the training was
    interrupted."""
    recipe = replace(recipe, dataset=absolute_name(recipe.dataset))
    if grid.broadcast(True):  # the run is finished
        return
    start: Model | None = grid.broadcast(None)
    grid.barrier()  # the first rank may have to download the data
    _, trainer = _set_up_equally(recipe, _read_data(recipe, data_dir, start), grid.device, grid, start)
    trainer.restore(*grid.broadcast(trainer.state_on_host()))
    with stopped_by_signals(trainer):
        complete = trainer.run(lambda: None, lambda epoch: None)
    if not complete:
        grid.barrier()  # until the first rank has saved the state
        raise Stopped


def _read_data(recipe: Recipe, data_dir: Path | None, start: Model | None) -> DataSet:
    """Read the data of a recipe. Images in a folder are resized to those of the model that the training starts from."""
    settings = recipe.data
    if start is not None:
        return start.load_data(recipe.dataset, settings, data_dir)
    strict, stream, text = settings.strict, settings.stream, settings.text
    return load_data(recipe.dataset, data_dir, settings.image_size, strict=strict, stream=stream, text=text)


def _set_up_equally(
    recipe: Recipe, data: DataSet, device: torch.device, communicator: Communicator, start: Model | None
) -> tuple[Model, TrainingLoop]:
    """Set up, and check that all ranks have the same data."""
    found = set_up(recipe, data, device, communicator, start)
    if not communicator.alone:
        digest = repr((data.class_names, data.train.digest(), data.test.digest()))
        communicator.require_equal(digest, "data set")
    return found


def set_up(
    recipe: Recipe,
    data: DataSet,
    device: torch.device,
    communicator: Communicator | None = None,
    start: Model | None = None,
    own: OwnMethod | None = None,
) -> tuple[Model, TrainingLoop]:
    """Return an untrained model, or one with the weights of `start`, and a trainer for it. `own` builds the method, if the
    recipe does not describe it."""
    images, held_out = validation_split(recipe, data)
    recipe.data.augmentation.check(images.shape)
    images = images.to(device)
    model = Model.fresh(recipe, images, data.class_names, data.tokeniser, own, data.columns)
    if start is not None:
        model = started(model, start)
    model = model.to(device)
    source = ImageSource(images, model.scaling, data.class_names, recipe.data.augmentation)
    evaluated = model.source(held_out.to(device))
    settings = recipe.training, recipe.optimiser, recipe.seed
    trainer = TrainingLoop(model.method, source, evaluated, *settings, communicator)
    trainer.diagnosis.from_trained = start is not None
    return model, trainer


def validation_split(recipe: Recipe, data: DataSet) -> tuple[Images, Images]:
    """Return the images to train on, and those to evaluate on during training: the data set's own validation part or a
    validation split, or the test images."""
    share = recipe.training.validation
    if share and data.validation is not None:
        return data.train, data.validation
    return data.train.split(share, seed=0) if share else (data.train, data.test)


def held_out_images(model: Model, dataset: str | None, data_dir: Path | None) -> DataSet:
    """Return images of the model's classes that it was not trained on, as the test images of a data set: the test images of
    another data set, or the validation images of its training."""
    found = model.load_data(dataset or model.recipe.dataset, model.recipe.data, data_dir)
    images = found.test if dataset else validation_split(model.recipe, found)[1]  # before any class is left out
    return model.checked_data(replace(found, test=images, paths=None))


def _open_to_resume(folder: Path, recipe: Recipe, change_epochs: bool) -> Run:
    run = Run.open(folder)
    for key, (begun, asked) in differences(run.recipe, recipe).items():
        if change_epochs and key == "training.epochs":
            check_schedule(recipe)
            continue
        raise FaustnetError(
            f"{key} must be {begun!r} to resume {folder}, got {asked!r}: use the recipe of the run, or start a new run."
        )
    return run


def _write_result(run: Run, model: Model, trainer: TrainingLoop, test: Images) -> None:
    """Write the history, the model and its metrics on the test images, and remove the checkpoints."""
    if trainer.evaluation is not None and not model.recipe.training.validation:  # of the test images, after the last epoch
        result = with_cost(model, trainer.evaluation, model.source(test.to(trainer.device)))
    else:
        result = model.measure(test.to(trainer.device))
    history = trainer.history
    metrics = {
        "test_accuracy": result.pop("accuracy"),
        "validation_accuracy": history[-1].accuracy if model.recipe.training.validation else None,
        **result,
        "confusion": stored_matrix(result["confusion"]),
        "schedule": trainer.schedule.name,
        "epochs": len(history),
        "train_seconds": sum(epoch.seconds for epoch in history),
        "parameters": sum(parameter.numel() for parameter in model.method.parameters()),
        "trunk_parameters": sum(parameter.numel() for layer in model.method.network for parameter in layer.body_parameters),
    }
    if run.epoch_changes:
        metrics["epoch_changes"] = run.epoch_changes
    run.write_history(trainer)
    run.write(MODEL, model.to_bytes())
    run.write_json(METRICS, metrics)
    run.checkpoints.remove()
