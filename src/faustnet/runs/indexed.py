"""Approximate predictions among very many classes, by an index of their references. It needs the package faiss."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from faustnet.errors import FaustnetError, require
from faustnet.losses import paired_squared_distances, soft_minimum
from faustnet.methods import Faust, Source
from faustnet.nn.search import MANY, Decisions
from faustnet.runs.inputs import Inputs
from faustnet.runs.prediction import Prediction, named_predictions
from faustnet.training.evaluation import decide, evaluating

if TYPE_CHECKING:
    from faustnet.runs.model import Model

CANDIDATES = 10  # references that each layer finds, and whose classes are then compared exactly
AT_ONCE = 64  # images that are compared at once


class IndexedModel:
    """Model that compares an image with a part of the references only. `Model.indexed` makes one.

    The references of each layer are divided into cells of neighbours (an inverted file of faiss). In each layer, the nearest
    references in the `visited` cells that are closest to the image are found. The scores of their classes are exact.

    Attributes:
        model: The model, whose references must not be changed.
        visited: Number of cells that are visited.
        recall: Fraction of the images given to `Model.indexed` for which the prediction is the same as the exact one.
    """

    def __init__(self, model: "Model", method: Faust, pixels: Inputs, recall: float):
        count = method.classes * method.count
        require(0 < recall <= 1, f"recall must be above 0 and at most 1, got {recall}.")
        require(count >= MANY, f"An index needs at least {MANY} references, got {count}: use the model without an index.")
        require(
            type(method).scores is Faust.scores,
            f"An index needs the scores of FAUST, but {type(method).__name__} has its own: use the model without an index.",
        )
        source = model.source(model.images(pixels))
        require(len(source.labels) > 0, "pixels must contain at least one image, got none.")
        faiss = _import_faiss()
        self.model, self._method = model, method
        self._cells = round(4 * count**0.5)
        self._layers = [_index(faiss, layer.flatten(0, 1).cpu(), self._cells) for layer in method.references]
        exact = decide(method, source).classes
        self.visited, self.recall = 1, 0.0
        while self.recall < recall:
            require(
                self.visited < self._cells,
                f"recall must be at most {self.recall:.3f} on these images, what all cells give, got {recall}.",
            )
            self.visited = min(self._cells, 2 * self.visited)
            found = self._decide(source, method.voter_weights()).classes
            self.recall = (found == exact).double().mean().item()

    def predict(self, pixels: Inputs, layers: Sequence[int] | None = None, *, reject: bool = False) -> list[Prediction]:
        """Predict the class of each image, like `Model.predict`."""
        source, weights = self.model.source(self.model.images(pixels)), self._method.voter_weights(layers)
        return named_predictions(self.model, self._decide(source, weights), reject=reject)

    def _decide(self, source: Source, weights: Sequence[float]) -> Decisions:
        parts = [_best(self._candidates(source.plain(index)), weights) for index in _chunks(source)]
        return Decisions.joined(parts)

    def _candidates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes that any layer finds for each image, and their scores. → (n, m), (layers, n, m)"""
        method = self._method
        method.check_ready()
        views = [x, x.flip(-1)] if method.prediction.mirror else [x]
        with evaluating(method):
            embedded = [torch.stack(sides) for sides in zip(*map(method.network.embeddings, views), strict=True)]
        pairs = zip(self._layers, embedded, strict=True)
        near = torch.cat([self._nearest(index, side) for index, own in pairs for side in own], dim=1)
        classes = torch.where(near < 0, near[:, :1], near) // method.count  # −1: fewer were found
        layers = zip(embedded, method.references, strict=True)
        return classes, torch.stack([_scores(own, layer[classes], method.scale) for own, layer in layers])

    def _nearest(self, index: Any, embedding: Tensor) -> Tensor:
        """Return the references that a layer finds. (n, e) → (n, CANDIDATES)"""
        index.nprobe = self.visited
        return torch.from_numpy(index.search(embedding.cpu().float().numpy(), CANDIDATES)[1]).to(embedding.device)


def _scores(embedding: Tensor, references: Tensor, scale: float) -> Tensor:
    """Return the exact scores of some classes, the mean of all sides. (sides, n, e), (n, m, K, e) → (n, m)"""
    distances = paired_squared_distances(embedding, references.flatten(1, 2).expand(len(embedding), -1, -1, -1))
    nearest = soft_minimum(distances.unflatten(-1, references.shape[1:3]), scale)
    return -nearest.clamp_min(0).sqrt().mean(dim=0)


def _best(candidates: tuple[Tensor, Tensor], weights: Sequence[float]) -> Decisions:
    """Return the predictions among the candidates of each image. (n, m), (layers, n, m)"""
    classes, scores = candidates
    best = (scores * scores.new_tensor(weights)[:, None, None]).sum(dim=0).max(dim=1)
    alone = torch.stack([classes.gather(1, own.argmax(dim=1, keepdim=True))[:, 0] for own in scores])
    return Decisions(
        classes.gather(1, best.indices.unsqueeze(1))[:, 0].cpu(), best.values.cpu(), alone.cpu(), scores[0].amax(dim=1).cpu()
    )


def _chunks(source: Source) -> Iterator[Tensor]:
    return iter(torch.arange(len(source.labels), device=source.labels.device).split(AT_ONCE))


def _index(faiss: Any, references: Tensor, cells: int) -> Any:
    """Return an index of references. (R, e)"""
    size, rows = references.shape[1], references.float().numpy()
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(size), size, cells)
    index.cp.min_points_per_centroid = 1  # otherwise faiss prints a warning
    index.train(rows)
    index.add(rows)
    return index


def _import_faiss() -> Any:
    try:
        return import_module("faiss")
    except ImportError:
        raise FaustnetError("An index needs the package faiss: install it with pip install 'faustnet[faiss]'.") from None
