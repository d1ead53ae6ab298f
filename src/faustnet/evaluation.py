"""How good a trained method is: by layer, by set of layers, by class, and at what cost."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from faustnet.methods import Method, Source

CHUNK = 2000  # images scored at once


@dataclass(frozen=True)
class Evaluation:
    accuracy: float  # of all voters, or of the set that was asked for
    layer_accuracy: list[float]  # of each voter alone
    first_layers_accuracy: list[float]  # of {1}, {1, 2}, … together
    confusion: list[list[int]]  # row: true class; column: predicted
    forward_passes: int  # for one prediction


@contextmanager
def evaluating(method: Method) -> Iterator[None]:
    """Dropout off and no graphs, until the end of the block."""
    training = method.training
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        method.train(training)


def evaluate(method: Method, images: Source, layers: Sequence[int] | None = None) -> Evaluation:
    """Predict every image by every voter alone, by the first ones together, and by those in `layers` (all by default)."""
    alone, first, joined = [], [], []
    everything = torch.arange(len(images.labels), device=images.labels.device)
    with evaluating(method):
        for chunk in everything.split(CHUNK):
            scores = method.scores(images.plain(chunk))
            alone.append(scores.argmax(dim=2))
            first.append(scores.cumsum(dim=0).argmax(dim=2))
            joined.append(method.joined(scores, layers).argmax(dim=1))
    predicted = torch.cat(joined).cpu()
    labels = images.labels.cpu()
    counts = torch.bincount(labels * method.classes + predicted, minlength=method.classes**2)
    return Evaluation(
        accuracy=accuracy(predicted, labels),
        layer_accuracy=[accuracy(voter, labels) for voter in torch.cat(alone, dim=1).cpu()],
        first_layers_accuracy=[accuracy(voters, labels) for voters in torch.cat(first, dim=1).cpu()],
        confusion=counts.view(method.classes, method.classes).tolist(),
        forward_passes=method.forward_passes,
    )


def seconds_per_image(method: Method, images: Source) -> float:
    """The time that a prediction takes when many are made at once, after a first time that is not counted."""
    some = images.plain(torch.arange(min(CHUNK, len(images.labels)), device=images.labels.device))
    with evaluating(method):
        method.predict(some).cpu()  # .cpu() waits for the device
        begin = time.perf_counter()
        method.predict(some).cpu()
        return (time.perf_counter() - begin) / len(some)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()
