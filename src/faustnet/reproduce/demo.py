"""The trainings and measurements behind `faustnet demo`: everything on the digits of scikit-learn, on the CPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from faustnet.data import DataSet
from faustnet.reproduce.jobs import Table1Job, table1_jobs
from faustnet.reproduce.new_classes import NewClassJob, new_old_all_accuracy
from faustnet.reproduce.worker import StoppableProgress, cached_data, train_or_resume
from faustnet.reproduce.workers import Workers
from faustnet.runs.folder import Run
from faustnet.runs.recipes import Recipe, changed
from faustnet.system.files import write_whole

DATASET, NETWORK, SEEDS, EPOCHS = "digits", "3x500", 2, 30
FAUST, BACKPROP, FORWARD_FORWARD = "faust-representative", "backprop", "forward-forward"
COMPARED = (BACKPROP, FORWARD_FORWARD, "symba", "ffcm", "collaborative-ff", FAUST)
LEFT_OUT = 9  # class that is added without training
EXAMPLES = 10  # images that it is added from
LARGEST_POOL = 4  # runs at the same time
CPU = torch.device("cpu")


def table_jobs() -> list[Table1Job]:
    """Return the runs of the table: one method of each family, so that the demo takes less than two minutes."""
    return table1_jobs(["tuned"], list(COMPARED), [DATASET], [NETWORK], SEEDS)


def table_workers() -> Workers:
    return Workers("cpu", jobs=max(1, min(LARGEST_POOL, torch.get_num_threads())))


def digits() -> DataSet:
    return cached_data(DATASET, None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block: networks this small gain little from several, and on a busy machine threads
    that wait for each other take many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kept_run(method: str, folder: Path) -> Run:
    """Train the first run of a method in the table again, into a folder, and evaluate it after every epoch."""
    recipe = Table1Job("tuned", method, DATASET, NETWORK, 0).recipe
    return _trained(changed(recipe, {"training.evaluate_every": 1}), folder)


def _trained(recipe: Recipe, folder: Path) -> Run:
    return train_or_resume(recipe, folder, CPU, cached_data(recipe.dataset, None), StoppableProgress())


@dataclass(frozen=True)
class Answers:
    """A test image, its class, and the classes that the layers and all layers together predict."""

    pixels: Tensor  # (8, 8)
    label: str
    votes: list[str]
    together: str


def layer_answers(run: Run) -> list[Answers]:
    """Return the answers for the first two test images, and for the first on which the layers differ, if there is one."""
    model, test = run.model(), digits().test
    predictions = model.predict(test.all_pixels)
    differ = [number for number, prediction in enumerate(predictions) if len(set(prediction.votes)) > 1]
    return [
        Answers(
            test.all_pixels[number, 0],
            model.class_names[int(test.labels[number])],
            predictions[number].votes,
            predictions[number].class_name,
        )
        for number in dict.fromkeys([0, 1, *differ[:1]])
    ]


@dataclass(frozen=True)
class NewClass:
    """Result of adding a class: test images of it that are recognised, and accuracy on the other classes."""

    images: int
    recognised: int
    others_before: float
    others_after: float
    seconds: float


def write_new_class(out: Path) -> None:
    """Write the digits without one class as OUT/digits-0-8.npz, and examples of that class as OUT/nines/*.png."""
    data = NewClassJob(DATASET, LEFT_OUT, 1, 0).data(lambda name: cached_data(name, None))
    train, test = data.train, data.test
    x_train, x_test = (images.all_pixels[:, 0].numpy() for images in (train, test))
    np.savez(
        out / "digits-0-8.npz", x_train=x_train, y_train=train.labels.numpy(), x_test=x_test, y_test=test.labels.numpy()
    )
    folder = out / "nines"
    folder.mkdir(exist_ok=True)
    images = digits().train
    for number, pixels in enumerate(images.all_pixels[images.labels == LEFT_OUT][:EXAMPLES]):
        Image.fromarray(pixels[0].numpy()).save(folder / f"{number}.png")


def without_class(out: Path) -> Run:
    """Train on the digits without one class, as `faustnet reproduce new-classes` does."""
    recipe = NewClassJob(DATASET, LEFT_OUT, 1, 0).recipe
    changes = {"training.epochs": EPOCHS, "training.evaluate_every": EPOCHS}
    return _trained(changed(recipe, {**changes, "dataset": str((out / "digits-0-8.npz").resolve())}), out / "nine")


def with_class(run: Run, out: Path) -> NewClass:
    """Add the class from the image files, write the model as OUT/ten.safetensors, and measure it."""
    model, data = run.model(), digits()
    begin = time.perf_counter()
    larger = model.add_class(str(LEFT_OUT), sorted((out / "nines").glob("*.png")))
    seconds = time.perf_counter() - begin
    write_whole(out / "ten.safetensors", larger.to_bytes())
    new, old, _ = new_old_all_accuracy(larger, data)
    images = int((data.test.labels == LEFT_OUT).sum())
    return NewClass(images, round(new * images), run.metrics["test_accuracy"], old, seconds)
