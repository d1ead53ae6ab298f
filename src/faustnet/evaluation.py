"""How good a trained method is: by layer, by set of layers, by class, and at what cost."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from faustnet.methods import Faust, Method, Source
from faustnet.references import margin

CHUNK, CHUNK_ON_GPU = 2000, 10_000  # images scored at once
MOST_VALUES = 2**28  # that they become at once in a layer


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


@dataclass(frozen=True)
class EarlyExit:
    """What it gives and costs to stop at the first layer whose margin reaches a threshold."""

    threshold: float | None  # none: all stay to the end
    accuracy: float
    saved: float  # share of the multiplications
    leaving: list[float]  # share of the images after each layer


def early_exits(method: Faust, images: Source, thresholds: Sequence[float | None] | None = None) -> list[EarlyExit]:
    """For a range of thresholds, from what lets every image leave after the first layer to what keeps all to the end:
    by default those that a tenth, two tenths, … of these images do not reach there."""
    so_far = all_scores(method, images).cpu().cumsum(dim=0)
    layers, labels = len(so_far), images.labels.cpu()
    margins = margin(so_far / torch.arange(1, layers + 1)[:, None, None])  # (layers, n)
    right = so_far.argmax(dim=2) == labels
    if thresholds is None:
        between = margins[0].double().quantile(torch.arange(1, 10, dtype=torch.float64) / 10)
        thresholds = [0.0, *between.tolist(), None]
    cost = torch.tensor(method.multiplications, dtype=torch.float64).cumsum(dim=0)
    found = []
    for threshold in thresholds:
        sure = margins >= (math.inf if threshold is None else threshold)
        sure[-1] = True
        leaves = sure.int().argmax(dim=0)  # the first that is
        accuracy_ = right.gather(0, leaves.unsqueeze(0)).double().mean().item()
        share = torch.bincount(leaves, minlength=layers).double() / len(leaves)
        found.append(EarlyExit(threshold, accuracy_, 1 - (share @ cost / cost[-1]).item(), share.tolist()))
    return found


def evaluate(method: Method, images: Source, layers: Sequence[int] | None = None) -> Evaluation:
    """Predict every image by every voter alone, by the first ones together, and by those in `layers` (all by default)."""
    alone, first, joined = [], [], []
    with evaluating(method):
        for chunk in chunks(images, method):
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


def all_scores(method: Method, images: Source) -> Tensor:
    """Of every image, (voters, n, C)."""
    with evaluating(method):
        return torch.cat([method.scores(images.plain(chunk)) for chunk in chunks(images, method)], dim=1)


def chunks(images: Source, method: Method) -> Sequence[Tensor]:
    """The positions of all images, as many at a time as the device likes and the layers have room for."""
    device = images.labels.device
    most = MOST_VALUES // max(layer.most_values for layer in method.network)
    size = max(1, min(most, CHUNK_ON_GPU if device.type == "cuda" else CHUNK))
    return torch.arange(len(images.labels), device=device).split(size)


def seconds_per_image(method: Method, images: Source) -> float:
    """The time that a prediction takes when many are made at once, after a first time that is not counted."""
    some = images.plain(chunks(images, method)[0])
    with evaluating(method):
        method.predict(some).cpu()  # .cpu() waits for the device
        begin = time.perf_counter()
        method.predict(some).cpu()
        return (time.perf_counter() - begin) / len(some)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()
