"""N-way K-shot classification: new classes are recognised by the distance to the mean embedding of a few of their images.

An episode has N classes, K images of each to learn from (its support), and Q other images of each to classify (its queries).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from faustnet.errors import FaustnetError, require

RANDOM, ALPHABET = "random", "alphabet"
PROTOCOLS = (RANDOM, ALPHABET)
NORMAL = 1.959964  # the 97.5 % quantile of the normal distribution
CHUNK_VALUES = 2**26  # values of the queries of all episodes that are computed at once, at most


@dataclass(frozen=True)
class Task:
    """Kind of episodes. The classes of an episode are drawn from all classes ("random"), or from those of one alphabet,
    which is drawn first ("alphabet")."""

    ways: int  # N, classes
    shots: int  # K, images of each class to learn from
    queries: int = 5  # Q, images of each class to classify
    protocol: str = RANDOM

    def __post_init__(self) -> None:
        require(self.ways >= 2, f"ways must be at least 2 classes, got {self.ways}.")
        require(self.shots >= 1, f"shots must be at least 1 image per class, got {self.shots}.")
        require(self.queries >= 1, f"queries must be at least 1 image per class, got {self.queries}.")
        require(self.protocol in PROTOCOLS, f"protocol must be {' or '.join(PROTOCOLS)}, got {self.protocol!r}.")

    def __str__(self) -> str:
        where = "" if self.protocol == RANDOM else " within an alphabet"
        return f"{self.ways}-way {self.shots}-shot{where}"


@dataclass(frozen=True)
class Episodes:
    """Positions of the images of some episodes."""

    support: Tensor  # (E, N, K)
    queries: Tensor  # (E, N, Q)

    def __len__(self) -> int:
        return len(self.support)

    def to(self, device: torch.device) -> "Episodes":
        return Episodes(self.support.to(device), self.queries.to(device))


def draw_episodes(task: Task, labels: Tensor, class_names: Sequence[str], count: int, seed: int) -> Episodes:
    """Draw episodes from images with these labels, (n,). Classes with fewer than K + Q images are not drawn; all others are
    drawn equally often within their alphabet, the part of their names before the first slash."""
    require(count >= 2, f"episodes must be at least 2, for an interval, got {count}.")
    members = _members(labels, len(class_names))
    groups = _groups(task, [len(own) for own in members], class_names)
    generator, images = np.random.default_rng(seed), task.shots + task.queries
    drawn = np.empty((count, task.ways, images), np.int64)
    for episode in drawn:
        group = groups[generator.integers(len(groups))]
        for place, number in enumerate(generator.choice(group, task.ways, replace=False)):
            episode[place] = generator.choice(members[number], images, replace=False)
    support, queries = torch.from_numpy(drawn).split([task.shots, task.queries], dim=2)
    return Episodes(support, queries)


def _members(labels: Tensor, classes: int) -> list[np.ndarray]:
    """Return the positions of the images of each class."""
    order = labels.cpu().argsort(stable=True).numpy()
    counts = torch.bincount(labels.cpu(), minlength=classes).numpy()
    return np.split(order, counts.cumsum()[:-1])


def _groups(task: Task, counts: Sequence[int], class_names: Sequence[str]) -> list[np.ndarray]:
    """Return the numbers of the classes with enough images: of all of them, or of each alphabet with enough classes."""
    need = task.shots + task.queries
    enough = [number for number, count in enumerate(counts) if count >= need]
    groups: dict[str, list[int]] = {}
    for number in enough:
        name = class_names[number]
        require(
            task.protocol == RANDOM or "/" in name,
            f"protocol must be {RANDOM} for classes without alphabets, whose names are not ALPHABET/NAME, such as "
            f"{name!r}; got {task.protocol!r}.",
        )
        groups.setdefault(name.split("/")[0] if task.protocol == ALPHABET else "", []).append(number)
    large = [np.array(group) for group in groups.values() if len(group) >= task.ways]
    if not large:
        most = max(map(len, groups.values()), default=0)
        where = "" if task.protocol == RANDOM else " in one alphabet"
        raise FaustnetError(
            f"{task} with {task.queries} queries needs at least {task.ways} classes{where} with {need} images or more, got "
            f"{most}: use fewer ways, shots or queries, or add images."
        )
    return large


def episode_scores(
    embedding: Tensor, episodes: Episodes, length: float | None = None, queried: Tensor | None = None
) -> Tensor:
    """Return the score of each class of an episode for each of its queries by one layer: −‖f − f̂‖₂, where the reference f̂ is
    the mean embedding of the support, scaled to `length` if that is given. (n, e) → (E, N · Q, N)

    `queried` are other embeddings of all images, (n, e), which the queries are taken from.
    """
    references = embedding[episodes.support].mean(dim=2)
    if length is not None:
        references = functional.normalize(references, dim=2) * length
    queried = embedding if queried is None else queried
    return -torch.cdist(queried[episodes.queries.flatten(1)], references)


def episode_accuracies(scores: Tensor) -> Tensor:
    """Return the share of the queries of each episode that are classified correctly. (…, E, N · Q, N) → (…, E)"""
    ways = scores.shape[-1]
    labels = torch.arange(ways, device=scores.device).repeat_interleave(scores.shape[-2] // ways)
    return (scores.argmax(dim=-1) == labels).double().mean(dim=-1)


@dataclass(frozen=True)
class Features:
    """Embeddings of all images by some layers, and how images are compared by them."""

    names: Sequence[str]  # of the layers
    embeddings: Sequence[Tensor]  # (n, e_i)
    lengths: Sequence[float] | None = None  # that the references of each layer are scaled to; None if they are not scaled
    weights: Sequence[float] | None = None  # of the layers; None if they are equal
    mirrored: Sequence[Tensor] | None = None  # embeddings of the mirror images, if scores are averaged over both, (n, e_i)

    def scores(self, episodes: Episodes) -> Tensor:
        """Return the scores by each layer. → (layers, E, N · Q, N)"""
        found = [self._scores(number, episodes, None) for number in range(len(self.names))]
        if self.mirrored is None:
            return torch.stack(found)
        others = [self._scores(number, episodes, queried) for number, queried in enumerate(self.mirrored)]
        return (torch.stack(found) + torch.stack(others)) / 2

    def _scores(self, number: int, episodes: Episodes, queried: Tensor | None) -> Tensor:
        length = None if self.lengths is None else self.lengths[number]
        return episode_scores(self.embeddings[number], episodes, length, queried)

    def accuracies(self, episodes: Episodes) -> tuple[Tensor, Tensor, Tensor]:
        """Return the accuracy in each episode: of each layer alone, of the first 1, 2, … layers together, and of all by
        their weights. Scores of several layers are added. → (layers, E), (layers, E), (E,)"""
        episodes = episodes.to(self.embeddings[0].device)
        largest = max(embedding.shape[1] for embedding in self.embeddings)
        size = max(1, CHUNK_VALUES // (episodes.queries[0].numel() * largest))
        found = []
        for support, queries in zip(episodes.support.split(size), episodes.queries.split(size), strict=True):
            scores = self.scores(Episodes(support, queries))
            weights = scores.new_tensor(self.weights or [1.0] * len(scores))
            joined = (scores * weights[:, None, None, None]).sum(dim=0, keepdim=True)
            together = torch.cat([scores, scores.cumsum(dim=0), joined])
            found.append(episode_accuracies(together))
        layers = len(self.names)
        alone, first, (joint,) = torch.cat(found, dim=1).cpu().split([layers, layers, 1])
        return alone, first, joint


def mean_interval(
    means: Sequence[float], variances: Sequence[float], episodes: Sequence[int]
) -> tuple[float, tuple[float, float]]:
    """Return the mean accuracy of S networks and its 95 % interval, from the mean m_s and the variance v_s of the accuracies
    of each network in E_s episodes of its own.

    The interval is m ± 1.96 s, where m is the mean of all m_s, and s² is Σ v_s / E_s / S², or for several networks
    Σ (m_s − m)² / (S · (S − 1)) if that is larger: it includes the variation over the networks that the episodes do not
    explain.
    """
    count = len(means)
    mean = math.fsum(means) / count
    square = math.fsum(v / n for v, n in zip(variances, episodes, strict=True)) / count**2
    if count > 1:
        square = max(square, math.fsum((one - mean) ** 2 for one in means) / (count * (count - 1)))
    half = NORMAL * math.sqrt(square)
    return mean, (mean - half, mean + half)


def summary(accuracies: Tensor) -> dict[str, Any]:
    """Return the mean and the variance of the accuracies in all episodes. (E,)"""
    return {"mean": accuracies.mean().item(), "variance": accuracies.var().item()}
