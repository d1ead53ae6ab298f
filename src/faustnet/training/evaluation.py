"""How good a trained method is: by layer, by set of layers, by class, and at what cost."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.methods import Faust, Method, Source
from faustnet.nn.references import margin

CHUNK, CHUNK_ON_GPU = 2000, 10_000  # images scored at once
MOST_VALUES = 2**28  # that they become at once in a layer
TIMED = 3  # predictions
ITERATIONS = 100  # to fit weights of votes
ROUNDING = 1e-9  # (1 − 0.9) · 10 is a little less than 1


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
    by default those that a tenth, two tenths, … of these images do not reach there. The first layer is the first one whose
    vote counts."""
    so_far = method.weighted(all_scores(method, images).cpu()).cumsum(dim=0)
    layers, labels = len(so_far), images.labels.cpu()
    counted = so_far.new_tensor(list(accumulate(method.weights)))
    margins = margin(so_far / counted[:, None, None])  # (layers, n); none, NaN, where no vote has counted
    right = so_far.argmax(dim=2) == labels
    if thresholds is None:
        first = next(number for number, weight in enumerate(method.weights) if weight)
        between = margins[first].double().quantile(torch.arange(1, 10, dtype=torch.float64) / 10)
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
    """Predict every image by every voter alone, by the first ones together, and by those in `layers` (by default
    all, each by its weight)."""
    alone, first, joined = [], [], []
    with evaluating(method):
        for chunk in chunks(images, method):
            scores = method.votes(images.plain(chunk))
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
        forward_passes=method.forward_passes * (2 if method.prediction.mirror else 1),
    )


def all_scores(method: Method, images: Source) -> Tensor:
    """The votes on every image, (voters, n, C)."""
    with evaluating(method):
        return torch.cat([method.votes(images.plain(chunk)) for chunk in chunks(images, method)], dim=1)


def all_embeddings(method: Method, images: Source) -> list[Tensor]:
    """Each layer's embedding of every image, without a label, (n, e_i)."""
    with evaluating(method):
        rows = (method.unlabelled(images.plain(chunk)) for chunk in chunks(images, method))
        walks = [list(method.network.embeddings(some)) for some in rows]
    return [torch.cat(parts) for parts in zip(*walks, strict=True)]


@dataclass(frozen=True)
class Weighting:
    """One way to join the votes, and how good it is."""

    name: str
    weights: list[float]  # one for each voter
    accuracy: float


def compare_weightings(method: Method, images: Source) -> list[Weighting]:
    """What the votes on these images give when all layers count alike, the last ones only, and by weights that are fitted
    to these very images."""
    scores, labels = all_scores(method, images).cpu().double(), images.labels.cpu()
    count = len(scores)
    ways = {"all layers": [1.0] * count}
    for last in range(1, count):
        ways["last layer" if last == 1 else f"last {last} layers"] = [0.0] * (count - last) + [1.0] * last
    ways["fitted"] = fitted_weights(scores, labels)
    found = []
    for name, weights in ways.items():
        joined = (scores * scores.new_tensor(weights)[:, None, None]).sum(dim=0)
        found.append(Weighting(name, weights, accuracy(joined.argmax(dim=1), labels)))
    return found


@torch.enable_grad()
def fitted_weights(scores: Tensor, labels: Tensor) -> list[float]:
    """Weights of votes under which the softmax of their sum gives the labels the largest likelihood, the largest of them
    set to 1, to two decimals. (voters, n, C), (n,)

    A weight is a square, so that it is not negative, and is found by L-BFGS in units of how much a voter's scores vary. One
    that finds all classes alike has no weight.
    """
    scores = scores.double()
    scores = scores - scores.mean(dim=2, keepdim=True)
    tiny = torch.finfo(scores.dtype).tiny
    size = scores.square().mean(dim=(1, 2)).sqrt()
    unit = scores / size.clamp_min(tiny)[:, None, None]
    root = (size > 0).double().requires_grad_()
    optimiser = torch.optim.LBFGS([root], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = functional.cross_entropy((unit * root.square()[:, None, None]).sum(dim=0), labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    weights = root.detach().square() / size.clamp_min(tiny)
    return [round(weight, 2) for weight in (weights / weights.max().clamp_min(tiny)).tolist()]


def auroc(known: Tensor, strange: Tensor) -> float:
    """How well a score tells two sets apart: the share of pairs in which the known one's is larger, where equal ones count
    half. (n,), (m,)"""
    strange = strange.sort().values
    below, up_to = (torch.searchsorted(strange, known, right=right).double().mean() for right in (False, True))
    return ((below + up_to) / (2 * len(strange))).item()


def threshold_accepting(scores: Tensor, accept: float) -> float:
    """That all but a share of 1 − `accept` of these scores reach. (n,)"""
    left_out = math.floor((1 - accept) * len(scores) + ROUNDING)
    return scores.sort().values[left_out].item()


def chunks(images: Source, method: Method) -> Sequence[Tensor]:
    """The positions of all images, as many at a time as the device likes and the layers have room for."""
    device = images.labels.device
    most = MOST_VALUES // max(layer.peak_values for layer in method.network)
    size = max(1, min(most, CHUNK_ON_GPU if device.type == "cuda" else CHUNK))
    return torch.arange(len(images.labels), device=device).split(size)


def seconds_per_image(method: Method, images: Source) -> float:
    """The time that a prediction takes when many are made at once: the median of a few times, after one that is not
    counted."""
    some = images.plain(chunks(images, method)[0])
    times = []
    with evaluating(method):
        for _ in range(TIMED + 1):
            begin = time.perf_counter()
            method.predict(some).cpu()  # .cpu() waits for the device
            times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]) / len(some)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()
