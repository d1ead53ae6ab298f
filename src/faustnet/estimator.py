"""FAUST as an estimator of scikit-learn's, in memory: it writes no files, and prints nothing unless it is told to."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from faustnet.data import DataSet, Images, ImageSource
from faustnet.errors import FaustnetError
from faustnet.methods import build, some_positions
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed, recipe_from
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import all_scores, chunks, evaluating
from faustnet.training.history import Epoch

LARGEST_BATCH = 256  # that is taken by itself
MEASURED = 2000  # training samples that the sharpness of probabilities is measured on
CPU = torch.device("cpu")


class BadInput(FaustnetError, ValueError):
    """A user's mistake that scikit-learn, too, knows as one."""


class FaustClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):
    """A classifier whose layers are trained one by one, by similarity: FAUST with representatives.

    >>> cross_val_score(FaustClassifier(random_state=0), *load_wine(return_X_y=True)).mean()

    It takes tables of numbers, (n, d), which it brings to mean 0 and variance 1 column by column, and images, (n, h, w)
    or (n, c, h, w), as bytes or as other numbers. Labels are of any type.

    Parameters
    ----------
    widths : the units of each layer.
    embedding : how many numbers each layer's embedding has.
    epochs : how often all samples are seen.
    batch_size : samples in a batch, at most all of them; "auto" grows with the root of their number.
    learning_rate, weight_decay : of AdamW; the rate falls to 0 along a half cosine.
    dropout : the share of what a layer passes on that is left out while the next one trains.
    label_smoothing : the share of each label that all classes have alike in the loss.
    representatives : samples that stand for a class, or all of the smallest class if that has fewer.
    scale : what squared distances are multiplied by in the loss.
    transform_layers : the layer or layers, numbered from 1, whose embeddings `transform` gives side by side; None for all.
    random_state : what the weights and the order of the samples are drawn from.
    device : "cpu", "cuda", "mps", or "auto" for the best there is: where it trains. The fitted model is on the CPU.
    verbose : whether to print each epoch's loss.

    Attributes
    ----------
    classes_ : the labels, sorted; then those that were added. (C,)
    model_ : the trained `Model`, in double precision; a table's columns are the channels of one-pixel images.
    scaler_ : what a table goes through before; None for images.
    sharpness_ : what joined scores are multiplied by to be logarithms of odds.
    loss_curve_ : each epoch's loss, the mean over the layers.
    n_iter_ : epochs that it was trained for.
    n_features_in_ : columns of a table, or pixels of an image in all channels.
    feature_names_in_ : the columns' names, where they are all strings. (d,)
    """

    def __init__(
        self,
        widths: Sequence[int] = (100, 100),
        *,
        embedding: int = 32,
        epochs: int = 20,
        batch_size: int | str = "auto",
        learning_rate: float = 3e-3,
        weight_decay: float = 0.0,
        dropout: float = 0.0,
        label_smoothing: float = 0.1,
        representatives: int = 5,
        scale: float = 0.02,
        transform_layers: int | Sequence[int] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        verbose: bool = False,
    ):
        self.widths = widths
        self.embedding = embedding
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.label_smoothing = label_smoothing
        self.representatives = representatives
        self.scale = scale
        self.transform_layers = transform_layers
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> "FaustClassifier":
        """Train on samples and their labels, (n, …) and (n,)."""
        X, y = self._checked(X, y, reset=True)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise BadInput("There is only one class, and nothing to tell it from: give samples of two classes or more.")
        self.scaler_ = StandardScaler().fit(X) if X.ndim == 2 else None
        pixels = self._pixels(X)
        images = Images(pixels if pixels.dtype == torch.uint8 else pixels.float(), torch.from_numpy(numbers))
        recipe = self._recipe(np.bincount(numbers))
        names = tuple(map(str, self.classes_))
        model, trainer = set_up(recipe, DataSet(recipe.dataset, names, images, images), choose_device(self.device))
        trainer.run(lambda: None, self._report)
        self.model_ = _at_rest(model)
        self.sharpness_ = _sharpness(self.model_, images)
        self.loss_curve_ = [_mean_loss(epoch) for epoch in trainer.history]
        self.n_iter_ = len(trainer.history)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The labels of samples. (n, …) → (n,)"""
        best = self._log_odds(X).argmax(axis=1)
        return self.classes_[best]

    def decision_function(self, X: Any) -> np.ndarray:
        """How much it believes in each class: all layers' scores, times `sharpness_`. (n, …) → (n, C). For two classes, by
        how much it believes in the second more than in the first. (n, …) → (n,)"""
        odds = self._log_odds(X)
        return odds[:, 1] - odds[:, 0] if len(self.classes_) == 2 else odds

    def predict_proba(self, X: Any) -> np.ndarray:
        """The softmax of how much it believes in each class. (n, …) → (n, C)

        A layer is trained to give two classes at distances a and b the odds exp(scale · (b² − a²)), that is
        exp(scale · (a + b) · (b − a)). Scores are distances as they are, so to become the logarithm of odds their
        differences are multiplied by scale · (a + b), of the two nearest classes: its mean over training samples and
        layers. Layers see the same sample, so their joint belief is their mean.
        """
        return torch.from_numpy(self._log_odds(X)).softmax(dim=1).numpy()

    def add_class(self, name: Any, X: Any) -> "FaustClassifier":
        """Learn one class more from a few samples, without training: the mean of their embeddings stands for it. It becomes
        the last of `classes_`, and the others are predicted as before, where they are nearer. (n, …)"""
        images = self._source(X).images
        known = type(self.classes_[0]).__name__
        kind = self.classes_.dtype.kind
        label = np.asarray([name], dtype=object if kind == "O" else None)
        if label.ndim != 1 or label.dtype.kind != kind or (kind == "O" and type(name).__name__ != known):
            raise BadInput(f"The labels here are of the type {known}, which {name!r} is not: give the new class such a one.")
        self.model_ = self.model_.add_class(str(label[0]), images.all_pixels)
        self.classes_ = np.concatenate([self.classes_, label])
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The embeddings of samples, of one layer after the other. (n, …) → (n, Σ e_i)"""
        source = self._source(X)
        wanted, method = self._transformed, self.model_.method
        with evaluating(method):
            walks = [list(method.network.embeddings(source.plain(chunk))) for chunk in chunks(source, method)]
        return torch.cat([torch.cat([walk[number - 1] for number in wanted], dim=1) for walk in walks]).numpy()

    @property
    def _transformed(self) -> list[int]:
        """The layers whose embeddings are asked for, from 1."""
        count = len(self.model_.method.network)
        numbers = list(range(1, count + 1))
        wanted = numbers if self.transform_layers is None else np.atleast_1d(self.transform_layers).tolist()
        if not wanted or not set(wanted) <= set(numbers):
            raise BadInput(f"There are no such layers as {wanted}: transform_layers names some from 1 to {count}.")
        return wanted

    @property
    def _n_features_out(self) -> int:
        sizes = self.model_.method.network.embedding_sizes
        return sum(sizes[number - 1] for number in self._transformed)

    def _checked(self, X: Any, y: Any = "no_validation", *, reset: bool = False) -> Any:
        """A table in double precision, or images as bytes or in single precision; and labels, where there are any."""
        if getattr(X, "ndim", None) in (3, 4) or (isinstance(X, list | tuple) and np.ndim(X) in (3, 4)):
            kind = {"ensure_2d": False, "allow_nd": True, "dtype": [np.float32, np.uint8]}
        else:
            kind = {"dtype": np.float64}
        found = validate_data(self, X, y, reset=reset, **kind)
        if reset and found[0].ndim > 2:
            self.n_features_in_ = int(np.prod(found[0].shape[1:]))
        return found

    def _pixels(self, X: np.ndarray) -> Tensor:
        """Samples as the model knows them. (n, …) → (n, c, h, w)"""
        if self.scaler_ is not None:
            X = self.scaler_.transform(X)[:, :, None, None]
        elif X.ndim == 3:
            X = X[:, None]
        return torch.from_numpy(np.array(X, order="C"))  # a copy, since torch wants what may be written to

    def _source(self, X: Any) -> ImageSource:
        check_is_fitted(self)
        X = self._checked(X)
        if (X.ndim == 2) != (self.scaler_ is not None):
            known = "a table" if self.scaler_ is not None else f"images of {'×'.join(map(str, self.model_.shape))}"
            raise BadInput(f"This classifier was fitted to {known}: give it the same, not {X.ndim} dimensions.")
        return self.model_.source(self.model_.images(self._pixels(X)))

    def _log_odds(self, X: Any) -> np.ndarray:
        source = self._source(X)
        return self.sharpness_ * self.model_.method.joined(all_scores(self.model_.method, source)).numpy()

    def _recipe(self, counts: np.ndarray) -> Recipe:
        """Of a training on so many samples of each class."""
        samples, smallest = int(counts.sum()), int(counts.min())
        table = {
            "dataset": "arrays",
            "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
            "options": {
                "representatives": self.representatives,
                "choice": "k-means",
                "scale": self.scale,
                "label_smoothing": self.label_smoothing,
            },
            "network": {"widths": self.widths, "embedding": self.embedding, "dropout": self.dropout},
            "optimiser": {"name": "adamw", "learning_rate": self.learning_rate, "weight_decay": self.weight_decay},
            "training": {
                "epochs": self.epochs,
                "batch_size": _batch_size(samples) if self.batch_size == "auto" else self.batch_size,
                "evaluate_every": self.epochs,
            },
        }
        asked = recipe_from(_plain(table))
        fitting = {
            "options.representatives": min(asked.options["representatives"], smallest),
            "training.batch_size": min(asked.training.batch_size, samples),
        }
        return changed(asked, fitting)

    def _report(self, epoch: Epoch) -> None:
        if self.verbose:
            print(f"Epoch {epoch.epoch}, loss {_mean_loss(epoch):.4f}")


def _batch_size(samples: int) -> int:
    """About twice the root of how many there are, so that they fill whole batches but for a few."""
    batches = max(1, round(samples / min(LARGEST_BATCH, 2 * samples**0.5)))
    return samples // batches


def _at_rest(model: Model) -> Model:
    """The trained model on the CPU, in double precision as scikit-learn's estimators are, and without what only training
    needs."""
    with seeded(0):
        method = build(model.recipe.method, model.shape, len(model.class_names), model.recipe.network, model.recipe.options)
    method.load_state_dict(model.method.state_dict())
    return replace(model.to(CPU), method=method.double().eval())


def _sharpness(model: Model, images: Images) -> float:
    """What joined scores are multiplied by to be logarithms of odds; `predict_proba` says why."""
    source = model.source(images)
    some = model.source(images.take(some_positions(source, MEASURED)))
    nearest = -all_scores(model.method, some).topk(2, dim=2).values  # (layers, n, 2)
    return float(model.recipe.options["scale"] * nearest.sum(dim=2).mean() / len(nearest))


def _mean_loss(epoch: Epoch) -> float:
    """Over the layers."""
    return fmean(loss for loss in epoch.losses if loss is not None)


def _plain(value: Any) -> Any:
    """Numpy's numbers, which a grid of parameters is often made of, as Python's."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
