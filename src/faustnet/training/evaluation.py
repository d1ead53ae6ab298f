"""Evaluation of a trained method: accuracy by layer, by set of layers and by class, early exit, and time."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.methods import Faust, Method, Source, evaluating
from faustnet.nn.references import score_margin
from faustnet.nn.search import Decisions

MAX_SCORES = 2**22  # of images that are scored at once, by one voter, at most
FEWEST, MOST = 2, 5  # predictions that are timed: few if they take
TIMED_SECONDS = 0.1  # together, because other work on the machine changes long times less
LBFGS_ITERATIONS = 100
ROUNDING = 1e-9  # because (1 − 0.9) · 10 is slightly less than 1


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a method on a data set."""

    accuracy: float  # of all voters, by their weights, or of the selected ones
    layer_accuracy: list[float]  # of each voter alone
    first_layers_accuracy: list[float]  # of voters {1}, {1, 2}, … together
    confusion: list[list[int]]  # rows: true classes; columns: predicted classes
    forward_passes: int  # per prediction


@dataclass(frozen=True)
class EarlyExit:
    """Accuracy and cost if images exit after the first layer whose margin reaches a threshold.

    The margin is the difference between the scores of the best and the second-best class.
    """

    threshold: float | None  # None: no early exit
    accuracy: float
    saved: float  # fraction of the multiplications that are saved
    leaving: list[float]  # fraction of the images that exit after each layer


@dataclass(frozen=True)
class Answers:
    """Classes that a method predicts for images, on the CPU."""

    labels: Tensor  # true classes, (n,)
    alone: Tensor  # by each voter alone, (voters, n)
    first: Tensor  # by voters {1}, {1, 2}, … with equal weights, (voters, n)
    so_far: Tensor  # by voters {1}, {1, 2}, … by their weights, (voters, n)
    margins: Tensor  # between the best two classes of `so_far`, (voters, n); NaN before the first voter with a weight
    joined: Tensor  # by all voters, by their weights, or by the selected ones, (n,)


def collect_answers(method: Method, images: Source, layers: Sequence[int] | None = None) -> Answers:
    """Predict all images from each voter alone, from the first voters together, and from the voters numbered in `layers`
    from 1 (by default all, by their weights)."""
    alone, first, so_far, margins, joined = [], [], [], [], []
    with evaluating(method):
        for chunk in chunks(images, method):
            scores = method.votes(images.plain(chunk))
            totals = method.weighted(scores).cumsum(dim=0)
            weights = totals.new_tensor(list(accumulate(method.weights)))
            alone.append(scores.argmax(dim=2))
            first.append(scores.cumsum(dim=0).argmax(dim=2))
            so_far.append(totals.argmax(dim=2))
            margins.append(score_margin(totals / weights[:, None, None]))
            joined.append(method.joined(scores, layers).argmax(dim=1))
    return Answers(
        labels=images.labels.cpu(),
        alone=torch.cat(alone, dim=1).cpu(),
        first=torch.cat(first, dim=1).cpu(),
        so_far=torch.cat(so_far, dim=1).cpu(),
        margins=torch.cat(margins, dim=1).cpu(),
        joined=torch.cat(joined).cpu(),
    )


def early_exits(method: Faust, images: Source, thresholds: Sequence[float | None] | None = None) -> list[EarlyExit]:
    """Evaluate early exit at these thresholds.

    By default they are 0, where every image exits after the first layer with non-zero weight; the deciles of the margins
    of these images at that layer; and None, no early exit.
    """
    return early_exits_of(method, collect_answers(method, images), thresholds)


def early_exits_of(method: Faust, answers: Answers, thresholds: Sequence[float | None] | None = None) -> list[EarlyExit]:
    """Evaluate early exit from answers, as `early_exits` does."""
    margins, layers = answers.margins, len(answers.margins)
    correct = answers.so_far == answers.labels
    if thresholds is None:
        first = next(number for number, weight in enumerate(method.weights) if weight)
        between = margins[first].double().quantile(torch.arange(1, 10, dtype=torch.float64) / 10)
        thresholds = [0.0, *between.tolist(), None]
    cost = torch.tensor(method.multiplications, dtype=torch.float64).cumsum(dim=0)
    found = []
    for threshold in thresholds:
        exits = margins >= (math.inf if threshold is None else threshold)
        exits[-1] = True
        last = exits.int().argmax(dim=0)  # the first layer where an image exits
        hits = correct.gather(0, last.unsqueeze(0)).double().mean().item()
        leaving = torch.bincount(last, minlength=layers).double() / len(last)
        found.append(EarlyExit(threshold, hits, 1 - (leaving @ cost / cost[-1]).item(), leaving.tolist()))
    return found


def evaluate(method: Method, images: Source, layers: Sequence[int] | None = None) -> Evaluation:
    """Evaluate each voter alone, the first voters together, and the voters numbered in `layers` from 1 (by default all, by
    their weights)."""
    return evaluation_of(method, collect_answers(method, images, layers))


def evaluation_of(method: Method, answers: Answers) -> Evaluation:
    """Compare answers with the true classes."""
    labels = answers.labels
    counts = torch.bincount(labels * method.classes + answers.joined, minlength=method.classes**2)
    return Evaluation(
        accuracy=accuracy(answers.joined, labels),
        layer_accuracy=[accuracy(voter, labels) for voter in answers.alone],
        first_layers_accuracy=[accuracy(voters, labels) for voters in answers.first],
        confusion=counts.view(method.classes, method.classes).tolist(),
        forward_passes=method.forward_passes * (2 if method.prediction.mirror else 1),
    )


def decide(method: Method, images: Source, layers: Sequence[int] | None = None) -> Decisions:
    """Predict all images from all voters, by their weights, or from those in `layers`, numbered from 1. → on the CPU"""
    weights = method.voter_weights(layers)
    with evaluating(method):
        return Decisions.joined([method.decide(images.plain(chunk), weights) for chunk in chunks(images, method)])


def all_scores(method: Method, images: Source) -> Tensor:
    """Return the scores of all images, as `Method.votes` gives them. → (voters, n, C)"""
    with evaluating(method):
        return torch.cat([method.votes(images.plain(chunk)) for chunk in chunks(images, method)], dim=1)


def all_embeddings(method: Method, images: Source) -> list[Tensor]:
    """Return the embeddings of all images in each layer, without a label. → (n, e_i)"""
    with evaluating(method):
        rows = (method.unlabelled(images.plain(chunk)) for chunk in chunks(images, method))
        chunked = [list(method.network.embeddings(some)) for some in rows]
    return [torch.cat(parts) for parts in zip(*chunked, strict=True)]


@dataclass(frozen=True)
class Weighting:
    """Weights of the voters, and the accuracy with them."""

    name: str
    weights: list[float]  # one per voter
    accuracy: float


def compare_weightings(method: Method, images: Source) -> list[Weighting]:
    """Evaluate equal weights for all layers, equal weights for the last layers only, and weights fitted to these images."""
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
    """Fit the weights of the voters: minimise the cross entropy of the weighted sum of scores. (voters, n, C), (n,)

    The largest weight is 1, and all are rounded to two decimals. A weight is the square of what L-BFGS optimises, so it is
    not negative. The scores are divided by their standard deviation first. A voter with equal scores for all classes has
    weight 0.
    """
    scores = scores.double()
    scores = scores - scores.mean(dim=2, keepdim=True)
    tiny = torch.finfo(scores.dtype).tiny
    size = scores.square().mean(dim=(1, 2)).sqrt()
    unit = scores / size.clamp_min(tiny)[:, None, None]
    root = (size > 0).double().requires_grad_()
    optimiser = torch.optim.LBFGS([root], max_iter=LBFGS_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = functional.cross_entropy((unit * root.square()[:, None, None]).sum(dim=0), labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    weights = root.detach().square() / size.clamp_min(tiny)
    return [round(weight, 2) for weight in (weights / weights.max().clamp_min(tiny)).tolist()]


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return the area under the ROC curve: the fraction of pairs where the score of the known image is larger; equal scores
    count half. (n,), (m,)"""
    unknown = unknown.sort().values
    below, up_to = (torch.searchsorted(unknown, known, right=right).double().mean() for right in (False, True))
    return ((below + up_to) / (2 * len(unknown))).item()


def threshold_accepting(scores: Tensor, accept: float) -> float:
    """Return the threshold that a fraction `accept` of these scores reach. (n,)"""
    rejected = math.floor((1 - accept) * len(scores) + ROUNDING)
    return scores.sort().values[rejected].item()


def chunks(images: Source, method: Method) -> Sequence[Tensor]:
    """Return the positions of all images in chunks whose size depends on the device and on the largest layer."""
    device = images.labels.device
    size = max(1, min(method.network.rows_at_once(device), MAX_SCORES // method.classes))
    return torch.arange(len(images.labels), device=device).split(size)


def seconds_per_image(method: Method, images: Source) -> float:
    """Return the time per image of predicting a chunk of images: the shortest of a few measurements, because other work on
    the machine can only make them longer."""
    chunk = images.plain(chunks(images, method)[0])
    times: list[float] = []
    with evaluating(method):
        method.predict(chunk).cpu()  # the first one takes longer; .cpu() waits for the device
        while len(times) < FEWEST or (len(times) < MOST and sum(times) < TIMED_SECONDS):
            begin = time.perf_counter()
            method.predict(chunk).cpu()
            times.append(time.perf_counter() - begin)
    return min(times) / len(chunk)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()
