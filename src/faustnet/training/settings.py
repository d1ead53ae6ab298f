"""Settings of a training, as a recipe has them."""

from dataclasses import dataclass

from faustnet.errors import require, unknown
from faustnet.nn.precision import PRECISIONS
from faustnet.training.schedules import SCHEDULES


@dataclass(frozen=True)
class TrainingSettings:
    """Length and order of the training.

    `epochs` is for every layer: the greedy schedule trains each layer for that many epochs. The incomplete last batch of an
    epoch is dropped; shuffling changes which images that affects. `validation` holds out a fraction of the training
    images, or a number of them if it is 1 or more, and the model is evaluated on those instead of the test images while
    training. The model is evaluated every `evaluate_every` epochs and at the end. `balance` draws all classes equally often:
    images of small classes appear several times in an epoch, and not all images of large classes do.

    `schedule` "auto" is wavefront for local methods on a GPU, and sequential otherwise. `precision` is that of matrix
    products while training: "tf32" (where the GPU has it), "float32" or "bfloat16".
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
        if self.schedule not in ("auto", *SCHEDULES):
            raise unknown("schedule", self.schedule, ["auto", *SCHEDULES])
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        require(
            self.validation >= 0,
            f"training.validation must be a fraction below 1 or a number of images, got {self.validation}.",
        )
