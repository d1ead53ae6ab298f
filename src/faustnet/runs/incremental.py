"""Training on samples that arrive in parts, without a data set in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from faustnet.data import Images, ImageSource
from faustnet.methods import Method, Source
from faustnet.methods.faust import FaustRepresentative
from faustnet.nn.references import repeat_rows
from faustnet.runs.model import Model
from faustnet.runs.own import OwnMethod
from faustnet.runs.recipes import Recipe
from faustnet.runs.start import started
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import evaluating
from faustnet.training.optimisers.updates import Updates


@dataclass(frozen=True)
class KeptRows:
    """A bounded sample of the scaled inputs, the same number of each class; a `Source` of representatives."""

    rows: Tensor  # (C · K, …), class by class
    labels: Tensor  # (C · K,)
    class_names: Sequence[str]

    @classmethod
    def of(cls, by_class: Sequence[Tensor], count: int, class_names: Sequence[str]) -> "KeptRows":
        """Return `count` rows of each class: its first ones, repeated if there are fewer. (n_c, …) each"""
        rows = torch.cat([repeat_rows(own[:count], count) for own in by_class])
        return cls(rows, torch.arange(len(by_class)).repeat_interleave(count), class_names)

    def plain(self, index: Tensor) -> Tensor:
        return self.rows[index]

    augmented = plain

    def to(self, device: torch.device) -> "KeptRows":
        return KeptRows(self.rows.to(device), self.labels.to(device), self.class_names)


@dataclass(frozen=True)
class Learned:
    """Result of one pass over samples."""

    model: Model
    loss: float  # mean of all samples and layers
    optimiser: dict[str, Tensor]  # state of the optimiser


def learn(
    recipe: Recipe,
    images: Images,
    class_names: Sequence[str],
    device: torch.device,
    before: Learned | None,
    own: OwnMethod | None = None,
) -> Learned:
    """Train once on labelled images, in random order, with a constant learning rate.

    The representatives of a class are its first images, of this pass or of an earlier one. The classes must include those
    of the model `before`, and every class needs an image. The method must be one with representatives.
    """
    model = Model.fresh(recipe, images, class_names, own=own)
    if before is not None:
        model = started(model, before.model)
    model = model.to(device)
    source = model.source(images.to(device))
    method = model.method
    assert isinstance(method, FaustRepresentative)
    rows = [_samples(source, number, name, before) for number, name in enumerate(class_names)]
    kept = KeptRows.of(rows, method.count, class_names).to(device)
    updates = recipe.optimiser.create().updates(method, [method.parameters()])
    updates.restore(before.optimiser if before is not None else {})
    with seeded(recipe.seed, device):
        method.start(kept)
        loss = _train(method, source, updates, recipe)
    with evaluating(method):
        method.make_ready(source)
    return Learned(model, loss, {name: tensor.cpu().clone() for name, tensor in updates.state().items()})


def _samples(source: ImageSource, number: int, name: str, before: Learned | None) -> Tensor:
    """Return the scaled images of a class that may be representatives: the present ones, then the new ones. → (n, …)"""
    new = source.plain((source.labels == number).nonzero()[:, 0]).float().cpu()
    if before is None or name not in before.model.class_names:
        return new
    present = before.model.method.state_dict()["images"].unflatten(0, (len(before.model.class_names), -1))
    own = present[before.model.class_names.index(name)].float().cpu().reshape(-1, *new.shape[1:])
    different = [row for place, row in enumerate(own) if not any(torch.equal(row, other) for other in own[:place])]
    return torch.cat([torch.stack(different), new])


def _train(method: Method, train: Source, updates: Updates, recipe: Recipe) -> float:
    """Train on all images, and return the mean loss."""
    rate, total = torch.tensor(recipe.optimiser.learning_rate), 0.0
    method.train()
    for index in torch.randperm(len(train.labels)).to(train.labels.device).split(recipe.training.batch_size):
        for loss in method.losses(train.augmented(index), train.labels[index]):
            loss.sum().backward()
            updates.step(rate)
            total += float(loss.detach().sum()) * len(index)
    return total / (len(method.learners) * len(train.labels))
