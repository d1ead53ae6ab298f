"""Classes of `FaustClassifier` that come and go, without training."""

from typing import Any, Self

import numpy as np

from faustnet.data import ImageSource
from faustnet.estimator.inputs import as_array, same_kind
from faustnet.estimator.settings import BadInput
from faustnet.runs.model import Model


class ChangingClassesMixin:
    """Methods that change the classes of a fitted classifier with a FAUST method."""

    classes_: np.ndarray
    seen_: np.ndarray
    model_: Model
    _before_changes: list[tuple[np.ndarray, np.ndarray]]  # `classes_` and `seen_` before each change, for `undo_classes`

    def add_class(self, name: Any, X: Any) -> Self:
        """Add a class from a few samples, without training, to a FAUST method. (n, …)

        Its reference is the mean of their embeddings. It becomes the last of `classes_`. The scores of the other classes do
        not change.
        """
        pixels = self._source(X).images.all_pixels
        label = same_kind(name, self.classes_)
        self._change(self.model_.add_class(str(label[0]), pixels), *self._grown(label))
        return self

    def add_classes(self, X: Any, y: Any) -> Self:
        """Add the classes of some samples at once, without training, to a FAUST method. (n, …), (n,)

        They become the last of `classes_`, sorted; see `add_class`.
        """
        pixels = self._source(X).images.all_pixels
        labels, numbers = np.unique(as_array(y), return_inverse=True)
        if len(numbers) != len(pixels):
            raise BadInput(f"y must have one label per sample, got {len(pixels)} samples and {len(numbers)} labels.")
        new = np.concatenate([same_kind(label, self.classes_, "y") for label in labels.tolist()])
        examples = {str(label): pixels[numbers == number] for number, label in enumerate(new)}
        self._change(self.model_.add_classes(examples), *self._grown(new))
        return self

    def add_samples(self, name: Any, X: Any) -> Self:
        """Add samples to a class, without training, of a FAUST method; see `Model.add_images`. (n, …)"""
        pixels = self._source(X).images.all_pixels
        self._change(self.model_.add_images(self._known(name), pixels), self.classes_, self.seen_)
        return self

    def rename_class(self, name: Any, new: Any) -> Self:
        """Rename a class."""
        label = same_kind(new, self.classes_, "new")
        model = self.model_.rename_class(self._known(name), str(label[0]))
        number = self._position(name)
        classes = np.concatenate([self.classes_[:number], label, self.classes_[number + 1 :]])
        self._change(model, classes, self.seen_)
        return self

    def remove_class(self, name: Any) -> Self:
        """Remove a class from a FAUST method, without training. The scores of the other classes do not change."""
        model = self.model_.remove_class(self._known(name))
        number = self._position(name)
        seen = self.seen_[self.seen_ != number]
        self._change(model, np.delete(self.classes_, number), seen - (seen > number))
        return self

    def undo_classes(self) -> Self:
        """Undo the last change by one of the methods above. `fit` and `partial_fit` start anew."""
        self.model_ = self.model_.undo_classes()
        self.classes_, self.seen_ = self._before_changes[-1]
        self._before_changes = self._before_changes[:-1]
        return self

    def _source(self, X: Any) -> ImageSource:
        """Return samples as input of the method. (n, …)"""
        raise NotImplementedError

    def _known(self, name: Any) -> str:
        """Return the name that the model has for a label."""
        return str(same_kind(name, self.classes_)[0])

    def _position(self, name: Any) -> int:
        """Return the position of a label in `classes_`."""
        return list(map(str, self.classes_)).index(self._known(name))

    def _grown(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `classes_` and `seen_` with further labels."""
        classes = np.concatenate([self.classes_, labels])
        return classes, np.append(self.seen_, np.arange(len(self.classes_), len(classes)))

    def _change(self, model: Model, classes: np.ndarray, seen: np.ndarray) -> None:
        self._before_changes = [*getattr(self, "_before_changes", []), (self.classes_, self.seen_)]
        self.model_, self.classes_, self.seen_ = model, classes, seen
