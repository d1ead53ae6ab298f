"""A training loop of a user: a method that has to be made ready before it predicts says so."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import faustnet
from conftest import SMALL, run_to_end, small_method, small_trainer, started
from faustnet.data import DataSet, ImageSource
from faustnet.errors import FaustnetError
from faustnet.methods import Method, Source
from faustnet.nn.architectures import NetworkSettings
from faustnet.training.evaluation import evaluate, evaluating
from user_classes import OwnMethod


def own_loop(method: Method, train: ImageSource, steps: int = 3) -> None:
    optimiser = torch.optim.Adam(method.parameters())
    method.train()
    for number in range(steps):
        index = torch.arange(number * 32, number * 32 + 32)
        for losses in method.losses(train.augmented(index), train.labels[index]):
            losses.sum().backward()
            optimiser.step()
            optimiser.zero_grad()
    method.eval()


def make_ready(method: Method, train: ImageSource) -> Method:
    with evaluating(method):
        method.make_ready(train)
    return method


BATCH_NORM = replace(SMALL, norm="batch")
PREPARED: list[tuple[str, NetworkSettings, dict[str, Any]]] = [
    ("faust-representative", SMALL, {}),
    ("faust-prototype", SMALL, {}),
    ("faust-tuplet", SMALL, {}),
    ("ffcm", SMALL, {}),
    ("forward-forward", SMALL, {"inference": "one-pass"}),
    ("backprop", BATCH_NORM, {}),
]
READY = [("faust-centroid", {}), ("backprop", {}), ("forward-forward", {}), ("symba", {})]


@pytest.fixture(params=PREPARED, ids=["-".join([name, network.norm, *options]) for name, network, options in PREPARED])
def prepared(request: pytest.FixtureRequest, source: ImageSource) -> Method:
    """A method that predicts after `make_ready` only, in a training loop."""
    name, network, options = request.param
    method = started(name, source, network, **options)
    own_loop(method, source)
    return method


def some(held_out: ImageSource) -> Tensor:
    return held_out.plain(torch.arange(20))


def test_a_prediction_without_make_ready_is_refused(prepared: Method, source: ImageSource, held_out: ImageSource) -> None:
    x = some(held_out)
    with pytest.raises(FaustnetError, match="make_ready"):
        prepared.predict(x)
    assert make_ready(prepared, source).predict(x).shape == (20,)
    own_loop(prepared, source, steps=1)
    with pytest.raises(FaustnetError, match="make_ready"):
        prepared.predict(x)
    assert make_ready(prepared, source).predict(x).shape == (20,)


def test_a_measurement_without_make_ready_is_refused(prepared: Method, held_out: ImageSource) -> None:
    with pytest.raises(FaustnetError, match="make_ready"):
        evaluate(prepared, held_out)


def test_an_early_exit_without_make_ready_is_refused(source: ImageSource, held_out: ImageSource) -> None:
    method = started("faust-representative", source)
    own_loop(method, source)
    with pytest.raises(FaustnetError, match="make_ready"):
        method.predict_early(some(held_out), 0.1)  # type: ignore[operator]


def test_a_copy_of_a_method_that_is_not_ready_is_not_ready(prepared: Method, held_out: ImageSource) -> None:
    with pytest.raises(FaustnetError, match="make_ready"):
        copy.deepcopy(prepared).predict(some(held_out))


def test_a_method_that_was_never_trained_is_not_ready(held_out: ImageSource) -> None:
    with pytest.raises(FaustnetError, match="make_ready"):
        small_method("faust-representative").eval().predict(some(held_out))


class FinishingMethod(OwnMethod):
    """Fits the vectors of the classes to the embeddings of the last layer, once training has ended."""

    name: ClassVar[str] = "finishing-method"

    def finish(self, train: Source) -> None:
        *_, last = self.network.embeddings(train.plain(torch.arange(len(train.labels))))
        self.vectors.copy_(torch.stack([last[train.labels == label].mean(dim=0) for label in range(self.classes)]))


def test_a_users_method_that_overrides_finish_is_not_ready_before(source: ImageSource, held_out: ImageSource) -> None:
    method = FinishingMethod(FinishingMethod.make_network((1, 8, 8), 10, SMALL), 10)
    own_loop(method, source)
    with pytest.raises(FaustnetError, match="make_ready"):
        method.predict(some(held_out))
    assert make_ready(method, source).predict(some(held_out)).shape == (20,)


def test_a_copy_of_a_ready_method_predicts(prepared: Method, source: ImageSource, held_out: ImageSource) -> None:
    x = some(held_out)
    expected = make_ready(prepared, source).predict(x)
    assert torch.equal(copy.deepcopy(prepared).predict(x), expected)


def test_a_state_of_a_ready_method_predicts(prepared: Method, source: ImageSource, held_out: ImageSource) -> None:
    x = some(held_out)
    expected = make_ready(prepared, source).predict(x)
    network = BATCH_NORM if prepared.name == "backprop" else SMALL
    options = {"inference": "one-pass"} if prepared.name == "forward-forward" else {}
    other = small_method(prepared.name, network, seed=5, **options).eval()
    other.load_state_dict(prepared.state_dict())
    assert torch.equal(other.predict(x), expected)


def test_a_method_that_trained_to_the_end_predicts(source: ImageSource, held_out: ImageSource) -> None:
    made = run_to_end(small_trainer("faust-representative", source, held_out, epochs=1))
    assert made.method.eval().predict(some(held_out)).shape == (20,)


def test_a_loaded_model_predicts(digits: DataSet, tmp_path: Path) -> None:
    model = faustnet.load(faustnet.train({"network": {"widths": [12]}, "training": {"epochs": 1}}, tmp_path / "run").folder)
    assert len(model.predict(digits.test.pixels[:5])) == 5
    assert model.method.predict(model.source(digits.test).plain(torch.arange(5))).shape == (5,)


@pytest.mark.parametrize(("name", "options"), READY, ids=[name for name, _ in READY])
def test_a_method_that_needs_no_preparation_always_predicts(
    name: str, options: dict[str, Any], source: ImageSource, held_out: ImageSource
) -> None:
    method = started(name, source, **options)
    own_loop(method, source)
    assert method.predict(some(held_out)).shape == (20,)


def test_a_users_method_that_needs_no_preparation_always_predicts(source: ImageSource, held_out: ImageSource) -> None:
    method = OwnMethod(OwnMethod.make_network((1, 8, 8), 10, SMALL), 10)
    own_loop(method, source)
    assert method.predict(some(held_out)).shape == (20,)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda method: pickle.loads(pickle.dumps(method))], ids=["copy", "pickle"]
)
def test_copies_and_pickles_are_as_ready_as_the_method(
    duplicate: Callable[[Method], Method], prepared: Method, source: ImageSource, held_out: ImageSource
) -> None:
    x = some(held_out)
    with pytest.raises(FaustnetError, match="make_ready"):
        duplicate(prepared).predict(x)
    make_ready(prepared, source)
    other = duplicate(prepared)
    assert torch.equal(other.predict(x), prepared.predict(x))
    own_loop(other, source, steps=1)
    with pytest.raises(FaustnetError, match="make_ready"):
        other.predict(x)
    own_loop(prepared, source, steps=1)
    with pytest.raises(FaustnetError, match="make_ready"):
        duplicate(prepared).predict(x)
