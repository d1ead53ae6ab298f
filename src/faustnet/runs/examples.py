"""Test images that a report shows: which ones, and the scores that each layer gives them."""

import base64
from typing import Any

import numpy as np
from torch import Tensor

from faustnet.methods import Faust, Method

FURTHER = 500  # images besides those of the map, at most
FEW = 12  # correctly predicted images of each class that are shown besides wrong ones, at least
CLASSES = 10  # whose scores are shown for an image, at most


def balanced_sample(labels: np.ndarray, count: int) -> np.ndarray:
    """Return the sorted positions of `count` images: the first of each class, equally many of all classes if there are
    enough. (n,) → (≤ count,)"""
    return np.sort(_ranks(labels).argsort(kind="stable")[:count])


def further_examples(labels: np.ndarray, predicted: np.ndarray, shown: np.ndarray, count: int = FURTHER) -> np.ndarray:
    """Return the sorted positions of at most `count` images to show besides those at `shown`: the wrongly predicted ones,
    and a few correct ones of each class. If there are more, equally many of each cell of the confusion matrix.
    (n,), (n,), (m,) → (≤ count,)"""
    new = np.ones(len(labels), dtype=bool)
    new[shown] = False
    # Images that are shown already come first in their cell.
    order = np.concatenate([shown, new.nonzero()[0]])
    ranks = np.empty_like(order)
    ranks[order] = _ranks((labels * (predicted.max(initial=0) + 1) + predicted)[order])
    wanted = (new & ((labels != predicted) | (ranks < FEW))).nonzero()[0]
    return np.sort(wanted[ranks[wanted].argsort(kind="stable")[:count]])


def _ranks(groups: np.ndarray) -> np.ndarray:
    """Return the number of earlier elements of the same group. (n,) → (n,)"""
    order = groups.argsort(kind="stable")
    counts = np.bincount(groups)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(groups)) - (counts.cumsum() - counts)[groups[order]]
    return ranks


def described_scores(method: Method, scores: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the scores of images for a page, or the distances to the references for FAUST. (voters, n, C), (n,)

    An image has the scores of all classes, or of `CLASSES` of them: the true class, those that the voters predict, and
    those with the largest sums of scores. Arrays are little-endian bytes in base64: `values`, (voters, n, k) of float32,
    and the classes that they belong to, (n, k) of uint16, or None for all classes in order.
    """
    scores, classes = scores.cpu().float(), None
    if scores.shape[2] > CLASSES:
        sums = method.joined(scores)
        ranks = sums.argsort(dim=1, descending=True).argsort(dim=1)  # (n, C)
        ranks.scatter_(1, scores.argmax(dim=2).T, -1)
        ranks.scatter_(1, sums.argmax(dim=1, keepdim=True), -2)
        ranks.scatter_(1, labels.cpu().unsqueeze(1), -2)
        kept = ranks.topk(CLASSES, dim=1, largest=False).indices
        classes = kept.gather(1, sums.gather(1, kept).argsort(dim=1, descending=True))
        scores = scores.gather(2, classes.expand(len(scores), -1, -1))
    are_distances = isinstance(method, Faust) and type(method).scores is Faust.scores
    return {
        "distances": are_distances,
        "count": scores.shape[2],
        "values": _packed((-scores if are_distances else scores).numpy(), "<f4"),
        "classes": None if classes is None else _packed(classes.numpy(), "<u2"),
    }


def _packed(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values.astype(kind)).tobytes()).decode()
