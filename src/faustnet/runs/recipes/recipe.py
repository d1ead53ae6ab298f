"""The recipe: all settings that determine a run, as frozen dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from faustnet.data import MEMORY, STREAM, Augmentation, TextSettings
from faustnet.data.tokens import LARGEST_VOCABULARY, LONGEST, SMALLEST_VOCABULARY
from faustnet.errors import FaustnetError, require
from faustnet.methods import METHODS, Method, PredictionSettings, build, method_named
from faustnet.nn.architectures import NetworkSettings, Shape, TextShape
from faustnet.runs.recipes.values import convert_values
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings

LARGEST_IMAGE = 512  # pixels per side of the user's own images


@dataclass(frozen=True)
class DataSettings:
    """How images and texts are read, and images augmented.

    Args:
        flip: Whether to mirror images at random, left to right.
        crop: Largest shift of a random crop, in pixels.
        cutout: Side of the random square that is hidden, in pixels.
        rotation: Largest angle of a random rotation, in degrees, in both directions.
        zoom: Largest change of the height and width, as a fraction.
        image_size: For folders of images: height and width in pixels. 0: if all images have the same size of at most 64×64,
            they keep it; otherwise they are resized to 32×32.
        strict: For folders of images: whether an image that cannot be read or is in no class folder is an error
            instead of being skipped.
        stream: For folders of shards: whether to read images from disk during training: "always", "never", or "auto" (if
            they do not fit in memory).
        text_column: For files of texts: name of the column with the texts; "" for the only one with a usual name, such as
            text, sentence or question.
        label_column: For files of texts: name of the column with the labels; "" for the only one with a usual name, such as
            label, class or category.
        tokens: For texts: number of tokens; longer texts are truncated. 0 is that of the longest training text, but
            from 32 to 128.
        vocabulary: For texts: largest number of different tokens.
        digest: For data in memory: SHA-256 of the samples and labels. It is recorded when the run begins; other data are an
            error.
    """

    flip: bool = False
    crop: int = 0
    cutout: int = 0
    rotation: float = 0.0
    zoom: float = 0.0
    image_size: int = 0
    strict: bool = False
    stream: str = "auto"
    text_column: str = ""
    label_column: str = ""
    tokens: int = 0
    vocabulary: int = 8000
    digest: str = ""

    def __post_init__(self) -> None:
        require(self.crop >= 0, f"data.crop must be 0 pixels or more, got {self.crop}.")
        require(self.cutout >= 0, f"data.cutout must be 0 pixels or more, got {self.cutout}.")
        require(0 <= self.rotation <= 180, f"data.rotation must be from 0 to 180 degrees, got {self.rotation}.")
        require(0 <= self.zoom < 1, f"data.zoom must be at least 0 and below 1, got {self.zoom}.")
        require(
            0 <= self.image_size <= LARGEST_IMAGE,
            f"data.image_size must be from 1 to {LARGEST_IMAGE} pixels, or 0 for automatic, got {self.image_size}.",
        )
        require(self.stream in STREAM, f"data.stream must be one of {', '.join(STREAM)}, got {self.stream!r}.")
        require(
            0 <= self.tokens <= LONGEST,
            f"data.tokens must be from 1 to {LONGEST}, or 0 for that of the longest text, got {self.tokens}.",
        )
        require(
            SMALLEST_VOCABULARY <= self.vocabulary <= LARGEST_VOCABULARY,
            f"data.vocabulary must be from {SMALLEST_VOCABULARY} to {LARGEST_VOCABULARY}, got {self.vocabulary}.",
        )

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(self.flip, self.crop, self.cutout, self.rotation, self.zoom)

    @property
    def text(self) -> TextSettings:
        return TextSettings(self.text_column, self.label_column, self.tokens, self.vocabulary)


@dataclass(frozen=True)
class StartSettings:
    """Trained model from whose weights the training starts.

    Args:
        model: Run folder or model file; empty for random weights.
        digest: SHA-256 of the model file. It is recorded when the run begins; a file with another one is an error.
        train_layers: Numbers of the layers to train, from 1; the others are frozen. Empty: all layers.
    """

    model: str = ""
    digest: str = ""
    train_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(
            bool(self.model) or not (self.digest or self.train_layers),
            "start.digest and start.train_layers need start.model, the run to start from: add it, or leave them out.",
        )
        require(
            len(set(self.train_layers)) == len(self.train_layers) and min(self.train_layers, default=1) >= 1,
            f"start.train_layers must be different layer numbers from 1, got {list(self.train_layers)}.",
        )


def check_options(method: type[Method], options: Mapping[str, Any]) -> None:
    """Refuse an option of other methods, and name one of them."""
    for name in options:
        other = next((other.name for other in METHODS.values() if name in other.options()), None)
        if name not in method.options() and other:
            own = ", ".join(f"options.{option}" for option in method.options())
            instead = f"{own}, or a method" if own else "a method"
            raise FaustnetError(
                f"options.{name} is not an option of {method.name}: choose {instead} that has it, such as {other}."
            )


@dataclass(frozen=True)
class Recipe:
    """All settings that determine a run. `options` are those of the method, including its defaults."""

    dataset: str = "digits"
    method: str = "faust-representative"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    data: DataSettings = field(default_factory=DataSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    prediction: PredictionSettings = field(default_factory=PredictionSettings)
    start: StartSettings = StartSettings()  # recipes in pickles of version 0.1 have none

    def __post_init__(self) -> None:
        method = method_named(self.method)
        check_options(method, self.options)
        given = convert_values(self.options, method.option_types(), "options")
        object.__setattr__(self, "options", method.options() | given)  # with the defaults, so that a run stores them all
        require(
            not self.data.digest or self.dataset == MEMORY,
            f"data.digest is for data in memory, got the data set {self.dataset}: leave it out.",
        )
        require(self.seed >= 0, f"seed must be 0 or more, got {self.seed}.")
        require(
            self.training.schedule != "greedy" or not self.data.augmentation,
            "training.schedule=greedy caches activations, so it does not support augmentation: use another schedule, or "
            "leave out data.flip, data.crop, data.cutout, data.rotation and data.zoom.",
        )

    def build_method(self, shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> Method:
        """Build the untrained method for images of this shape, (channels, height, width), or for texts, (tokens,), with a
        vocabulary. Draws its weights from torch's global generator."""
        sample = TextShape(shape[0], vocabulary) if vocabulary else cast(Shape, shape)
        method = build(self.method, sample, classes, self.network, self.options)
        method.set_prediction(self.prediction)
        return method
