"""References of classes: how they are chosen or computed, and the scores that they give."""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from faustnet.errors import require
from faustnet.losses import soft_minimum, squared_distances
from faustnet.nn.modules import one_hot
from faustnet.nn.search import MANY, scores_in_pieces, squared_lengths
from faustnet.system.devices import has_triton

KMEANS_ROUNDS = 30
REFERENCE_KINDS = ("mean", "k-means", "examples")  # ways to compute references from the embeddings of examples


class ClassIndex:
    """Positions of the images of each class in a training set, for random draws on the device."""

    def __init__(self, labels: Tensor, classes: int):
        self.order = labels.argsort(stable=True)  # positions, class by class
        self.counts = torch.bincount(labels, minlength=classes)
        self.starts = self.counts.cumsum(0) - self.counts

    def require_all(self, class_names: Sequence[str]) -> None:
        for name, count in zip(class_names, self.counts.tolist(), strict=True):
            require(count > 0, f"Class {name!r} has no training image: add at least one.")

    def draw(self, classes: Tensor) -> Tensor:
        """Draw a random image of each of these classes, without waiting for the device. (…) → positions (…)"""
        counts = self.counts[classes]
        nth = (torch.rand(classes.shape, device=classes.device) * counts).long()
        return self.order[self.starts[classes] + nth.minimum(counts - 1)]  # rand · count may round up to count

    def members(self, number: int) -> Tensor:
        """Return the positions of the images of one class, on the CPU."""
        start, count = int(self.starts[number]), int(self.counts[number])
        return self.order[start : start + count].cpu()

    def sample(self, number: int, size: int) -> Tensor:
        """Draw at most `size` different images of one class at random. → (≤ size,)"""
        members = self.members(number)
        return members[torch.randperm(len(members))[:size]]


def choose_representatives(
    index: ClassIndex, class_names: Sequence[str], count: int, rows: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Choose `count` different images of every class, and return their positions, class by class. → (C · count,)

    They are drawn at random. If `rows` is given, a function that returns the images at some positions, (b,) → (b, d), they
    are the medoids of as many clusters of each class.
    """
    index.require_all(class_names)
    for name, have in zip(class_names, index.counts.tolist(), strict=True):
        require(
            have >= count,
            f"options.representatives must be at most {have}, the number of training images of class {name!r}, got {count}.",
        )
    if rows is None:
        return torch.cat([index.sample(number, count) for number in range(len(class_names))])
    members = [index.members(number) for number in range(len(class_names))]
    return torch.cat([own[medoids(rows(own), count).cpu()] for own in members])


def medoids(rows: Tensor, count: int) -> Tensor:
    """Cluster rows by k-means with k-means++ initialisation, and return the position of the row closest to the mean of each
    cluster. (n, d) → (count,), all different"""
    if count == len(rows):
        return torch.arange(count, device=rows.device)
    centres = rows[torch.randint(len(rows), (1,))]
    for _ in range(count - 1):
        nearest = squared_distances(rows, centres).amin(dim=1).clamp_min(0)
        drawn = torch.multinomial((nearest + torch.finfo(nearest.dtype).tiny).cpu().double(), 1)
        centres = torch.cat([centres, rows[drawn.to(rows.device)]])
    for _ in range(KMEANS_ROUNDS):
        owners = squared_distances(rows, centres).argmin(dim=1)
        counts = torch.bincount(owners, minlength=count).unsqueeze(1)
        sums = torch.zeros_like(centres).index_add_(0, owners, rows)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    distances = squared_distances(rows, centres)
    chosen: list[Tensor] = []
    for cluster in range(count):
        chosen.append(distances[:, cluster].argmin())
        distances[chosen[-1]] = math.inf
    return torch.stack(chosen)


def named_representatives(positions: Sequence[int], labels: Tensor, class_names: Sequence[str], count: int) -> Tensor:
    """Check the positions that a user chose, and return them in the order of the classes. → (C · count,)"""
    for position in positions:
        require(
            0 <= position < len(labels),
            f"options.chosen must be positions of training images from 0 to {len(labels) - 1}, got {position}.",
        )
    chosen = torch.tensor(sorted(set(positions)), dtype=torch.long)
    owners = labels.cpu()[chosen]
    for number, name in enumerate(class_names):
        have = int((owners == number).sum())
        require(
            have == count,
            f"options.chosen must contain {count} different images of every class, but contains {have} of class {name!r}.",
        )
    return chosen[owners.argsort(stable=True)]


def references_from(embedding: Tensor, count: int, kind: str) -> Tensor:
    """Compute the references of a new class from the embeddings of its examples: their "mean", the medoids of "k-means"
    clusters, or the first "examples". If there are fewer than `count`, they are repeated. (n, e) → (count, e)"""
    if kind == "mean":
        return embedding.mean(dim=0).expand(count, -1)
    some = min(count, len(embedding))
    chosen = embedding[medoids(embedding, some)] if kind == "k-means" else embedding[:some]
    return repeat_rows(chosen, count)


def repeat_rows(rows: Tensor, count: int) -> Tensor:
    """Repeat the rows in turn until there are `count`. (n, …) → (count, …)"""
    return rows[torch.arange(count, device=rows.device) % len(rows)]


class KnownLengths:
    """Squared lengths of the references of one layer, valid until the references are changed or replaced."""

    def __init__(self, references: Tensor):
        self.squares = squared_lengths(references)  # (C, K)
        self._references = weakref.ref(references)
        self._state = references._version, references.data_ptr()

    def fit(self, references: Tensor) -> bool:
        """Return whether they are those of these references."""
        return self._references() is references and self._state == (references._version, references.data_ptr())


class References(nn.Module):
    """References of all classes: one buffer (C, K, e_i) for each layer, of the type of its embeddings."""

    def __init__(self, classes: int, count: int, embedding_sizes: Sequence[int], dtypes: Sequence[torch.dtype] = ()):
        super().__init__()
        self._known: list[KnownLengths] = []
        kinds = dtypes or [torch.get_default_dtype()] * len(embedding_sizes)
        for i, (size, kind) in enumerate(zip(embedding_sizes, kinds, strict=True)):
            self.register_buffer(f"layer_{i}", torch.zeros(classes, count, size, dtype=kind))

    def __iter__(self) -> Iterator[Tensor]:
        return self.buffers()

    @torch.no_grad()
    def with_squares(self) -> list[tuple[Tensor, Tensor]]:
        """Return the references of each layer with their squared lengths, which are computed again only if the references
        were changed. (C, K, e_i), (C, K)"""
        layers = list(self)
        if not self._known or not all(map(KnownLengths.fit, self._known, layers)):
            self._known = list(map(KnownLengths, layers))
        return [(layer, one.squares) for layer, one in zip(layers, self._known, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have new version counters."""
        return {**self.__dict__, "_known": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"_known": [], **state})  # pickles of earlier versions have no lengths

    @torch.no_grad()
    def set(self, embeddings: Iterable[Tensor]) -> None:
        """Store the references of each layer: C · K rows in the order of the classes, in any shape."""
        for stored, new in zip(self, embeddings, strict=True):
            stored.copy_(new.reshape(stored.shape))


def updated_centroids(centroids: Tensor, embedding: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Move the centroid c of each class towards the mean of the batch's embeddings of that class: c + s · (mean − c), where
    s is the share of the class. A class that is not in the batch keeps its centroid.
    (…, C, e), (…, B, e), (B,), (C,) → (…, C, e)"""
    members = one_hot(labels, len(shares)).T.to(centroids.dtype)  # (C, B)
    counts = members.sum(dim=-1, keepdim=True)
    means = torch.matmul(members / counts.clamp_min(1), embedding)
    return torch.lerp(centroids, means, (shares.unsqueeze(-1) * (counts > 0)).to(centroids.dtype))


def reference_scores(embedding: Tensor, references: Tensor, scale: float) -> Tensor:
    """Return the score of each class by one layer: −‖f − f̂‖₂, the negative summand of Eq. 5. (B, e), (C, K, e) → (B, C)

    If a class has several references, its distance is the soft minimum of their distances.
    """
    classes, count, size = references.shape
    plain = embedding.dtype == torch.float32 and not (embedding.requires_grad or references.requires_grad)
    if count == 1 and plain and has_triton(embedding.device):
        from faustnet.nn import kernels

        if classes <= kernels.MOST_REFERENCES:
            return kernels.reference_scores(embedding, references.squeeze(1))
    if plain and classes * count >= MANY and not torch.compiler.is_exporting():
        return scores_in_pieces(embedding, references, scale)
    distances = squared_distances(embedding, references.reshape(classes * count, size))
    nearest = soft_minimum(distances.view(-1, classes, count), scale)
    if not nearest.requires_grad:
        return nearest.clamp_min_(0).sqrt_().neg_()
    return -nearest.clamp_min(0).sqrt()  # rounding can make a soft minimum slightly negative


def known_score(scores: Tensor) -> Tensor:
    """Return the score by which known images are told from unknown ones: the first layer's best score. Later layers are
    trained on features of the known classes, and confuse unknown images with them more often. (layers, …, C) → (…)"""
    return scores[0].amax(dim=-1)


def score_margin(scores: Tensor) -> Tensor:
    """Return the difference between the best two scores; infinity if there is one class only. (…, C) → (…)"""
    if scores.shape[-1] == 1:
        return scores.new_full(scores.shape[:-1], math.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second
