"""A trained method with what it takes to use it: its classes, the shape and the scaling of its images. One file."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from faustnet.data import DataSet, Images, ImageSource, Scaling, load_data
from faustnet.errors import FaustnetError, require, unknown
from faustnet.methods import Faust, Method, build
from faustnet.nn.references import REFERENCE_KINDS, known_score, references_from
from faustnet.runs.recipes import Recipe, as_table, recipe_from
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import (
    all_embeddings,
    all_scores,
    chunks,
    early_exits,
    evaluate,
    evaluating,
    seconds_per_image,
    threshold_accepting,
)

FORMAT = 1
ABOUT, CHECKSUM = "faustnet", "checksum"  # the one note in a file's header, which is JSON; a key of that
LARGEST_HEADER = 16 << 20  # bytes of a safetensors file's header, which has a line for each tensor
UNKNOWN = "unknown"  # what a rejected image is called


@dataclass(frozen=True)
class Prediction:
    class_name: str  # "unknown" if the image was rejected
    score: float  # of the best class, summed over the voters
    votes: list[str]  # the class that each voter would have chosen alone


@dataclass(frozen=True)
class EarlyPrediction:
    class_name: str
    layers: int  # that it took


@dataclass(frozen=True)
class Model:
    """A trained method with what it takes to use it. `load` reads one from the file model.safetensors of a run."""

    recipe: Recipe
    method: Method
    class_names: tuple[str, ...]
    shape: tuple[int, int, int]  # of an image: (channels, height, width)
    scaling: Scaling
    of_bytes: bool  # whether it was trained on pixels from 0 to 255
    threshold: float | None = None  # images with a smaller `known_score` are rejected; None: not calibrated

    @classmethod
    def fresh(cls, recipe: Recipe, train: Images, class_names: Sequence[str]) -> "Model":
        """Untrained, its weights drawn on the CPU from the recipe's seed, so that they are the same for every device."""
        with seeded(recipe.seed):
            method = _build(recipe, train.shape, len(class_names))
        return cls(recipe, method, tuple(class_names), train.shape, Scaling.of(train), train.pixels.dtype == torch.uint8)

    def to(self, device: torch.device) -> "Model":
        return replace(self, method=self.method.to(device), scaling=self.scaling.to(device))

    def known(self, data: DataSet) -> DataSet:
        """The data with labels as this model numbers its classes, of which the data may lack some."""
        if not set(data.class_names) <= set(self.class_names):
            known = ", ".join(self.class_names)
            raise FaustnetError(f"{data.name} has other classes than the model, which knows {known}: give it data of those.")
        numbers = torch.tensor([self.class_names.index(name) for name in data.class_names])
        train, test = (Images(part.pixels, numbers[part.labels.cpu()]) for part in (data.train, data.test))
        return DataSet(data.name, self.class_names, train, test, left_out=data.left_out)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of files that it can be shown."""
        channels = self.shape[0]
        require(channels in (1, 3), f"This model knows rows of {channels} numbers, not images: name another run.")
        require(self.of_bytes, "This model was trained on other numbers than the bytes of image files: name another run.")
        return self.shape

    def read_data(self, dataset: str | None = None, data_dir: Path | None = None) -> DataSet:
        """The data that it was trained on, or others of its classes; a folder's images in the shape that it knows."""
        shape = self.shape if self.shape[0] in (1, 3) else None
        return self.known(load_data(dataset or self.recipe.dataset, data_dir, shape=shape, stream=self.recipe.data.stream))

    def source(self, images: Images) -> ImageSource:
        """Images as this model is fed them, without distortion."""
        if images.shape != self.shape:
            raise FaustnetError(
                f"This model knows images of {_dimensions(self.shape)}, but these are {_dimensions(images.shape)}: "
                "give it the data that it was trained on, or train another."
            )
        return ImageSource(images, self.scaling, self.class_names)

    def images(self, pixels: Tensor | np.ndarray) -> Images:
        """Unlabelled images as this model knows them: (n, c, h, w), or (n, h, w) where there is one channel."""
        try:
            pixels = torch.as_tensor(pixels, device=self.scaling.mean.device)
        except (TypeError, ValueError) as error:
            raise FaustnetError(f"These are not pixels ({error}): give an array; 'faustnet predict' takes files.") from None
        if pixels.dim() == 3 and self.shape[0] == 1:
            pixels = pixels.unsqueeze(1)
        if pixels.dim() != 4:
            raise FaustnetError(f"Give images as (n, {', '.join(map(str, self.shape))}), not {tuple(pixels.shape)}.")
        if self.of_bytes and pixels.dtype != torch.uint8:
            raise FaustnetError(f"This model knows pixels as bytes from 0 to 255, not as {pixels.dtype}: convert them.")
        if not self.of_bytes and pixels.dtype == torch.uint8:
            raise FaustnetError(
                "This model was trained on other numbers than bytes: give it pixels of that range, as floats."
            )
        return Images(pixels, torch.zeros(len(pixels), dtype=torch.long, device=pixels.device))

    def scores(self, pixels: Tensor | np.ndarray) -> Tensor:
        """Each voter's score of each class. (n, c, h, w) → (voters, n, classes)"""
        return all_scores(self.method, self.source(self.images(pixels)))

    def predict_early(self, pixels: Tensor | np.ndarray, threshold: float) -> list[EarlyPrediction]:
        """The class of each image by its first layers, as soon as their mean score of one class is ahead of the next by
        the threshold or more; FAUST's models can."""
        source = self.source(self.images(pixels))
        require(threshold >= 0, f"A margin is 0 or more, not {threshold}.")
        found: list[EarlyPrediction] = []
        with evaluating(self.method):
            for chunk in chunks(source, self.method):
                classes, used = self._faust("stop early").predict_early(source.plain(chunk), threshold)
                pairs = zip(classes.tolist(), used.tolist(), strict=True)
                found += [EarlyPrediction(self.class_names[number], layers) for number, layers in pairs]
        return found

    def _faust(self, can: str) -> Faust:
        if not isinstance(self.method, Faust):
            raise FaustnetError(f"Only FAUST's models can {can}, and this one is of {self.method.name}.")
        return self.method

    def add_class(self, name: str, pixels: Tensor | np.ndarray, kind: str = REFERENCE_KINDS[0]) -> "Model":
        """This model with one class more, without training: in every layer the class's references are made of its
        examples' embeddings, by `kind` as `references_from` says. All else stays as it is, but that a model that was
        calibrated is to be calibrated anew; FAUST's models can."""
        method = self._faust("take a new class")
        require(name not in self.class_names, f"There is a class {name!r} already: give the new one another name.")
        require(bool(name.strip()), "The new class has no name: give it one.")
        require(name != UNKNOWN, f"{UNKNOWN!r} is what rejected images are called: give the new class another name.")
        if kind not in REFERENCE_KINDS:
            raise unknown("kind of reference", kind, REFERENCE_KINDS)
        images = self.images(pixels)
        source = self.source(images)
        require(len(images) > 0, f"There is no example of {name!r}: give one image or more.")
        with seeded(0), torch.no_grad():
            larger = _build(self.recipe, self.shape, len(self.class_names) + 1).to(next(method.parameters()).dtype)
            references = [references_from(rows, method.count, kind) for rows in all_embeddings(method, source)]
            some = source.plain(torch.arange(min(method.count, len(images)), device=images.labels.device))
        require(
            all(bool(rows.isfinite().all()) for rows in references),
            f"The examples of {name!r} hold numbers that are not finite or too large: replace them.",
        )
        state, new = method.state_dict(), method.new_class(some, references)
        larger.load_state_dict(
            {key: torch.cat([tensor, new[key]]) if key in new else tensor for key, tensor in state.items()}
        )
        grown = replace(self, method=larger.eval(), class_names=(*self.class_names, name), threshold=None)
        return grown.to(images.labels.device)

    def calibrate(self, pixels: Tensor | np.ndarray, accept: float = 0.95) -> "Model":
        """This model with a threshold under which a share of 1 − `accept` of these images would be rejected: images of its
        classes that it was not trained on. FAUST's models can, but for learned prototypes among embeddings of free length,
        which are longer: what excites a layer least is nearest to all of those."""
        self._faust("be calibrated to reject images").check_rejection()
        require(0 < accept <= 1, f"The share of images to accept lies above 0 and up to 1, not at {accept}.")
        require(UNKNOWN not in self.class_names, f"A class is called {UNKNOWN!r}, as rejected images are: rename it.")
        near = known_score(self.scores(pixels))
        require(len(near) > 0, "There is no image to calibrate on: give some of the model's classes.")
        return replace(self, threshold=threshold_accepting(near, accept))

    def predict(
        self, pixels: Tensor | np.ndarray, layers: Sequence[int] | None = None, *, reject: bool = False
    ) -> list[Prediction]:
        """The class of each image, from all layers or those numbered in `layers` from 1. With `reject` images that are
        near no class, by the threshold of `calibrate`, are "unknown"."""
        scores = self.scores(pixels)
        best = self.method.joined(scores, layers).max(dim=1)
        votes = scores.argmax(dim=2).T.tolist()
        names = [self.class_names[number] for number in best.indices.tolist()]
        if reject:
            accepted = zip(names, self._accepted(scores).tolist(), strict=True)
            names = [name if known else UNKNOWN for name, known in accepted]
        return [
            Prediction(name, score, [self.class_names[vote] for vote in voters])
            for name, score, voters in zip(names, best.values.tolist(), votes, strict=True)
        ]

    def _accepted(self, scores: Tensor) -> Tensor:
        """Which images are near enough to a class. (voters, n, C) → (n,)"""
        if self.threshold is None:
            raise FaustnetError("This model does not know yet what to reject: calibrate it with 'faustnet calibrate' first.")
        return known_score(scores) >= self.threshold

    def measure(self, images: Images, layers: Sequence[int] | None = None, *, early_exit: bool = False) -> dict[str, Any]:
        """How good it is on these images and what a prediction costs, as plain facts for JSON."""
        source = self.source(images)
        require(layers is None or not early_exit, "Early exit is of all layers in order: leave out --layers.")
        exits = (
            {"early_exit": [asdict(line) for line in early_exits(self._faust("stop early"), source)]} if early_exit else {}
        )
        return {
            "voters": self.method.voters,
            "layers": None if layers is None else list(layers),
            "weights": list(self.method.prediction.weights) or None,
            **asdict(evaluate(self.method, source, layers)),
            "class_names": self.class_names,
            "seconds_per_image": seconds_per_image(self.method, source),
            **exits,
        }

    def to_bytes(self) -> bytes:
        """The contents of a model file: safetensors, with the recipe and the classes in its header."""
        tensors = {f"method.{name}": tensor.contiguous() for name, tensor in self.method.state_dict().items()}
        tensors |= {"scaling.mean": self.scaling.mean, "scaling.deviation": self.scaling.deviation}
        about = {
            "format": FORMAT,
            "recipe": as_table(self.recipe),
            "class_names": self.class_names,
            "shape": self.shape,
            "of_bytes": self.of_bytes,
            "threshold": self.threshold,
        }
        return packed(tensors, about)

    @classmethod
    def load(cls, path: Path, device: torch.device = torch.device("cpu")) -> "Model":
        """The model in a file that `to_bytes` gave the contents of."""
        metadata, tensors = read_tensors(path)
        try:
            about: dict[str, Any] = json.loads(metadata[ABOUT])
            if about["format"] != FORMAT:
                raise FaustnetError(f"{path} was written by another version of faustnet: use that one, or train again.")
            recipe, names = recipe_from(about["recipe"]), tuple(map(str, about["class_names"]))
            channels, height, width = map(int, about["shape"])
            shape = (channels, height, width)
            threshold = about.get("threshold")  # not in files of the first versions
            threshold = None if threshold is None else float(threshold)
            whole, of_bytes = is_whole(tensors, about), bool(about["of_bytes"])
            scaling = Scaling(*(_scale(tensors.pop(f"scaling.{name}"), channels) for name in ("mean", "deviation")))
            weights = {name.removeprefix("method."): tensor for name, tensor in tensors.items()}
            if len(recipe.network.widths) > len(weights):
                raise ValueError("it has fewer tensors than layers")
            with torch.device("meta"):  # takes no memory, whatever the recipe says
                check_weights(_build(recipe, shape, len(names)), weights, path)
            with seeded(0):
                method = _build(recipe, shape, len(names))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise FaustnetError(f"{path} is not a model of faustnet's, or is damaged ({error!r}).") from None
        require(whole, f"{path} is damaged, or was changed: delete it, and train the run again with --resume.")
        method.load_state_dict(weights)
        return cls(recipe, method.eval(), names, shape, scaling, of_bytes, threshold).to(device)


def packed(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    """The contents of a safetensors file that can tell whether it is damaged: what it is about, with a checksum, is in its
    header."""
    tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    about = about | {CHECKSUM: _checksum(tensors, about)}
    return save(tensors, {ABOUT: json.dumps(about)})  # one entry: several would come in any order


def is_whole(tensors: dict[str, Tensor], about: dict[str, Any]) -> bool:
    """Whether the tensors and what is said of them are as they were packed; the first versions' files cannot tell."""
    return CHECKSUM not in about or about[CHECKSUM] == _checksum(tensors, about)


def _checksum(tensors: dict[str, Tensor], about: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps({key: value for key, value in about.items() if key != CHECKSUM}).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header's notes and the tensors of a safetensors file."""
    try:
        _check_header(path)
        with safe_open(path, "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FaustnetError(f"There is no {path}: check the name, or train first.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise FaustnetError(
            f"{path} is damaged or not a safetensors file ({error}): copy it anew, or train again."
        ) from None


def _check_header(path: Path) -> None:
    """Refuse a header that would take far more memory than its tensors."""
    if not path.is_file() and path.exists():
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > LARGEST_HEADER:
        raise ValueError(f"its header has more than {LARGEST_HEADER >> 20} MiB")


def check_weights(method: Method, tensors: dict[str, Tensor], path: Path) -> None:
    """Whether tensors from a file can be a method's: every one must be there, and have the method's shape and type."""
    wanted = method.state_dict()
    if odd := sorted(set(wanted) ^ set(tensors)):
        how = "missing" if odd[0] in wanted else "one too many"
        raise FaustnetError(f"{path} does not fit its recipe: {odd[0]} is {how}.")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise FaustnetError(
                f"{path} does not fit its recipe: {name} is {_dimensions(tensor.shape)} "
                f"where it should be {_dimensions(wanted[name].shape)}."
            )
        double = tensor.dtype == torch.float64 and wanted[name].is_floating_point()  # as an estimator's
        if tensor.dtype != wanted[name].dtype and not double:
            raise FaustnetError(f"{path} does not fit its recipe: {name} is of {tensor.dtype}.")
        if not tensor.isfinite().all():
            raise FaustnetError(f"{path} is of no use: {name} holds numbers that are not finite.")


def _scale(tensor: Tensor, channels: int) -> Tensor:
    """(channels, 1, 1)"""
    if tensor.dtype != torch.float32 or not tensor.isfinite().all():
        raise ValueError("its scaling is not of finite numbers")
    return tensor.view(channels, 1, 1)


def _build(recipe: Recipe, shape: tuple[int, int, int], classes: int) -> Method:
    method = build(recipe.method, shape, classes, recipe.network, recipe.options)
    method.set_prediction(recipe.prediction)
    return method


def _dimensions(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
