"""FAUST as a scikit-learn estimator. It works in memory and writes no files."""

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
from faustnet.runs.arrays import BadInput, array_recipe, sharpness, speaking_of_arguments
from faustnet.runs.incremental import Learned, learn
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.training.evaluation import all_scores, chunks, evaluating
from faustnet.training.history import Epoch

__all__ = ["BadInput", "FaustClassifier"]


class FaustClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):
    """FAUST classifier with representatives. Each layer is trained with its own loss.

    >>> cross_val_score(FaustClassifier(random_state=0), *load_wine(return_X_y=True)).mean()

    The input is a table of numbers, (n, d), whose columns are scaled to mean 0 and variance 1, or images, (n, h, w) or
    (n, c, h, w), of uint8 or float. Labels can have any type.

    Parameters
    ----------
    widths : number of units of each layer.
    embedding : size of the embedding of each layer.
    epochs : number of passes over all samples.
    batch_size : samples per batch, or all samples if there are fewer; "auto": about twice the square root of their number.
    learning_rate, weight_decay : of AdamW; the learning rate follows a half cosine down to 0.
    dropout : dropout probability of the output of each layer.
    label_smoothing : label smoothing of the loss.
    representatives : number of representatives of each class, at most the size of the smallest class.
    scale : factor of the squared distances in the loss.
    warm_start : whether `fit` continues from the weights of the last `fit`, for `epochs` more, instead of starting anew.
    transform_layers : layer or layers, numbered from 1, whose embeddings `transform` concatenates; None for all.
    random_state : seed of the weights and of the order of the samples.
    device : device for training: "cpu", "cuda", "mps", or "auto" for the fastest. The fitted model is on the CPU.
    verbose : whether to print the loss of each epoch.

    Attributes
    ----------
    classes_ : sorted labels, followed by those of added classes. (C,)
    seen_ : positions in `classes_` of the classes of `model_`: after `partial_fit`, those of which there was a sample.
    model_ : trained `Model`, in double precision; the columns of a table are the channels of one-pixel images.
    scaler_ : `StandardScaler` of a table; None for images.
    sharpness_ : factor that turns summed scores into log-odds.
    loss_curve_ : loss of each epoch, the mean over the layers.
    n_iter_ : number of epochs, or of calls of `partial_fit`.
    n_features_in_ : number of columns of a table, or of values of an image.
    feature_names_in_ : names of the columns, if all are strings. (d,)
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
        warm_start: bool = False,
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
        self.warm_start = warm_start
        self.transform_layers = transform_layers
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    loss_curve_: list[float]
    _optimiser_state: dict[str, Tensor]  # of the last call of `partial_fit`

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle; those of version 0.1 have no `warm_start` and `seen_`."""
        known = {"seen_": np.arange(len(state["classes_"]))} if "classes_" in state else {}
        super().__setstate__({"warm_start": False, **known, **state})

    def fit(self, X: Any, y: Any) -> "FaustClassifier":
        """Train on samples and their labels. (n, …), (n,)"""
        start = self.model_ if self.warm_start and hasattr(self, "model_") else None
        X, y = self._checked(X, y, reset=start is None)
        check_classification_targets(y)
        classes, numbers = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise BadInput("y must contain at least two classes, got one class.")
        if start is None:
            self.classes_ = classes
            self.scaler_ = StandardScaler().fit(X) if X.ndim == 2 else None
        elif not np.array_equal(classes, self.classes_):
            raise BadInput(
                f"y must contain the classes of the first fit, {list(self.classes_)}, got {list(classes)}: set "
                "warm_start=False to train from new weights."
            )
        recipe = self._recipe(len(y), int(np.bincount(numbers).min()))
        self._check_same_network(start, recipe)
        images = self._images(X, numbers)
        data = DataSet(recipe.dataset, tuple(map(str, classes)), images, images)
        with speaking_of_arguments():
            model, trainer = set_up(recipe, data, choose_device(self.device), start=start)
        trainer.run(lambda: None, self._print_loss)
        earlier = [] if start is None else self.loss_curve_
        self._keep(model, images, [*earlier, *map(_mean_loss, trainer.history)])
        self.seen_, self._optimiser_state = np.arange(len(classes)), {}
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "FaustClassifier":
        """Train once on samples and their labels, with a constant learning rate. (n, …), (n,)

        The first call needs all `classes`. It also determines the scaling of the input, which later calls do not change. The
        representatives of a class are its first samples. Classes without a sample so far are not predicted.
        """
        first = not hasattr(self, "model_")
        if first and classes is None:
            raise BadInput("classes must contain all labels in the first call of partial_fit, got None.")
        X, y = self._checked(X, y, reset=first)
        check_classification_targets(y)
        if first:
            self._begin(X, classes)
        elif classes is not None and not np.array_equal(np.unique(classes), np.sort(self.classes_)):
            raise BadInput(
                f"classes must be those of the first call of partial_fit, {list(self.classes_)}, got {list(classes)}."
            )
        order = np.argsort(self.classes_)
        places = np.searchsorted(self.classes_, y, sorter=order).clip(max=len(order) - 1)
        numbers = order[places]
        if (unknown := self.classes_[numbers] != y).any():
            raise BadInput(f"y must contain only classes of the first call, {list(self.classes_)}, got {y[unknown][0]!r}.")
        self._learn(X, numbers)
        return self

    def _begin(self, X: np.ndarray, classes: Any) -> None:
        """Prepare for the first call of `partial_fit`."""
        known = np.unique(classes)
        if len(known) < 2:
            raise BadInput(f"classes must contain at least two labels, got {list(known)}.")
        self.classes_ = known
        self.scaler_ = StandardScaler().fit(X) if X.ndim == 2 else None
        self.seen_, self.loss_curve_ = np.arange(0), []

    def _learn(self, X: np.ndarray, numbers: np.ndarray) -> None:
        """Train once on samples with these positions of their labels in `classes_`."""
        model: Model | None = getattr(self, "model_", None)
        before = None if model is None else Learned(model, 0.0, getattr(self, "_optimiser_state", {}))
        seen = np.union1d(self.seen_, numbers).astype(int)
        images, names = self._images(X, np.searchsorted(seen, numbers)), tuple(map(str, self.classes_[seen]))
        recipe = self._recipe(len(X))
        recipe = replace(recipe, seed=recipe.seed + len(self.loss_curve_))  # another order in each call
        self._check_same_network(model, recipe)
        with speaking_of_arguments():
            learned = learn(recipe, images, names, choose_device(self.device), before)
        self._keep(learned.model, images, [*self.loss_curve_, learned.loss])
        self.seen_, self._optimiser_state = seen, learned.optimiser

    def _check_same_network(self, start: Model | None, recipe: Recipe) -> None:
        if start is None:
            return
        for name in ("widths", "embedding"):
            known, asked = getattr(start.recipe.network, name), getattr(recipe.network, name)
            if known != asked:
                raise BadInput(f"{name} must be {known} to train the fitted network further, got {asked}.")

    def _images(self, X: np.ndarray, numbers: np.ndarray) -> Images:
        """Return samples as input of `set_up`. (n, …), (n,)"""
        pixels = self._pixels(X)
        return Images(pixels if pixels.dtype == torch.uint8 else pixels.float(), torch.from_numpy(numbers))

    def _keep(self, model: Model, images: Images, losses: list[float]) -> None:
        """Keep a model on the CPU, in double precision like scikit-learn's estimators, and without training state."""
        self.model_ = Model.from_bytes(model.to_bytes(), torch.float64)
        self.sharpness_ = sharpness(self.model_, images)
        self.loss_curve_, self.n_iter_ = losses, len(losses)

    def predict(self, X: Any) -> np.ndarray:
        """Predict the labels of samples. (n, …) → (n,)"""
        best = self._log_odds(X).argmax(axis=1)
        return self.classes_[best]

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log-odds of each class: the summed scores, times `sharpness_`. (n, …) → (n, C)

        For two classes, return the log-odds of the second minus those of the first. (n, …) → (n,)
        """
        odds = self._log_odds(X)
        return odds[:, 1] - odds[:, 0] if len(self.classes_) == 2 else odds

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the softmax of the log-odds. (n, …) → (n, C)

        A layer is trained to give two classes at distances a and b the odds exp(scale · (b² − a²)), that is
        exp(scale · (a + b) · (b − a)). Scores are negative distances, so their differences become log-odds when they are
        multiplied by scale · (a + b) of the two closest classes. `sharpness_` is the mean of this factor over training
        samples and layers, divided by the number of layers, so that the log-odds of the layers are averaged.
        """
        return torch.from_numpy(self._log_odds(X)).softmax(dim=1).numpy()

    def add_class(self, name: Any, X: Any) -> "FaustClassifier":
        """Add a class from a few samples, without training. (n, …)

        Its reference is the mean of their embeddings. It becomes the last of `classes_`. The scores of the other classes do
        not change.
        """
        images = self._source(X).images
        known = type(self.classes_[0]).__name__
        kind = self.classes_.dtype.kind
        label = np.asarray([name], dtype=object if kind == "O" else None)
        if label.ndim != 1 or label.dtype.kind != kind or (kind == "O" and type(name).__name__ != known):
            raise BadInput(f"name must be of type {known}, like the other labels, got {name!r}.")
        self.model_ = self.model_.add_class(str(label[0]), images.all_pixels)
        self.classes_ = np.concatenate([self.classes_, label])
        self.seen_ = np.append(self.seen_, len(self.classes_) - 1)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the embeddings of samples, layer by layer. (n, …) → (n, Σ e_i)"""
        source = self._source(X)
        wanted, method = self._transformed, self.model_.method
        with evaluating(method):
            by_chunk = [list(method.network.embeddings(source.plain(chunk))) for chunk in chunks(source, method)]
        return torch.cat([torch.cat([layers[number - 1] for number in wanted], dim=1) for layers in by_chunk]).numpy()

    @property
    def _transformed(self) -> list[int]:
        """Numbers of the layers whose embeddings are returned, from 1."""
        count = len(self.model_.method.network)
        numbers = list(range(1, count + 1))
        wanted = numbers if self.transform_layers is None else np.atleast_1d(self.transform_layers).tolist()
        if not wanted or not set(wanted) <= set(numbers):
            raise BadInput(f"transform_layers must be one or more numbers from 1 to {count}, got {wanted}.")
        return wanted

    @property
    def _n_features_out(self) -> int:
        sizes = self.model_.method.network.embedding_sizes
        return sum(sizes[number - 1] for number in self._transformed)

    def _checked(self, X: Any, y: Any = "no_validation", *, reset: bool = False) -> Any:
        """Return a table as float64, or images as uint8 or float32; and the labels, if there are any."""
        if getattr(X, "ndim", None) in (3, 4) or (isinstance(X, list | tuple) and np.ndim(X) in (3, 4)):
            kind = {"ensure_2d": False, "allow_nd": True, "dtype": [np.float32, np.uint8]}
        else:
            kind = {"dtype": np.float64}
        found = validate_data(self, X, y, reset=reset, **kind)
        if reset and found[0].ndim > 2:
            self.n_features_in_ = int(np.prod(found[0].shape[1:]))
        return found

    def _pixels(self, X: np.ndarray) -> Tensor:
        """Return samples as input of the model. (n, …) → (n, c, h, w)"""
        if self.scaler_ is not None:
            X = self.scaler_.transform(X)[:, :, None, None]
        elif X.ndim == 3:
            X = X[:, None]
        return torch.from_numpy(np.array(X, order="C"))  # a copy, because torch needs writable memory

    def _source(self, X: Any) -> ImageSource:
        check_is_fitted(self)
        X = self._checked(X)
        if (X.ndim == 2) != (self.scaler_ is not None):
            known = "a table" if self.scaler_ is not None else f"images of {'×'.join(map(str, self.model_.shape))}"
            raise BadInput(f"X must have the form of the training data, {known}, got {X.ndim} dimensions.")
        return self.model_.source(self.model_.images(self._pixels(X)))

    def _log_odds(self, X: Any) -> np.ndarray:
        source = self._source(X)
        odds = self.sharpness_ * self.model_.method.joined(all_scores(self.model_.method, source)).numpy()
        if len(self.seen_) == len(self.classes_):
            return odds
        everything = np.full((len(odds), len(self.classes_)), -np.inf)
        everything[:, self.seen_] = odds
        return everything

    def _recipe(self, samples: int, smallest: int | None = None) -> Recipe:
        """Return the recipe of a training with this number of samples. There are at most `smallest` representatives."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return array_recipe({**self.get_params(deep=False), "seed": seed}, samples, smallest)

    def _print_loss(self, epoch: Epoch) -> None:
        if self.verbose:
            print(f"Epoch {epoch.epoch}, loss {_mean_loss(epoch):.4f}")


def _mean_loss(epoch: Epoch) -> float:
    """Return the mean loss over the layers."""
    return fmean(loss for loss in epoch.losses if loss is not None)
