"""Settings of a training, as a recipe has them."""

from dataclasses import dataclass

from faustnet.errors import require
from faustnet.nn.precision import PRECISIONS
from faustnet.training.schedules import SCHEDULES


@dataclass(frozen=True)
class TrainingSettings:
    """Length and order of the training.

    Args:
        epochs: Number of epochs. The greedy schedule trains each layer for this number of epochs.
        batch_size: Images per batch. The incomplete last batch of an epoch is dropped; shuffling changes which images that
            affects.
        schedule: "sequential", "wavefront", "greedy", or "auto": wavefront for local methods on a GPU, otherwise sequential.
        precision: Precision of matrix products in training: "tf32" (on GPUs that support it), "float32" or "bfloat16".
        validation: Training images to hold out for validation: a fraction below 1, or a number. During training, the model
            is then evaluated on these instead of the test images.
        evaluate_every: Number of epochs between two evaluations. The last epoch always ends with one.
        balance: Whether to draw all classes equally often. An epoch then contains images of small classes several times,
            and not all images of large classes.
    """

    epochs: int = 20
    batch_size: int = 256
    schedule: str = "auto"
    precision: str = "tf32"
    validation: float = 0.0
    evaluate_every: int = 1
    balance: bool = False

    def __post_init__(self) -> None:
        for key in ("epochs", "batch_size", "evaluate_every"):
            value = getattr(self, key)
            require(value >= 1, f"training.{key} must be at least 1, got {value}.")
        for key, choices in (("schedule", ("auto", *SCHEDULES)), ("precision", PRECISIONS)):
            value = getattr(self, key)
            require(value in choices, f"training.{key} must be {' or '.join(choices)}, got {value!r}.")
        require(
            self.validation >= 0,
            f"training.validation must be 0 (off), a fraction below 1 or a number of images, got {self.validation}.",
        )
