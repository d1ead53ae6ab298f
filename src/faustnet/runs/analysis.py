"""Analysis of a finished run, as values for JSON: the embeddings of test images in each layer, and the images."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faustnet.data import Images
from faustnet.errors import require
from faustnet.methods import Faust
from faustnet.runs.examples import balanced_sample, described_scores, further_examples
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.pictures import Pictures, representatives
from faustnet.runs.recipes import Recipe, as_table, differences, write_recipe
from faustnet.training.evaluation import (
    Answers,
    all_embeddings,
    all_scores,
    collect_answers,
    early_exits_of,
    evaluation_of,
)

PERPLEXITY = 30.0  # of t-SNE, if there are enough images
ITERATIONS = 500  # of t-SNE in a report; more of them hardly change a map of 1,000 images

Say = Callable[[str], None]


def inspect_run(
    run: Run,
    *,
    device: torch.device,
    data_dir: Path | None,
    points: int = 1000,
    dataset: str | None = None,
    say: Say = lambda step: None,
) -> dict[str, Any]:
    """Analyse a finished run, and `say` what is being done.

    The result contains the recipe, environment, history and metrics of the run; its accuracy by layer and with early exit;
    the Fisher score of each layer, and a map of its embeddings of `points` test images; and the pictures or texts of these
    and of wrongly predicted test images, with the scores of each layer. The test images are those of `dataset`, or by
    default those of the run; with `dataset`, the accuracies among the metrics are those on `dataset`.
    """
    require(points >= 1, f"points must be at least 1, got {points}.")
    say("reading the model and the data")
    model = run.model_as_trained(device)
    data = model.read_data(dataset, data_dir)
    test = data.test.to(device)
    source = model.source(test)
    say(f"predicting {len(test):,} test {'texts' if model.tokeniser else 'images'}")
    answers = collect_answers(model.method, source)
    found = asdict(evaluation_of(model.method, answers))
    measured = {key: found[key] for key in ("layer_accuracy", "first_layers_accuracy", "confusion")}
    metrics = run.metrics | ({"test_accuracy": found["accuracy"], **measured} if dataset is not None else {})
    mapped = balanced_sample(answers.labels.numpy(), points)
    return {
        "name": run.folder.resolve().name,
        "dataset": data.name,
        "network": network_in_words(model),
        "recipe": as_table(model.recipe),
        "recipe_file": write_recipe(model.recipe),
        "changed": _changed(model.recipe),
        "environment": run.environment,
        "history": run.history,
        "metrics": metrics,
        "title": type(model.method).title,
        "is_faust": isinstance(model.method, Faust),
        "learners": model.method.learners,
        "class_names": list(model.class_names),
        "weights": list(model.method.weights),
        "evaluation": {"images": len(test), **found},
        "early_exit": _early_exit(model, answers),
        "layers": _layers(model, test, mapped, say),
        "mapped": len(mapped),
        **_examples(model, test, answers, mapped),
    }


def _layers(model: Model, test: Images, mapped: np.ndarray, say: Say) -> list[dict[str, Any]]:
    """Return the Fisher score of each layer and a map, which begins with the map of the layer before, so that images stay
    at their places if possible."""
    embeddings, labels = layer_embeddings(model, test), test.labels.cpu().numpy()
    found: list[dict[str, Any]] = []
    places = None
    for number, embedding in enumerate(embeddings, start=1):
        say(f"drawing the map of layer {number} of {len(embeddings)}")
        score = fisher_score(embedding, labels)
        places = tsne(embedding[mapped], start=places, iterations=ITERATIONS)
        found.append(
            {
                "name": f"layer {number}",
                "fisher": score if math.isfinite(score) else None,  # JSON has no infinity
                "map": np.round(places.astype(np.float64), 2).tolist(),
            }
        )
    return found


def _examples(model: Model, test: Images, answers: Answers, mapped: np.ndarray) -> dict[str, Any]:
    """Describe the images in the map, then some further ones, most of them predicted wrongly."""
    labels, predicted = answers.labels.numpy(), answers.joined.numpy()
    positions = torch.from_numpy(np.concatenate([mapped, further_examples(labels, predicted, mapped)]))
    shown = test.take(positions)
    pictures = Pictures(test)
    return {
        "positions": positions.tolist(),
        "labels": answers.labels[positions].tolist(),
        "predicted": answers.joined[positions].tolist(),
        "votes": answers.alone[:, positions].tolist(),
        "first_votes": answers.first[:, positions].tolist(),
        "scores": described_scores(model.method, all_scores(model.method, model.source(shown)), shown.labels),
        "sheet": pictures.sheet(shown.all_pixels),
        "texts": model.tokeniser.decode(shown.all_pixels) if model.tokeniser else None,
        "representatives": representatives(model, pictures),
    }


def _early_exit(model: Model, answers: Answers) -> list[dict[str, Any]] | None:
    """Return accuracy and cost of early exit; None for methods without it, and for a single layer or class."""
    method = model.method
    if not isinstance(method, Faust) or len(method.network) < 2 or method.classes < 2:
        return None
    return [asdict(line) for line in early_exits_of(method, answers)]


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


def fisher_definitions(embedding: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the common definitions of a Fisher score by their names. With the scatter matrices S_b between and S_w within
    classes, they are tr(S_b) / tr(S_w), which is `fisher_score`; tr(S_w⁻¹ S_b); and the mean over the dimensions of the
    ratios of their diagonals. Dimensions without scatter within classes are left out. (n, e), (n,)"""
    rows = embedding.astype(np.float64)
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.stack([rows[numbers == number].mean(axis=0) for number in range(len(counts))])
    inside, centred = rows - means[numbers], means - rows.mean(axis=0)
    within, between = inside.T @ inside, (centred * counts[:, None]).T @ centred
    varied = within.diagonal() > 0
    return {
        "ratio of traces": fisher_score(embedding, labels),
        "trace of the quotient": float(np.trace(np.linalg.pinv(within, hermitian=True) @ between)),
        "mean over dimensions": float(np.mean(between.diagonal()[varied] / within.diagonal()[varied])),
    }


def tsne(embedding: np.ndarray, seed: int = 0, *, start: np.ndarray | None = None, iterations: int = 1000) -> np.ndarray:
    """Map embeddings to the plane with t-SNE, which keeps neighbours close. (n, e) → (n, 2)

    It begins with the map `start`, or with the first two principal components.
    """
    from sklearn.manifold import TSNE  # imported here because it is as slow to import as torch
    from threadpoolctl import threadpool_limits

    rows = embedding.astype(np.float64) - embedding[:1]
    spread = np.abs(rows).max(initial=0.0)
    if len(rows) < 2 or spread == 0:
        return np.zeros((len(rows), 2))
    rows = np.pad(rows / spread, ((0, 0), (0, max(0, 2 - rows.shape[1]))))  # it needs two principal components
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    width = 0.0 if start is None else float(start[:, 0].std())
    init = "pca" if start is None or width == 0 else (start * (1e-4 / width)).astype(np.float32)  # as wide as with "pca"
    # Its threads wait for each other in every iteration: on a busy machine, two of them take several times as long as one.
    with threadpool_limits(1):
        return TSNE(init=init, perplexity=perplexity, random_state=seed, max_iter=iterations).fit_transform(rows)


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
