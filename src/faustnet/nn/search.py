"""Search for the nearest classes of images among many references, in pieces that fit in a CPU's cache."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from faustnet.losses import goodness, soft_minimum
from faustnet.losses.formulas import exact

MANY = 512  # references from which on they are compared in pieces
PIECE_SCORES, PIECE_VALUES = 2**19, 2**20  # of a piece: scores, or values of references


@dataclass(frozen=True)
class Decisions:
    """Predicted classes of images, and what else a prediction tells about them."""

    classes: Tensor  # (n,)
    scores: Tensor  # of these classes, summed over the voters, (n,)
    alone: Tensor  # classes that each voter alone predicts, (voters, n)
    known: Tensor  # `known_score`, (n,)

    @classmethod
    def joined(cls, parts: "Sequence[Decisions]") -> "Decisions":
        """Return the predictions of several parts of the images together, on the CPU."""
        found = {field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)}
        return cls(**{name: torch.cat(values, dim=-1).cpu() for name, values in found.items()})


def decisions_from(votes: Tensor, weights: Sequence[float]) -> Decisions:
    """Return the predictions from the scores of all voters and their weights. (voters, n, C)"""
    weighted = votes if set(weights) == {1.0} else votes * votes.new_tensor(weights)[:, None, None]
    best = weighted.sum(dim=0).max(dim=1)
    return Decisions(best.indices, best.values, votes.argmax(dim=2), votes[0].amax(dim=-1))


def piece_scores(embedding: Tensor, references: Tensor, scale: float, squares: Tensor | None = None) -> Tensor:
    """Return `reference_scores` with the images along the last dimension, where their number does not slow down the
    product. `squares` are the squared lengths of the references, if they are known. (B, e), (C, K, e), (C, K) → (C, B)"""
    classes, count, _ = references.shape
    embedding = exact(embedding)
    distances = torch.matmul(references.flatten(0, 1), (-2 * embedding).mT)
    distances.add_(squared_lengths(references).view(-1, 1) if squares is None else squares.reshape(-1, 1))
    distances.add_(goodness(embedding)).clamp_min_(0)
    if count == 1:
        return distances.sqrt_().neg_()
    nearest = soft_minimum(distances.view(classes, count, -1).transpose(1, 2), scale)
    return nearest.clamp_min_(0).sqrt_().neg_()  # rounding can make a soft minimum slightly negative


def squared_lengths(references: Tensor) -> Tensor:
    """Return the squared length of each reference, in pieces, because squares need as much memory as references.
    (C, K, e) → (C, K)"""
    step = max(1, PIECE_VALUES // references[0].numel())
    buffer, lengths = torch.empty_like(references[:step]), references.new_empty(references.shape[:2])
    for part, own in zip(references.split(step), lengths.split(step), strict=True):
        torch.sum(torch.square(part, out=buffer[: len(part)]), dim=-1, out=own)
    return lengths


def scores_in_pieces(embedding: Tensor, references: Tensor, scale: float) -> Tensor:
    """`reference_scores` without gradients for many references. Only the result needs memory. (B, e), (C, K, e) → (B, C)"""
    step = max(1, PIECE_VALUES // references[0].numel())
    return torch.cat([piece_scores(embedding, part, scale) for part in references.split(step)]).T


def nearest_classes(
    embeddings: Sequence[Tensor],
    references: Sequence[tuple[Tensor, Tensor]],
    weights: Sequence[float],
    scale: float,
    sides: int = 1,
) -> Decisions:
    """Predict images from their embeddings in each layer, without gradients. There is no tensor of all scores.

    Args:
        embeddings: Of each layer, (sides · n, e_i): those of the images, then those of their mirror images.
        references: Of each layer, (C, K, e_i), with their `squared_lengths`, (C, K).
        weights: Weight of each layer.
        scale: Factor of the squared distances in the soft minimum over K.
        sides: 2 if there are mirror images, whose scores are averaged with those of the images; otherwise 1.
    """
    classes, count, _ = references[0][0].shape
    step = max(1, PIECE_SCORES // max(1, count * len(embeddings[0])))
    alone, joined = [_Best() for _ in references], _Best()
    for first in range(0, classes, step):
        total: Tensor | None = None
        for own, embedding, (vectors, squares), weight in zip(alone, embeddings, references, weights, strict=True):
            part = slice(first, first + step)
            scores = piece_scores(embedding, vectors[part], scale, squares[part])
            if sides > 1:
                scores = scores.unflatten(1, (sides, -1)).mean(dim=1)
            own.update(scores, first)
            if total is not None:
                total.add_(scores, alpha=weight)
            elif weight:
                total = scores if weight == 1 else scores.mul_(weight)
        assert total is not None  # a layer has a weight
        joined.update(total, first)
    return Decisions(joined.classes, joined.scores, torch.stack([own.classes for own in alone]), alone[0].scores)


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
