"""Trained models: a method with its classes, and the shape and the scaling of its images, or the tokeniser of its texts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faustnet.data import DataSet, Images, ImageSource, Scaling, Tokeniser, load_data
from faustnet.errors import FaustnetError, require
from faustnet.methods import Faust, Method
from faustnet.nn.old_names import current_names
from faustnet.nn.references import REFERENCE_KINDS
from faustnet.runs.class_changes import renamed, undone, with_classes, with_images, without_class
from faustnet.runs.class_history import ClassHistory, ClassInfo
from faustnet.runs.cost import with_cost
from faustnet.runs.indexed import IndexedModel
from faustnet.runs.inputs import OF_TEXTS, Inputs, check_range, input_images, source_of
from faustnet.runs.model_file import file_contents, model_fields
from faustnet.runs.own import OwnMethod
from faustnet.runs.prediction import EarlyPrediction, Prediction, named_predictions, rejection_threshold
from faustnet.runs.recipes import DataSettings, Recipe, as_table, recipe_from
from faustnet.runs.tensor_file import read_tensors, unpack
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import (
    all_scores,
    chunks,
    collect_answers,
    decide,
    early_exits_of,
    evaluating,
    evaluation_of,
)

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Model:
    """Trained method with its classes, and the shape and the scaling of its images, or the tokeniser of its texts.

    Wherever a model takes pixels, a model of images takes arrays, (n, c, h, w) or (n, h, w, c); an image of Pillow, the path
    of an image file, or a list of those, which are resized. A model of texts takes a list of strings, or token ids
    (n, tokens); a model of a table, the rows (n, columns), whose columns a pandas table must have in
    the order of the training.

    `load` reads a model from a file, such as model.safetensors in a run folder. A pickle contains the same bytes as the
    file, and is loaded on the CPU.
    """

    recipe: Recipe
    method: Method
    class_names: tuple[str, ...]
    shape: tuple[int, ...]  # of an image: (channels, height, width); of a text: (tokens,)
    scaling: Scaling | None  # None for texts
    of_bytes: bool  # whether it was trained on pixels from 0 to 255
    threshold: float | None = None  # of rejection, set by `calibrate`: images with a lower first-layer score are rejected
    tokeniser: Tokeniser | None = None  # of texts
    own: OwnMethod | None = None  # builds the method, if the recipe does not describe it
    history: ClassHistory | None = None  # of classes that were changed after training; None if there were no changes
    columns: tuple[str, ...] = ()  # names of the columns, if it was trained on a pandas table

    @classmethod
    def fresh(
        cls,
        recipe: Recipe,
        train: Images,
        class_names: Sequence[str],
        tokeniser: Tokeniser | None = None,
        own: OwnMethod | None = None,
        columns: tuple[str, ...] = (),
    ) -> "Model":
        """Return an untrained model. Its weights are drawn on the CPU, so that they are the same on every device."""
        scaling = Scaling.of(train) if tokeniser is None else None
        with seeded(recipe.seed):
            if own is not None:
                some = ImageSource(train, scaling, class_names).plain(torch.arange(min(2, len(train))))
                method = own.build(some.cpu(), len(class_names))
            else:
                method = recipe.build_method(train.shape, len(class_names), tokeniser.vocabulary if tokeniser else 0)
        of_bytes = train.pixels.dtype == torch.uint8
        names, shape = tuple(class_names), train.shape
        return cls(recipe, method, names, shape, scaling, of_bytes, tokeniser=tokeniser, own=own, columns=columns)

    def untrained(self, classes: int) -> Method:
        """Return an untrained method like that of this model, for this number of classes."""
        if self.own is not None:
            return self.own.rebuilt(self.method, classes)
        return self.recipe.build_method(self.shape, classes, self.vocabulary)

    def to(self, device: torch.device) -> "Model":
        """Move the model to a device."""
        scaling = self.scaling and self.scaling.to(device)
        return replace(self, method=self.method.to(device), scaling=scaling)

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    @property
    def vocabulary(self) -> int:
        """Number of token ids; 0 for images."""
        return self.tokeniser.vocabulary if self.tokeniser else 0

    def known(self, data: DataSet) -> DataSet:
        """Return the data with the labels of this model. The data need not contain all of its classes. Classes that were
        renamed after training may have their old names in the data, and images of removed classes are left out."""
        history = self.class_history
        return data.with_classes(self.class_names, history.renamed(self.class_names), history.removed)

    @property
    def class_history(self) -> ClassHistory:
        """Where the classes come from, and their changes after training."""
        return self.history or ClassHistory.of_trained(self.class_names)

    @property
    def classes(self) -> list[ClassInfo]:
        """The classes: number, name, references per layer, whether they were learned in training, and the number of images
        that were added later."""
        count = self.method.count if isinstance(self.method, Faust) else None
        pairs = enumerate(zip(self.class_names, self.class_history.records, strict=True))
        return [ClassInfo(i, name, count, one.trained_as is not None, one.examples) for i, (name, one) in pairs]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of the image files that it can classify: (channels, height, width)."""
        require(self.tokeniser is None, OF_TEXTS)
        channels, height, width = self.shape if len(self.shape) == 3 else (self.shape[0], 1, 1)
        require(
            channels in (1, 3), f"This model was trained on rows of {channels} numbers, not on images: choose another model."
        )
        require(
            self.of_bytes,
            "Image files have pixels from 0 to 255, but this model was trained on other values: choose another model.",
        )
        return channels, height, width

    def read_data(self, dataset: str | None = None, data_dir: Path | None = None) -> DataSet:
        """Read the data that it was trained on, or another data set with its classes. Images in a folder are resized, and
        texts are encoded by the model's tokeniser."""
        return self.checked_data(self.load_data(dataset or self.recipe.dataset, self.recipe.data, data_dir))

    def checked_data(self, data: DataSet) -> DataSet:
        """Return the data with the labels of this model, if their pixels have its range."""
        if self.of_bytes:
            check_range(data.test, data.name)
        return self.known(data)

    def load_data(self, dataset: str, settings: DataSettings, data_dir: Path | None) -> DataSet:
        """Read a data set with any classes for this model."""
        shape = None
        if len(self.shape) == 3 and self.shape[0] in (1, 3):
            channels, height, width = self.shape
            shape = channels, height, width
        text = replace(settings.text, tokeniser=self.tokeniser)
        return load_data(dataset, data_dir, shape=shape, strict=settings.strict, stream=settings.stream, text=text)

    def source(self, images: Images) -> ImageSource:
        """Return the images as input for the method, without augmentation."""
        return source_of(self, images)

    def images(self, pixels: Inputs) -> Images:
        """Return images without labels from arrays, (n, c, h, w), (n, h, w, c), or (n, h, w) for one channel; from images of
        Pillow and paths of image files; or texts."""
        return input_images(self, pixels)

    def scores(self, pixels: Inputs) -> Tensor:
        """Return the score of each class by each voter. (n, c, h, w) → (voters, n, classes)"""
        return all_scores(self.method, self.source(self.images(pixels)))

    def predict(self, pixels: Inputs, layers: Sequence[int] | None = None, *, reject: bool = False) -> list[Prediction]:
        """Predict the class of each image, from all layers or from those in `layers`, numbered from 1. With `reject`,
        images that the threshold of `calibrate` rejects are "unknown"; without, they are only marked as `far`."""
        return named_predictions(self, decide(self.method, self.source(self.images(pixels)), layers), reject=reject)

    def indexed(self, pixels: Inputs, recall: float = 0.99) -> IndexedModel:
        """Return this model with an index of its references, which predicts single images faster among very many classes.
        For FAUST only; it needs the package faiss.

        The predictions are approximate: at least the fraction `recall` of these images, which need no label, get the same
        class as without the index. Give at least some hundreds, like those to predict later. Make a new index after a
        change of the classes.
        """
        return IndexedModel(self, self._faust("An index"), pixels, recall)

    def predict_early(self, pixels: Inputs, threshold: float) -> list[EarlyPrediction]:
        """Predict the class of each image with early exit. For FAUST only.

        After each layer, the scores of the layers so far are averaged. An image exits if the best class leads by at least
        `threshold`.
        """
        source = self.source(self.images(pixels))
        require(threshold >= 0, f"threshold (--exit-margin) must be 0 or more, got {threshold}.")
        found: list[EarlyPrediction] = []
        with evaluating(self.method):
            for chunk in chunks(source, self.method):
                classes, used = self._faust("Early exit").predict_early(source.plain(chunk), threshold)
                pairs = zip(classes.tolist(), used.tolist(), strict=True)
                found += [EarlyPrediction(self.class_names[number], layers) for number, layers in pairs]
        return found

    def _faust(self, what: str) -> Faust:
        if not isinstance(self.method, Faust):
            raise FaustnetError(
                f"{what} needs a FAUST model, got {self.method.name}: train with a method such as faust-representative."
            )
        return self.method

    def add_class(self, name: str, pixels: Inputs, kind: str = REFERENCE_KINDS[0]) -> "Model":
        """Return a copy of this model with an additional class, without training. For FAUST only.

        `kind` is how the references of the class are computed from the embeddings of its examples, in every layer: "mean";
        "k-means", the examples closest to the cluster centres; or "examples", the first examples. Nothing else changes, but
        a calibrated model has to be calibrated again.
        """
        return with_classes(self, self._faust("Adding a class"), {name: pixels}, kind)

    def add_classes(self, examples: Mapping[str, Any], kind: str = REFERENCE_KINDS[0]) -> "Model":
        """Return a copy of this model with additional classes, from the pixels of each, like `add_class` for all of them
        at once."""
        return with_classes(self, self._faust("Adding classes"), examples, kind)

    def add_images(self, name: str, pixels: Inputs) -> "Model":
        """Return a copy of this model in which a class has more examples, without training. For FAUST only.

        The references of an added class are computed again, in the same way, from all examples that it ever got. A learned
        reference r becomes 0.97 · r + 0.03 · m, where m is the mean embedding of all images added so far. A calibrated model
        has to be calibrated again.
        """
        return with_images(self, self._faust("Adding images to a class"), name, pixels)

    def rename_class(self, name: str, new: str) -> "Model":
        """Return a copy of this model in which a class has another name."""
        return renamed(self, name, new)

    def remove_class(self, name: str) -> "Model":
        """Return a copy of this model without a class. For FAUST only. The scores of the other classes do not change, but a
        calibrated model has to be calibrated again."""
        return without_class(self, self._faust("Removing a class"), name)

    def undo_classes(self) -> "Model":
        """Return this model as it was before the last `add_class`, `add_classes`, `add_images`, `rename_class` or
        `remove_class`, with the rejection threshold of that time. The last 100 changes can be undone, one by one."""
        return undone(self)

    def calibrate(self, pixels: Inputs, accept: float = 0.95) -> "Model":
        """Return this model with a threshold for `predict(…, reject=True)`.

        The threshold accepts the fraction `accept` of these images. They must be of the model's classes, and must not have
        been used for training.

        All FAUST methods support it, except faust-prototype with network.length "free": there, inputs that barely activate
        a layer are closest to every prototype.
        """
        self.check_rejection()
        return replace(self, threshold=rejection_threshold(self, self.images(pixels), accept))

    def check_rejection(self) -> None:
        """Raise an error if `calibrate` does not support the method."""
        self._faust("Rejecting images").check_rejection()

    def measure(self, images: Images, layers: Sequence[int] | None = None, *, early_exit: bool = False) -> dict[str, Any]:
        """Return the accuracy on these images and the cost of a prediction, as values for JSON."""
        source = self.source(images)
        require(layers is None or not early_exit, "layers and early exit exclude each other: leave out one of them.")
        faust = self._faust("Early exit") if early_exit else None
        answers = collect_answers(self.method, source, layers)
        exits = {"early_exit": [asdict(line) for line in early_exits_of(faust, answers)]} if faust else {}
        return {**with_cost(self, evaluation_of(self.method, answers), source, layers), **exits}

    def to_bytes(self) -> bytes:
        """Return the contents of a model file: safetensors, with the recipe and the classes in its header."""
        require(
            self.own is None,
            "A model file cannot describe a method or a network of your own: pickle the classifier, or save the weights "
            "with model.method.save.",
        )
        return file_contents(self)

    @classmethod
    def from_bytes(cls, content: bytes, dtype: torch.dtype = torch.float32) -> "Model":
        """Return the model of the contents of a model file, on the CPU, with weights of this type."""
        return cls(**model_fields(*unpack(content), "This model", dtype))

    @classmethod
    def load(cls, path: str | Path, device: torch.device = CPU) -> "Model":
        """Read a model file. The model is in single precision."""
        return cls(**model_fields(*read_tensors(Path(path)), path, torch.float32)).to(device)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.own is not None:
            return _unpickled, ({field.name: getattr(self, field.name) for field in fields(self)},)
        return Model.from_bytes, (self.to_bytes(), _dtype(self.method))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle of version 0.1, which contains the objects of that version instead of a model file."""
        recipe, old = recipe_from(as_table(state["recipe"])), state["method"]
        with seeded(0):
            method = recipe.build_method(state["shape"], len(state["class_names"])).to(_dtype(old))
        method.load_state_dict(current_names(old.state_dict(), method))
        vars(self).update(state, recipe=recipe, method=method.eval())


def _unpickled(values: dict[str, Any]) -> Model:
    """Restore the pickle of a model with a method or a network of the user's own."""
    return Model(**values)


def _dtype(method: Method) -> torch.dtype:
    """Return the type of the weights: float32, or float64 in a fitted `FaustClassifier`."""
    return next(method.parameters()).dtype
