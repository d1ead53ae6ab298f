"""What a finished run has learned, as plain facts for JSON: its layers' embeddings of test images, and those images."""

import base64
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from faustnet.data import Images
from faustnet.errors import require
from faustnet.methods.faust import FaustRepresentative
from faustnet.nn.layers import EmbeddingLayer
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, as_table, differences
from faustnet.training.evaluation import all_embeddings, all_scores

THUMBNAIL = 32  # pixels along the longer side, at most: a thousand of them are in a page
PORTRAIT = 128  # the same, of a representative
PORTRAITS = 10  # representatives of a class that are shown, at most
NEIGHBOURS = 30.0  # t-SNE's perplexity where there are images enough


def inspect_run(run: Run, *, device: torch.device, data_dir: Path | None, points: int = 1000) -> dict[str, Any]:
    """A finished run: its recipe, environment, history and metrics as they are in its folder; how well each layer tells
    the classes apart; and of `points` test images a map for each layer, the true and the predicted class, the picture."""
    require(points >= 1, f"At least one image must be shown, not {points}.")
    model, metrics = run.model_as_trained(device), run.metrics
    recipe = model.recipe
    data = model.read_data(data_dir=data_dir)
    test = data.test.to(device)
    labels = test.labels.cpu().numpy()
    positions = balanced(labels, points)
    shown = test.take(torch.from_numpy(positions))
    scores = model.method.joined(all_scores(model.method, model.source(shown)))
    pictures = Pictures(test)
    return {
        "name": run.folder.resolve().name,
        "dataset": data.name,
        "network": network_in_words(model),
        "recipe": as_table(recipe),
        "changed": _changed(recipe),
        "environment": run.environment,
        "history": run.history,
        "metrics": metrics,
        "learners": model.method.learners,
        "class_names": list(model.class_names),
        "layers": [
            {
                "name": f"layer {number}",
                "fisher": _finite(fisher_score(embedding, labels)),
                "map": np.round(tsne(embedding[positions]).astype(np.float64), 2).tolist(),
            }
            for number, embedding in enumerate(layer_embeddings(model, test), start=1)
        ],
        "labels": shown.labels.tolist(),
        "predicted": scores.argmax(dim=1).tolist(),
        "sheet": pictures.sheet(shown.all_pixels),
        "representatives": _representatives(model, pictures),
    }


def layer_embeddings(model: Model, images: Images) -> list[np.ndarray]:
    """Each layer's embedding of images without a label, (n, e_i); its activity where its layers have no projection."""
    source = model.source(images.to(model.scaling.mean.device))
    return [embedding.float().cpu().numpy() for embedding in all_embeddings(model.method, source)]


def fisher_score(embedding: np.ndarray, labels: np.ndarray) -> float:
    """How far apart the classes lie, next to how wide each of them is; larger is better. (n, e), (n,) → a number

    F = Σ_c n_c ‖μ_c − μ‖² / Σ_i ‖x_i − μ_{y_i}‖², the trace of the scatter between classes over the trace of the scatter
    within them. It is infinite where every class is a single point, and 0 where all of them are the same.
    """
    rows = embedding.astype(np.float64)
    _, firsts, numbers, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    # Measured from one of its own images, a class that is a single point has exactly no width, whatever the rounding.
    origins = rows[firsts] - rows[firsts[0]]
    offsets = rows - rows[firsts][numbers]
    means = np.zeros_like(origins)
    np.add.at(means, numbers, offsets)
    means /= counts[:, None]
    within = float(np.square(offsets - means[numbers]).sum())
    centres = origins + means
    between = float(counts @ np.square(centres - counts @ centres / len(rows)).sum(axis=1))
    if within == 0:
        return math.inf if between > 0 else 0.0
    return between / within


def tsne(embedding: np.ndarray, seed: int = 0) -> np.ndarray:
    """A map on which images lie near those that are near them in the embedding. (n, e) → (n, 2)"""
    from sklearn.manifold import TSNE  # as slow to import as torch, so only where it is used

    rows = embedding.astype(np.float64) - embedding[:1]
    spread = np.abs(rows).max(initial=0.0)
    if len(rows) < 2 or spread == 0:
        return np.zeros((len(rows), 2))
    rows = np.pad(rows / spread, ((0, 0), (0, max(0, 2 - rows.shape[1]))))  # it starts from two principal components
    perplexity = min(NEIGHBOURS, (len(rows) - 1) / 3)
    return TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(rows)


def balanced(labels: np.ndarray, count: int) -> np.ndarray:
    """The positions of `count` images, in order: the first ones of each class, as many of one as of another where there
    are enough. (n,) → (≤ count,)"""
    order = labels.argsort(kind="stable")
    counts = np.bincount(labels)
    rank = np.empty_like(order)  # how many images of its class come before each image
    rank[order] = np.arange(len(labels)) - (counts.cumsum() - counts)[labels[order]]
    return np.sort(rank.argsort(kind="stable")[:count])


class Pictures:
    """Images of one data set as PNG files in data URIs. A table of numbers has none."""

    def __init__(self, images: Images):
        channels, height, width = images.shape
        self.exist = channels in (1, 3) and height * width > 1
        self.low, self.high = 0.0, 255.0
        if images.pixels.dtype != torch.uint8:
            self.low, self.high = (float(end) for end in images.all_pixels.aminmax())

    def each(self, pixels: Tensor, size: int) -> list[Image.Image]:
        """(n, c, h, w), with values as the data set has them, at most `size` pixels wide and high."""
        shares = (pixels.cpu().double() - self.low) / (self.high - self.low or 1.0)
        values = (shares * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
        found = [Image.fromarray(value.squeeze(2) if value.shape[2] == 1 else value) for value in values]
        for picture in found:
            picture.thumbnail((size, size))
        return found

    def sheet(self, pixels: Tensor) -> dict[str, Any] | None:
        """All images side by side in one picture, row by row."""
        if not self.exist:
            return None
        found = self.each(pixels, THUMBNAIL)
        width, height = found[0].size
        columns = math.isqrt(len(found) - 1) + 1
        whole = Image.new(found[0].mode, (columns * width, math.ceil(len(found) / columns) * height))
        for number, picture in enumerate(found):
            row, column = divmod(number, columns)
            whole.paste(picture, (column * width, row * height))
        return {"source": data_uri(whole), "columns": columns, "width": width, "height": height}


def data_uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _representatives(model: Model, pictures: Pictures) -> list[list[str]]:
    """Each class's representatives as data URIs; nothing where the method has none."""
    method = model.method
    if not isinstance(method, FaustRepresentative) or not pictures.exist:
        return []
    pixels = method.images.view(-1, *model.shape) * model.scaling.deviation + model.scaling.mean
    classes = pixels.unflatten(0, (method.classes, method.count))[:, :PORTRAITS]
    return [[data_uri(picture) for picture in pictures.each(images, PORTRAIT)] for images in classes]


def network_in_words(model: Model) -> str:
    """3 × 500, embedding 256; or vgg 64–128, embedding 256"""
    settings = model.recipe.network
    alike = len(set(settings.widths)) == 1
    widths = f"{len(settings.widths)} × {settings.widths[0]}" if alike else "–".join(map(str, settings.widths))
    kind = "" if settings.kind == "dense" else f"{settings.kind} "
    first = model.method.network[0]
    projected = isinstance(first, EmbeddingLayer) and first.projection is not None
    return kind + (f"{widths}, embedding {settings.embedding}" if projected else widths)


def _changed(recipe: Recipe) -> dict[str, Any]:
    """What the recipe has other than the default, by dotted keys; a method's options next to that method's defaults."""
    defaults = replace(Recipe(), method=recipe.method, options={})
    named = {"method": recipe.method} if recipe.method != Recipe().method else {}
    return named | {key: value for key, (value, _) in differences(recipe, defaults).items()}


def _finite(number: float) -> float | None:
    """JSON knows no infinity."""
    return number if math.isfinite(number) else None
