"""Parameters that a user has frozen stay as they are under every schedule, and the rest is trained."""

from collections.abc import Callable

import pytest
import torch

from conftest import run_to_end
from faustnet.errors import FaustnetError
from faustnet.methods import LocalMethod
from faustnet.nn.layers import Layer
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from user_classes import NormLayer, OwnLayer, TemperatureLayer, assert_same_state, own_trainer, trained

SCHEDULES = ("sequential", "wavefront", "greedy")


def freeze(*names: str) -> Callable[[LocalMethod], None]:
    def change(method: LocalMethod) -> None:
        for name, parameter in method.named_parameters():
            parameter.requires_grad_(not name.startswith(names))

    return change


FROZEN = {"layer": "network.layers.1.", "first layer": "network.layers.0.", "weight": "network.layers.1.body.linear.weight"}
LAYERS = {"batched": OwnLayer, "one by one": NormLayer}


@pytest.mark.parametrize(
    ("schedule", "frozen", "layer"),
    [
        pytest.param(schedule, prefix, LAYERS[layer], id=f"{schedule}-{what}-{layer}")
        for schedule in SCHEDULES
        for what, prefix in FROZEN.items()
        for layer in LAYERS
    ],
)
def test_frozen_parameters_stay_and_the_rest_is_trained(schedule: str, frozen: str, layer: Callable[[int], Layer]) -> None:
    """Weight decay does not reach them either."""
    decaying = OptimiserSettings("adamw", weight_decay=0.1)
    made = own_trainer([layer] * 3, schedule, change=freeze(frozen), optimiser=decaying)
    before = {name: tensor.clone() for name, tensor in made.method.named_parameters()}
    run_to_end(made)
    stayed = {name for name, tensor in made.method.named_parameters() if torch.equal(tensor, before[name])}
    assert stayed == {name for name in before if name.startswith(frozen)}


@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_with_frozen_parameters_the_wavefront_is_the_sequential_schedule(frozen: str) -> None:
    one, other = (trained([OwnLayer] * 3, schedule, change=freeze(frozen)) for schedule in ("wavefront", "sequential"))
    assert_same_state(one, other)


def done(trainer: TrainingLoop) -> int:
    """Batches so far."""
    return len(trainer.history) * trainer.batches + trainer.batch


@pytest.mark.parametrize(
    "schedule",
    [
        "sequential",
        "wavefront",
        "greedy",
    ],
)
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_a_training_with_frozen_parameters_can_be_continued(schedule: str, frozen: str) -> None:
    whole, begun, continued = (own_trainer([OwnLayer] * 3, schedule, change=freeze(frozen)) for _ in range(3))
    run_to_end(whole)
    half = begun.epochs * begun.batches // 2  # in the middle of an epoch, of the second layer under the greedy schedule
    assert not begun.run(lambda: begun.stop() if done(begun) == half else None, lambda epoch: None)
    continued.restore(*begun.state_on_host())
    run_to_end(continued)
    assert_same_state(continued, whole)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_parameter_that_no_loss_reads_is_refused(schedule: str) -> None:
    with pytest.raises(FaustnetError, match=r"network\.layers\.0\.body\.temperature gets no gradient.*requires_grad_"):
        own_trainer([TemperatureLayer] * 2, schedule)
