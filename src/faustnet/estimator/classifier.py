"""The scikit-learn estimator."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from faustnet.data import DataSet, Images, ImageSource
from faustnet.errors import warn
from faustnet.estimator.classes import ChangingClassesMixin
from faustnet.estimator.inputs import (
    array_kind,
    as_array,
    labelled,
    layer_numbers,
    positions,
    to_pixels,
)
from faustnet.estimator.settings import (
    BadInput,
    Plan,
    check_embedding,
    check_same_network,
    has_representatives,
    kept,
    plan,
    sharpness,
    speaking_of_arguments,
)
from faustnet.methods import Method
from faustnet.nn.architectures import NetworkSettings
from faustnet.runs.incremental import Learned, learn
from faustnet.runs.model import Model
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.training.evaluation import all_embeddings, all_scores
from faustnet.training.history import Epoch
from faustnet.training.loop import TrainingLoop


class FaustClassifier(
    ChangingClassesMixin, ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator
):
    """Classifier whose layers are each trained with their own loss: FAUST with representatives, or another method.

    >>> cross_val_score(FaustClassifier(random_state=0), *load_wine(return_X_y=True)).mean()

    The input is a table of numbers, (n, d), whose columns are scaled to mean 0 and variance 1, or images of uint8 or float:
    (n, h, w), (n, c, h, w), or (n, h, w, c). Four dimensions are channels-last if the last is 1 or 3 and the second is
    neither. Arrays, data frames, tensors and lists are accepted. Labels can have any type.

    A parameter that has no effect with the method or the network must keep its default.

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
    method : name or class of the method. `label_smoothing`, `representatives` and `scale` are options of it, if it has them.
    method_options : its other options, such as {"prototypes": 4}.
    network : None for dense layers; a `NetworkSettings` or a dictionary of such settings, for example {"kind": "vgg"}, whose
        defaults are `widths`, `embedding` and `dropout`; or a function that gets an example batch, (2, d) or (2, c, h, w),
        and returns new blocks, which get heads for `embedding`, or a `Network`.
    warm_start : whether `fit` continues from the weights of the last `fit`, for `epochs` more, instead of starting anew.
    transform_layers : layer or layers, numbered from 1, whose embeddings `transform` concatenates; None for all.
    random_state : seed of the weights and of the order of the samples.
    device : device for training: "cpu", "cuda", "mps", or "auto" for the fastest. The fitted model is on the CPU.
    verbose : whether to print the loss of each epoch.

    Attributes
    ----------
    classes_ : sorted labels, followed by those of added classes. (C,)
    seen_ : positions in `classes_` of the classes of `model_`: after `partial_fit`, those of which there was a sample.
    model_ : trained `Model`, in double precision; the columns of a table are the channels of one-pixel images. With your own
        network, it is in single precision, and a table has the shape (n, d).
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
        method: str | type[Method] = "faust-representative",
        method_options: Mapping[str, Any] | None = None,
        network: NetworkSettings | Mapping[str, Any] | Callable[[Tensor], Any] | None = None,
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
        self.method = method
        self.method_options = method_options
        self.network = network
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
        """Restore a pickle; those of version 0.1 have no `seen_` and fewer parameters."""
        known = {"seen_": np.arange(len(state["classes_"]))} if "classes_" in state else {}
        super().__setstate__({**DEFAULTS, **known, **state})

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
        found = self._plan(len(y), int(np.bincount(numbers).min()))
        check_same_network(start, found, is_table=self.scaler_ is not None)
        images = labelled(to_pixels(X, self.scaler_, as_rows=found.takes_rows), numbers)
        data = DataSet(found.recipe.dataset, tuple(map(str, classes)), images, images)
        with speaking_of_arguments():
            model, trainer = set_up(found.recipe, data, choose_device(self.device), start=start, own=found.own)
        check_embedding(model, self.get_params(deep=False), DEFAULTS["embedding"])
        trainer.run(lambda: None, partial(self._after_epoch, trainer))
        earlier = [] if start is None else self.loss_curve_
        self._keep(model, images, [*earlier, *map(_mean_loss, trainer.history)])
        self.seen_, self._optimiser_state = np.arange(len(classes)), {}
        return self

    @available_if(has_representatives)
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "FaustClassifier":
        """Train once on samples and their labels, with a constant learning rate. For faust-representative. (n, …), (n,)

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
        numbers, unknown = positions(y, self.classes_)
        if unknown.any():
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
        found = self._plan(len(X))
        images = labelled(to_pixels(X, self.scaler_, as_rows=found.takes_rows), np.searchsorted(seen, numbers))
        names = tuple(map(str, self.classes_[seen]))
        recipe = replace(found.recipe, seed=found.recipe.seed + len(self.loss_curve_))  # another order in each call
        check_same_network(model, found, is_table=self.scaler_ is not None)
        with speaking_of_arguments():
            learned = learn(recipe, images, names, choose_device(self.device), before, found.own)
        self._keep(learned.model, images, [*self.loss_curve_, learned.loss])
        self.seen_, self._optimiser_state = seen, learned.optimiser

    def _keep(self, model: Model, images: Images, losses: list[float]) -> None:
        self.model_ = kept(model)
        self.sharpness_ = sharpness(self.model_, images)
        self.loss_curve_, self.n_iter_, self._before_changes = losses, len(losses), []

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
        samples and layers, divided by the number of layers, so that the log-odds of the layers are averaged. The scores of
        methods without references, such as the outputs of backprop, are averaged over the layers.
        """
        return torch.from_numpy(self._log_odds(X)).softmax(dim=1).numpy()

    def transform(self, X: Any) -> np.ndarray:
        """Return the embeddings of samples, layer by layer. (n, …) → (n, Σ e_i)"""
        embeddings = all_embeddings(self.model_.method, self._source(X))
        return torch.cat([embeddings[number - 1] for number in self._transformed], dim=1).double().numpy()

    @property
    def _transformed(self) -> list[int]:
        """Numbers of the layers whose embeddings are returned, from 1."""
        return layer_numbers(self.transform_layers, len(self.model_.method.network))

    @property
    def _n_features_out(self) -> int:
        method = self.model_.method
        return method.embed(method.network.example, self._transformed).shape[1]

    def _checked(self, X: Any, y: Any = "no_validation", *, reset: bool = False) -> Any:
        """Return a table as float64, or images as uint8 or float32; and the labels, if there are any."""
        X, y = as_array(X), as_array(y)
        found = validate_data(self, X, y, reset=reset, **array_kind(X))
        if reset and found[0].ndim > 2:
            self.n_features_in_ = int(np.prod(found[0].shape[1:]))
        return found

    def _source(self, X: Any) -> ImageSource:
        check_is_fitted(self)
        X = self._checked(X)
        if (X.ndim == 2) != (self.scaler_ is not None):
            known = "a table" if self.scaler_ is not None else f"images of {'×'.join(map(str, self.model_.shape))}"
            raise BadInput(f"X must have the form of the training data, {known}, got {X.ndim} dimensions.")
        pixels = to_pixels(X, self.scaler_, as_rows=len(self.model_.shape) == 1)
        return self.model_.source(self.model_.images(pixels))

    def _log_odds(self, X: Any) -> np.ndarray:
        source = self._source(X)
        odds = self.sharpness_ * self.model_.method.joined(all_scores(self.model_.method, source)).double().numpy()
        if len(self.seen_) == len(self.classes_):
            return odds
        everything = np.full((len(odds), len(self.classes_)), -np.inf)
        everything[:, self.seen_] = odds
        return everything

    def _plan(self, samples: int, smallest: int | None = None) -> Plan:
        """Return the settings of a training with this number of samples. There are at most `smallest` representatives."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return plan({**self.get_params(deep=False), "seed": seed}, DEFAULTS, samples, smallest)

    def _after_epoch(self, trainer: TrainingLoop, epoch: Epoch) -> None:
        if trainer.warning:
            warn(trainer.warning)
        if self.verbose:
            print(f"Epoch {epoch.epoch}, loss {_mean_loss(epoch):.4f}")


def _mean_loss(epoch: Epoch) -> float:
    """Return the mean loss over the layers."""
    return fmean(loss for loss in epoch.losses if loss is not None)


DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(FaustClassifier).parameters.items()}
