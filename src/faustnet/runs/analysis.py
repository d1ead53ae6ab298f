"""Analysis of a finished run, as values for JSON: the embeddings of test images in each layer, and the images."""

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
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, as_table, differences, write_recipe
from faustnet.training.evaluation import all_embeddings, all_scores

THUMBNAIL = 32  # largest side in pixels of a test image; a page contains a thousand of them
PORTRAIT = 128  # largest side of a representative
PORTRAITS = 10  # largest number of representatives that are shown per class
PERPLEXITY = 30.0  # of t-SNE, if there are enough images


def inspect_run(
    run: Run, *, device: torch.device, data_dir: Path | None, points: int = 1000, dataset: str | None = None
) -> dict[str, Any]:
    """Analyse a finished run.

    The result contains the recipe, environment, history and metrics of the run; the Fisher score of each layer; and for
    `points` test images a map of the embeddings in each layer, the true and the predicted class, and the picture or text.
    The test images are those of `dataset`, or by default those of the run.
    """
    require(points >= 1, f"points must be at least 1, got {points}.")
    model, metrics = run.model_as_trained(device), run.metrics
    recipe = model.recipe
    data = model.read_data(dataset, data_dir)
    test = data.test.to(device)
    labels = test.labels.cpu().numpy()
    positions = balanced_sample(labels, points)
    shown = test.take(torch.from_numpy(positions))
    scores = model.method.joined(all_scores(model.method, model.source(shown)))
    pictures = Pictures(test)
    return {
        "name": run.folder.resolve().name,
        "dataset": data.name,
        "network": network_in_words(model),
        "recipe": as_table(recipe),
        "recipe_file": write_recipe(recipe),
        "changed": _changed(recipe),
        "environment": run.environment,
        "history": run.history,
        "metrics": metrics,
        "learners": model.method.learners,
        "class_names": list(model.class_names),
        "layers": [
            {
                "name": f"layer {number}",
                "fisher": score if math.isfinite(score := fisher_score(embedding, labels)) else None,  # JSON has no infinity
                "map": np.round(tsne(embedding[positions]).astype(np.float64), 2).tolist(),
            }
            for number, embedding in enumerate(layer_embeddings(model, test), start=1)
        ],
        "labels": shown.labels.tolist(),
        "predicted": scores.argmax(dim=1).tolist(),
        "sheet": pictures.sheet(shown.all_pixels),
        "texts": model.tokeniser.decode(shown.all_pixels) if model.tokeniser else None,
        "representatives": _representatives(model, pictures),
    }


def layer_embeddings(model: Model, images: Images) -> list[np.ndarray]:
    """Return the embedding of images in each layer, (n, e_i), or the activation if the layers have no projection."""
    source = model.source(images.to(model.device))
    return [embedding.float().cpu().numpy() for embedding in all_embeddings(model.method, source)]


def fisher_score(embedding: np.ndarray, labels: np.ndarray) -> float:
    """Return how well the classes are separated; larger is better. (n, e), (n,) → a number

    F = Σ_c n_c ‖μ_c − μ‖² / Σ_i ‖x_i − μ_{y_i}‖², the trace of the scatter between classes over the trace of the scatter
    within classes. It is infinite if every class is a single point, and 0 if all points are equal.
    """
    rows = embedding.astype(np.float64)
    _, firsts, numbers, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    # Offsets from an image of the same class are exactly 0 if the class is a single point, without rounding errors.
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
    """Map embeddings to the plane with t-SNE, which keeps neighbours close. (n, e) → (n, 2)"""
    from sklearn.manifold import TSNE  # imported here because it is as slow to import as torch

    rows = embedding.astype(np.float64) - embedding[:1]
    spread = np.abs(rows).max(initial=0.0)
    if len(rows) < 2 or spread == 0:
        return np.zeros((len(rows), 2))
    rows = np.pad(rows / spread, ((0, 0), (0, max(0, 2 - rows.shape[1]))))  # it needs two principal components
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    return TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(rows)


def balanced_sample(labels: np.ndarray, count: int) -> np.ndarray:
    """Return the sorted positions of `count` images: the first of each class, equally many of all classes if there are
    enough. (n,) → (≤ count,)"""
    order = labels.argsort(kind="stable")
    counts = np.bincount(labels)
    rank = np.empty_like(order)  # number of images of the same class before each image
    rank[order] = np.arange(len(labels)) - (counts.cumsum() - counts)[labels[order]]
    return np.sort(rank.argsort(kind="stable")[:count])


class Pictures:
    """Converts the images of one data set to PNG files in data URIs. Tables of numbers and texts have no pictures."""

    def __init__(self, images: Images):
        self.exist = len(images.shape) == 3 and images.shape[0] in (1, 3) and images.shape[1:] != (1, 1)
        self.low, self.high = 0.0, 255.0
        if images.pixels.dtype != torch.uint8:
            self.low, self.high = (float(end) for end in images.all_pixels.aminmax())

    def each(self, pixels: Tensor, size: int) -> list[Image.Image]:
        """Return pictures of at most `size` pixels per side, from values in the range of the data set. (n, c, h, w)"""
        shares = (pixels.cpu().double() - self.low) / (self.high - self.low or 1.0)
        values = (shares * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
        found = [Image.fromarray(value.squeeze(2) if value.shape[2] == 1 else value) for value in values]
        for picture in found:
            picture.thumbnail((size, size))
        return found

    def sheet(self, pixels: Tensor) -> dict[str, Any] | None:
        """Return one picture with all images, row by row, or None if the data set has no pictures."""
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
    """Return the representatives of each class as data URIs or as texts; empty if the method has none."""
    method = model.method
    if not isinstance(method, FaustRepresentative):
        return []
    classes = method.images.view(method.classes, method.count, *model.shape)[:, :PORTRAITS]
    if model.tokeniser is not None:
        return [model.tokeniser.decode(texts) for texts in classes.long()]
    if model.scaling is None or not pictures.exist:
        return []
    classes = classes * model.scaling.deviation + model.scaling.mean
    return [[data_uri(picture) for picture in pictures.each(images, PORTRAIT)] for images in classes]


def network_in_words(model: Model) -> str:
    """Describe the network, such as "3 × 500, embedding 256" or "vgg 64–128, embedding 256"."""
    settings = model.recipe.network
    alike = len(set(settings.widths)) == 1
    widths = f"{len(settings.widths)} × {settings.widths[0]}" if alike else "–".join(map(str, settings.widths))
    kind = "" if settings.kind == "dense" else f"{settings.kind} "
    first = model.method.network[0]
    projected = first.projection is not None
    return kind + (f"{widths}, embedding {settings.embedding}" if projected else widths)


def _changed(recipe: Recipe) -> dict[str, Any]:
    """Return the values that differ from the defaults, those of the method for options, by dotted key."""
    defaults = replace(Recipe(), method=recipe.method, options={})
    named = {"method": recipe.method} if recipe.method != Recipe().method else {}
    return named | {key: value for key, (value, _) in differences(recipe, defaults).items()}
