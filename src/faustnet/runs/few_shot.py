"""Few-shot evaluation of a trained model: how well it recognises classes that it was not trained on from a few images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.data import DataSet, Images, ImageSource
from faustnet.methods import Faust, Method
from faustnet.runs.model import Model
from faustnet.training.evaluation import chunks
from faustnet.training.few_shot import Features, Task, draw_episodes, mean_interval, summary

PIXELS = "pixels"


def all_images(data: DataSet) -> Images:
    """Return the training and test images of a data set together."""
    parts = data.train, data.test
    return Images(torch.cat([part.all_pixels for part in parts]), torch.cat([part.labels for part in parts]))


def model_features(model: Model, images: Images, layers: Sequence[int] | None = None, *, unit: bool = True) -> Features:
    """Return the embeddings by which a model compares images.

    FAUST compares them as after `Model.add_classes`: by the embeddings of all layers, by their weights, or by those of some
    layers, numbered from 1, with equal weights. Other methods compare them by the features of the last layer, or of some
    layers. These features are normalised to length 1 if `unit`, and so are their means.
    """
    source, method = model.source(images.to(model.device)), model.method
    if isinstance(method, Faust):
        return _faust_features(method, source, layers)
    numbers = layers or [len(method.network)]
    found = _embeddings(method, source, numbers)
    if not unit:
        return Features(_names(numbers), found)
    return Features(_names(numbers), [functional.normalize(one, dim=1) for one in found], [1.0] * len(found))


def _faust_features(method: Faust, source: ImageSource, layers: Sequence[int] | None) -> Features:
    numbers = layers or range(1, len(method.network) + 1)
    found, mirrored = _embeddings(method, source, numbers), None
    if method.prediction.mirror:
        flipped = replace(source.images, pixels=source.images.all_pixels.flip(-1))
        mirrored = _embeddings(method, replace(source, images=flipped), numbers)
    lengths = method.new_lengths and [method.new_lengths[number - 1] for number in numbers]
    return Features(_names(numbers), found, lengths, None if layers else method.weights, mirrored)


def _names(numbers: Sequence[int]) -> list[str]:
    return [f"layer {number}" for number in numbers]


def _embeddings(method: Method, source: ImageSource, numbers: Sequence[int]) -> list[Tensor]:
    """Return the embeddings of all images in these layers. → (n, e_i)"""
    found = torch.cat([method.embed(source.plain(chunk), numbers) for chunk in chunks(source, method)])
    sizes = method.network.embedding_sizes
    return list(found.split([sizes[number - 1] for number in numbers], dim=1))


def pixel_features(images: Images) -> Features:
    """Return the pixels of images as features, to compare images without a model."""
    return Features([PIXELS], [images.all_pixels.flatten(1).float()])


def measure_task(
    features: Features, task: Task, labels: Tensor, class_names: Sequence[str], episodes: int, seed: int
) -> dict[str, Any]:
    """Return the accuracy of a task over episodes of images with these labels, as values for JSON: its mean and variance,
    and the means of each layer alone and of the first 1, 2, … layers together. (n,)"""
    alone, first, joint = features.accuracies(draw_episodes(task, labels, class_names, episodes, seed))
    return {
        "protocol": task.protocol,
        "ways": task.ways,
        "shots": task.shots,
        "queries": task.queries,
        "episodes": episodes,
        **summary(joint),
        "layers": list(features.names),
        "layer_accuracy": alone.mean(dim=1).tolist(),
        "first_layers_accuracy": first.mean(dim=1).tolist(),
    }


def with_interval(measured: dict[str, Any]) -> dict[str, Any]:
    """Return what `measure_task` measured with a 95 % interval in place of the variance."""
    mean, interval = mean_interval([measured["mean"]], [measured["variance"]], [measured["episodes"]])
    others = {key: value for key, value in measured.items() if key not in ("mean", "variance")}
    return {"mean": mean, "interval": list(interval), **others}
