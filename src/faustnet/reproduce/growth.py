"""Models whose classes come over time: how classes are added to a trained model in steps, and how well it predicts."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.data import DataSet, Images, ImageSource
from faustnet.data.sources import ArraySource
from faustnet.errors import require
from faustnet.methods import Method
from faustnet.methods.faust import Faust, RepresentativeMethod
from faustnet.nn.structure import Structure
from faustnet.runs.model import Model
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import all_embeddings, chunks, evaluate, evaluating

VARIANTS = {
    "added": "FAUST, references added",
    "means": "FAUST, all references are means",
    "fine-tuned": "FAUST, heads fine-tuned",
    "backprop": "backprop, nearest class mean",
}
EXEMPLARS = 20  # images of each class that are kept for fine-tuning
STEPS, BATCH, RATE = 200, 128, 1e-3  # of fine-tuning, each time that classes are added


def faust_steps(model: Model, data: DataSet, counts: Sequence[int], seed: int) -> Iterator[dict[str, Any]]:
    """Add the classes of the data set in steps, up to each of these numbers of classes, and yield accuracies.

    The data have the model's classes first. The variants are: each new class gets the mean embedding of its training images
    as its reference ("added"); the old classes do too ("means"); or the heads are trained after each step ("fine-tuned").
    """
    require(
        isinstance(model.method, Faust),
        f"--base must be a recipe of a FAUST method, got {model.method.name}: choose another one.",
    )
    first, device = counts[0], model.device
    train = data.train.to(device)
    means = class_means(all_embeddings(model.method, model.source(train)), train.labels, len(data.class_names))
    memory = exemplars(train, len(data.class_names), seed)
    added = tuned = model
    for before, count in pairwise([0, *counts]):
        if before:
            new = {data.class_names[number]: train.all_pixels[train.labels == number] for number in range(before, count)}
            added = added.add_classes(new)
            tuned = fine_tuned(tuned.add_classes(new), memory.take(known(memory, count)), seed)
        test = data.test.take(known(data.test, count)).to(device)
        variants = {"added": added, "means": with_references(added, means, count), "fine-tuned": tuned}
        for variant, changed in variants.items():
            confusion = torch.tensor(evaluate(changed.method, changed.source(test)).confusion, dtype=torch.float64)
            yield {"variant": variant, "classes": count, **shares(confusion.diagonal(), confusion.sum(dim=1), first)}


def backprop_steps(model: Model, data: DataSet, counts: Sequence[int], seed: int) -> Iterator[dict[str, Any]]:
    """Predict the class whose mean of normalised features is nearest, and yield the accuracy for each of these numbers of
    classes. The means are those of the training images; nothing is trained."""
    train, test = data.train.to(model.device), data.test.to(model.device)
    means = class_means([features(model, train)], train.labels, len(data.class_names))[0]
    similar = features(model, test) @ functional.normalize(means, dim=1).T
    for count in counts:
        mine = known(test, count)
        labels = test.labels[mine]
        right = similar[mine, :count].argmax(dim=1) == labels
        found = torch.bincount(labels[right], minlength=count).double(), torch.bincount(labels, minlength=count).double()
        yield {"variant": "backprop", "classes": count, **shares(*found, counts[0])}


def known(images: Images, count: int) -> Tensor:
    """Return the positions of the images of the first classes. → (n,)"""
    return (images.labels < count).nonzero()[:, 0]


def features(model: Model, images: Images) -> Tensor:
    """Return the normalised features of the last layer, averaged with those of the mirror images if the model predicts from
    both. → (n, e)"""
    method, source = model.method, model.source(images)
    with evaluating(method):
        return torch.cat([_features(method, source.plain(chunk)) for chunk in chunks(source, method)])


def _features(method: Method, x: Tensor) -> Tensor:
    found = functional.normalize(method.network.embed(x), dim=1)
    if method.prediction.mirror:
        found = found + functional.normalize(method.network.embed(x.flip(-1)), dim=1)
    return functional.normalize(found, dim=1)


def class_means(embedded: Sequence[Tensor], labels: Tensor, classes: int) -> list[Tensor]:
    """Return the mean of the embeddings of each class in each layer. (n, e_i) → (C, e_i)"""
    counts = torch.bincount(labels, minlength=classes).unsqueeze(1)
    return [layer.new_zeros(classes, layer.shape[1]).index_add_(0, labels, layer) / counts for layer in embedded]


def with_references(model: Model, means: Sequence[Tensor], count: int) -> Model:
    """Return a copy of a FAUST model whose references of all `count` classes are these vectors. (C, e_i) each"""
    method = copy.deepcopy(model.method)
    assert isinstance(method, Faust)
    method.references.set(layer[:count].unsqueeze(1).expand(-1, method.count, -1) for layer in means)
    return replace(model, method=method)


def shares(right: Tensor, counts: Tensor, first: int) -> dict[str, float | None]:
    """Return the accuracy on all classes, on the first ones and on the others; None if there are no others.

    `right` are the numbers of correct predictions and `counts` those of images of each class. (C,), (C,)
    """
    parts = {"all": slice(None), "old": slice(first), "new": slice(first, None)}
    totals = {name: counts[part].sum() for name, part in parts.items()}
    return {name: (right[part].sum() / totals[name]).item() if totals[name] else None for name, part in parts.items()}


def exemplars(train: Images, classes: int, seed: int) -> Images:
    """Draw the images of each class that are kept for fine-tuning."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(train), generator=generator).to(train.labels.device)
    own = [drawn[train.labels[drawn] == number][:EXEMPLARS] for number in range(classes)]
    return train.take(torch.cat(own))


def fine_tuned(model: Model, memory: Images, seed: int) -> Model:
    """Return a copy of a FAUST model whose heads were trained on these images, each by the loss of its own layer.

    The bodies stay as they are, with the statistics of their batch norms, and there is no dropout before them.
    Representatives stay the same images; those of new classes are the first of their examples.
    """
    method = copy.deepcopy(model.method)
    source = ImageSource(memory, model.scaling, model.class_names, model.recipe.data.augmentation)
    plain = _with_representatives(method, model.source(memory))
    with _fixed_bodies(method), seeded(seed, model.device):
        method.prepare(plain)
        optimisers = method.optimisers(lambda parameters: torch.optim.AdamW(parameters, lr=RATE))
        require(bool(optimisers), "network.embedding must be at least 1, because only heads are trained, got 0.")
        decays = [torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS) for optimiser in optimisers]
        for _ in range(STEPS):
            index = torch.randint(len(memory), (BATCH,), device=memory.labels.device)
            method.train_step(source.augmented(index), memory.labels[index], optimisers)
            for decay in decays:
                decay.step()
        method.make_ready(plain)
    method.mark_ready()  # with the parameters of the bodies
    return replace(model, method=method.eval())


class FixedBody(nn.Module):
    """A body that is not trained. It stays in evaluation mode, because it is no part of this module."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.call = body.eval().__call__

    @torch.no_grad()
    def forward(self, rows: Structure) -> Structure:
        return self.call(rows)


@contextmanager
def _fixed_bodies(method: Method) -> Iterator[None]:
    """Train only the heads of a method in this block."""
    before = [(layer, layer.body, layer.dropout) for layer in method.network]
    for layer, body, _ in before:
        layer.body, layer.dropout = FixedBody(body), 0.0
    yield
    for layer, body, dropout in before:
        layer.body, layer.dropout = body, dropout


def _with_representatives(method: Method, source: ImageSource) -> ArraySource:
    """Return all images of a source, and before them the representatives of the method, if it has any. They stay its
    representatives."""
    x = source.plain(torch.arange(len(source.labels), device=source.labels.device))
    labels = source.labels
    if isinstance(method, RepresentativeMethod):
        own = torch.arange(method.classes, device=labels.device).repeat_interleave(method.count)
        x, labels = torch.cat([method.images, x]), torch.cat([own, labels])
        method.chosen = tuple(range(len(own)))
    return ArraySource(x, labels, source.class_names)
