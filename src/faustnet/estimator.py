"""FAUST as a scikit-learn estimator. It works in memory and writes no files."""

from collections.abc import Sequence
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
from faustnet.errors import FaustnetError, about_arguments
from faustnet.methods import some_positions
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, changed, recipe_from
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.training.evaluation import all_scores, chunks, evaluating
from faustnet.training.history import Epoch

LARGEST_BATCH = 256  # for batch_size "auto"
MEASURED = 2000  # training samples from which the sharpness of probabilities is computed


class BadInput(FaustnetError, ValueError):
    """Invalid input, as the ValueError that scikit-learn expects."""


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
    transform_layers : layer or layers, numbered from 1, whose embeddings `transform` concatenates; None for all.
    random_state : seed of the weights and of the order of the samples.
    device : device for training: "cpu", "cuda", "mps", or "auto" for the fastest. The fitted model is on the CPU.
    verbose : whether to print the loss of each epoch.

    Attributes
    ----------
    classes_ : sorted labels, followed by those of added classes. (C,)
    model_ : trained `Model`, in double precision; the columns of a table are the channels of one-pixel images.
    scaler_ : `StandardScaler` of a table; None for images.
    sharpness_ : factor that turns summed scores into log-odds.
    loss_curve_ : loss of each epoch, the mean over the layers.
    n_iter_ : number of epochs.
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
        """Train on samples and their labels. (n, …), (n,)"""
        X, y = self._checked(X, y, reset=True)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise BadInput("y must contain at least two classes, got one class.")
        self.scaler_ = StandardScaler().fit(X) if X.ndim == 2 else None
        pixels = self._pixels(X)
        images = Images(pixels if pixels.dtype == torch.uint8 else pixels.float(), torch.from_numpy(numbers))
        recipe = self._recipe(np.bincount(numbers))
        names = tuple(map(str, self.classes_))
        model, trainer = set_up(recipe, DataSet(recipe.dataset, names, images, images), choose_device(self.device))
        trainer.run(lambda: None, self._print_loss)
        # On the CPU, in double precision like scikit-learn's estimators, and without training state.
        self.model_ = Model.from_bytes(model.to_bytes(), torch.float64)
        self.sharpness_ = _sharpness(self.model_, images)
        self.loss_curve_ = [_mean_loss(epoch) for epoch in trainer.history]
        self.n_iter_ = len(trainer.history)
        return self

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
        return self.sharpness_ * self.model_.method.joined(all_scores(self.model_.method, source)).numpy()

    def _recipe(self, counts: np.ndarray) -> Recipe:
        """Return the recipe of a training, for these numbers of samples per class."""
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
        try:
            asked = recipe_from(table)
        except FaustnetError as error:
            raise BadInput(about_arguments(str(error))) from None
        fitting = {
            "options.representatives": min(asked.options["representatives"], smallest),
            "training.batch_size": min(asked.training.batch_size, samples),
        }
        return changed(asked, fitting)

    def _print_loss(self, epoch: Epoch) -> None:
        if self.verbose:
            print(f"Epoch {epoch.epoch}, loss {_mean_loss(epoch):.4f}")


def _batch_size(samples: int) -> int:
    """Return about twice the square root of the number of samples, such that few samples are left over."""
    batches = max(1, round(samples / min(LARGEST_BATCH, 2 * samples**0.5)))
    return samples // batches


def _sharpness(model: Model, images: Images) -> float:
    """Return the factor that turns summed scores into log-odds; `predict_proba` explains it."""
    source = model.source(images)
    some = model.source(images.take(some_positions(source, MEASURED)))
    nearest = -all_scores(model.method, some).topk(2, dim=2).values  # (layers, n, 2)
    return float(model.recipe.options["scale"] * nearest.sum(dim=2).mean() / len(nearest))


def _mean_loss(epoch: Epoch) -> float:
    """Return the mean loss over the layers."""
    return fmean(loss for loss in epoch.losses if loss is not None)
