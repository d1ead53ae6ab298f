import math

import pytest
import torch

from faustnet.errors import FaustnetError
from faustnet.optimisers import OptimiserSettings


def test_cosine_falls_from_the_full_rate_to_almost_nothing() -> None:
    settings = OptimiserSettings(learning_rate=0.1)
    rates = [settings.rate(step, 100) for step in range(100)]
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 100)) for step in range(100)])


def test_warm_up_rises_evenly_and_then_hands_over() -> None:
    settings = OptimiserSettings(learning_rate=0.1, warmup=0.1, decay="constant")
    rates = [settings.rate(step, 100) for step in range(100)]
    assert rates[:11] == pytest.approx([0.1 * (step + 1) / 11 for step in range(11)])
    assert rates[10:] == [0.1] * 90
    falling = OptimiserSettings(learning_rate=0.1, warmup=0.1)
    assert falling.rate(10, 100) == 0.1
    assert 0 < falling.rate(99, 100) < 1e-4


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_the_optimiser_is_the_one_that_was_named(name: str, kind: type) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = OptimiserSettings(name, learning_rate=0.5, weight_decay=0.1).make([weight])
    assert type(optimiser) is kind
    weight.grad = torch.zeros(3)
    optimiser.step()
    assert (weight < 1).all(), "weight decay pulls"


@pytest.mark.parametrize(
    "settings",
    [{"name": "adamm"}, {"decay": "linear"}, {"learning_rate": 0.0}, {"learning_rate": math.inf}, {"warmup": 1.0}],
)
def test_impossible_optimisers_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(FaustnetError):
        OptimiserSettings(**settings)
