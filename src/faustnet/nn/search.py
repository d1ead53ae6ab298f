"""Search for the nearest classes of images among many references, in pieces that fit in a CPU's cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from faustnet.losses import soft_minimum, squared_distances

MANY = 512  # references from which on they are compared in pieces
PIECE_SCORES, PIECE_VALUES = 2**19, 2**20  # of a piece: scores, and values of references


@dataclass(frozen=True)
class Decisions:
    """Predicted classes of images, and what else a prediction tells about them."""

    classes: Tensor  # (n,)
    scores: Tensor  # of these classes, summed over the voters, (n,)
    alone: Tensor  # classes that each voter alone predicts, (voters, n)
    known: Tensor  # `known_score`, (n,)


def decisions_from(votes: Tensor, weights: Sequence[float]) -> Decisions:
    """Return the predictions from the scores of all voters and their weights. (voters, n, C)"""
    weighted = votes if set(weights) == {1.0} else votes * votes.new_tensor(weights)[:, None, None]
    best = weighted.sum(dim=0).max(dim=1)
    return Decisions(best.indices, best.values, votes.argmax(dim=2), votes[0].amax(dim=-1))


def piece_of_classes(images: int, references: Tensor) -> int:
    """Return the number of classes that are compared at once with a number of images. (C, K, e)"""
    _, count, size = references.shape
    return max(1, min(PIECE_SCORES // max(1, count * images), PIECE_VALUES // (count * size)))


def piece_scores(embedding: Tensor, references: Tensor, scale: float) -> Tensor:
    """Return `reference_scores` with the images along the last dimension, where their number does not slow down the
    product. (B, e), (C, K, e) → (C, B)"""
    distances = squared_distances(references.flatten(0, 1), embedding).unflatten(0, references.shape[:2])  # (C, K, B)
    nearest = soft_minimum(distances.transpose(1, 2), scale)
    return nearest.clamp_min_(0).sqrt_().neg_()  # rounding can make a soft minimum slightly negative


def scores_in_pieces(embedding: Tensor, references: Tensor, scale: float) -> Tensor:
    """`reference_scores` without gradients for many references. Only the result needs memory. (B, e), (C, K, e) → (B, C)"""
    step = piece_of_classes(len(embedding), references)
    return torch.cat([piece_scores(embedding, part, scale) for part in references.split(step)]).T


def nearest_classes(
    embeddings: Sequence[Tensor], references: Sequence[Tensor], weights: Sequence[float], scale: float, sides: int
) -> Decisions:
    """Predict images from their embeddings in each layer, without gradients. There is no tensor of all scores.

    Args:
        embeddings: Of each layer, (sides · n, e_i): those of the images, then those of their mirror images.
        references: Of each layer, (C, K, e_i).
        weights: Weight of each layer.
        scale: Factor of the squared distances in the soft minimum over K.
        sides: 2 if there are mirror images, whose scores are averaged with those of the images; otherwise 1.
    """
    step = min(piece_of_classes(len(embeddings[0]), layer) for layer in references)
    alone = [_Best() for _ in references]
    joined = _Best()
    for first, parts in _pieces(references, step):
        total: Tensor | None = None
        for own, embedding, part, weight in zip(alone, embeddings, parts, weights, strict=True):
            scores = piece_scores(embedding, part, scale)
            if sides > 1:
                scores = scores.unflatten(1, (sides, -1)).mean(dim=1)
            own.update(scores, first)
            if total is not None:
                total.add_(scores, alpha=weight)
            elif weight:
                total = scores.mul_(weight)
        assert total is not None  # a layer has a weight
        joined.update(total, first)
    return Decisions(joined.classes, joined.scores, torch.stack([own.classes for own in alone]), alone[0].scores)


def _pieces(references: Sequence[Tensor], step: int) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """Yield the number of the first class of each piece, and the references of the piece in each layer."""
    for first in range(0, len(references[0]), step):
        yield first, [layer[first : first + step] for layer in references]


class _Best:
    """The best class of each image among those seen so far, and its score; the first one of equal classes."""

    scores: Tensor  # (n,)
    classes: Tensor  # (n,)

    def update(self, scores: Tensor, first: int) -> None:
        """Compare with the scores of further classes, whose numbers begin at `first`. (C, n)"""
        best = scores.max(dim=0)
        if first == 0:
            self.scores, self.classes = best.values, best.indices
            return
        better = best.values > self.scores
        self.scores = torch.where(better, best.values, self.scores)
        self.classes = torch.where(better, best.indices + first, self.classes)
