"""What a class is compared with: where its images are, which of them stand for it, and their embeddings."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError, require
from faustnet.losses import soft_minimum, squared_distances

CLUSTERINGS = 30  # rounds of k-means
KINDS = ("mean", "k-means", "examples")  # of references that are made of embeddings


class ClassIndex:
    """The positions of each class's images in a training set, ready to be drawn from on the device."""

    def __init__(self, labels: Tensor, classes: int):
        self.order = labels.argsort(stable=True)  # positions, class by class
        self.counts = torch.bincount(labels, minlength=classes)
        self.starts = self.counts.cumsum(0) - self.counts

    def require_all(self, class_names: Sequence[str]) -> None:
        for name, count in zip(class_names, self.counts.tolist(), strict=True):
            require(count > 0, f"Class {name!r} has no training image: add some.")

    def draw(self, classes: Tensor) -> Tensor:
        """A random image of each class that is named: class numbers of any shape → positions of that shape.

        Nothing here waits for the device.
        """
        counts = self.counts[classes]
        nth = (torch.rand(classes.shape, device=classes.device) * counts).long()
        return self.order[self.starts[classes] + nth.minimum(counts - 1)]  # rand · count may round up to count

    def members(self, number: int) -> Tensor:
        """The positions of one class's images, on the CPU."""
        start, count = int(self.starts[number]), int(self.counts[number])
        return self.order[start : start + count].cpu()

    def sample(self, number: int, size: int) -> Tensor:
        """`size` different images of a class at random, or all of them where there are fewer. (≤ size,)"""
        members = self.members(number)
        return members[torch.randperm(len(members))[:size]]


def choose_representatives(
    index: ClassIndex, class_names: Sequence[str], count: int, rows: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """`count` different images of every class: positions, (C · count,), class by class. They are drawn at random, or where
    `rows` gives what images look like, (b,) → (b, d), they are the middles of as many clusters of the class."""
    for number, name in enumerate(class_names):
        have = int(index.counts[number])
        if have < count:
            raise FaustnetError(
                f"Class {name!r} has {have} training images, but {count} representatives of each class are wanted: "
                f"ask for at most {have}, or add images."
            )
    if rows is None:
        return torch.cat([index.sample(number, count) for number in range(len(class_names))])
    members = [index.members(number) for number in range(len(class_names))]
    return torch.cat([own[middles(rows(own), count).cpu()] for own in members])


def middles(rows: Tensor, count: int) -> Tensor:
    """Which rows stand for all of them: k-means from k-means++, then for each cluster the row nearest to its mean that
    stands for no other, which for a single cluster is the medoid. (n, d) → (count,), all different"""
    centres = rows[torch.randint(len(rows), (1,))]
    for _ in range(count - 1):
        nearest = squared_distances(rows, centres).amin(dim=1).clamp_min(0)
        drawn = torch.multinomial((nearest + torch.finfo(nearest.dtype).tiny).cpu().double(), 1)
        centres = torch.cat([centres, rows[drawn.to(rows.device)]])
    for _ in range(CLUSTERINGS):
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
    """The images that the user named, put in order of their classes. (C · count,)"""
    if out := [position for position in positions if not 0 <= position < len(labels)]:
        raise FaustnetError(f"There is no training image {out[0]}: they are numbered from 0 to {len(labels) - 1}.")
    chosen = torch.tensor(sorted(set(positions)), dtype=torch.long)
    owners = labels.cpu()[chosen]
    for number, name in enumerate(class_names):
        have = int((owners == number).sum())
        if have != count:
            raise FaustnetError(
                f"{have} of the named representatives are of class {name!r}, but each class needs {count}: "
                f"name {count} different training images of every class."
            )
    return chosen[owners.argsort(stable=True)]


def references_from(embedding: Tensor, count: int, kind: str) -> Tensor:
    """References of a class that was not trained, from its examples' embeddings: their "mean", the middles of clusters of
    them, "k-means", or the first "examples". Where there are fewer than `count` they repeat. (n, e) → (count, e)"""
    if kind == "mean":
        return embedding.mean(dim=0).expand(count, -1)
    some = min(count, len(embedding))
    chosen = embedding[middles(embedding, some)] if kind == "k-means" else embedding[:some]
    return repeated(chosen, count)


def repeated(rows: Tensor, count: int) -> Tensor:
    """The rows over and over, as many as are wanted. (n, …) → (count, …)"""
    return rows[torch.arange(count, device=rows.device) % len(rows)]


class References(nn.Module):
    """The embeddings that classes are compared with, one tensor (C, K, e_i) for each layer; saved with the model."""

    def __init__(self, classes: int, count: int, embedding_sizes: Iterable[int]):
        super().__init__()
        for i, size in enumerate(embedding_sizes):
            self.register_buffer(f"layer_{i}", torch.zeros(classes, count, size))

    def __iter__(self) -> Iterator[Tensor]:
        return self.buffers()

    @torch.no_grad()
    def set(self, embeddings: Iterable[Tensor]) -> None:
        """Store each layer's references; any shape that holds C · K rows in the order of the classes."""
        for mine, new in zip(self, embeddings, strict=True):
            mine.copy_(new.reshape(mine.shape))


def moved_centroids(centroids: Tensor, embedding: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Each class's centroid with its share of the mean of a batch's embeddings of that class taken in: c + s · (mean − c). A
    class that is not in the batch keeps its own. (…, C, e), (…, B, e), (B,), (C,) → (…, C, e)"""
    members = (labels == torch.arange(len(shares), device=labels.device).unsqueeze(-1)).to(centroids.dtype)  # (C, B)
    counts = members.sum(dim=-1, keepdim=True)
    means = torch.matmul(members / counts.clamp_min(1), embedding)
    return torch.lerp(centroids, means, shares.unsqueeze(-1) * (counts > 0))


def reference_scores(embedding: Tensor, references: Tensor, scale: float) -> Tensor:
    """Eq. 5's summand, as a score: −‖f − f̂‖₂ to each class. (B, e) and (C, K, e) → (B, C)

    With several references the distance is their soft minimum.
    """
    classes, count, size = references.shape
    distances = squared_distances(embedding, references.reshape(classes * count, size))
    nearest = soft_minimum(distances.view(-1, classes, count), scale)
    return -nearest.clamp_min(0).sqrt()  # rounding may leave a distance of nothing a little below zero


def nearness(scores: Tensor) -> Tensor:
    """How near an image is to any class that is known, by which strange ones are told: the first layer's best score. Later
    layers are trained to see nothing but the classes, and take strange images for one of them more often.
    (layers, …, C) → (…)"""
    return scores[0].amax(dim=-1)


def margin(scores: Tensor) -> Tensor:
    """By how much the best class is ahead of the next, (…, C) → (…); without end where there is only one."""
    if scores.shape[-1] == 1:
        return scores.new_full(scores.shape[:-1], math.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second
