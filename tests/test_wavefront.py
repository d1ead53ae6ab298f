"""The wavefront is the sequential schedule in another order of work."""

from dataclasses import replace

import pytest
import torch

from conftest import run_to_end, small_method, small_trainer
from faustnet.data import Augmentation, ImageSource, Scaling
from faustnet.nn.architectures import NetworkSettings
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules import step_graph
from faustnet.training.schedules.step_graph import Recording
from faustnet.training.settings import TrainingSettings

UNEQUAL = NetworkSettings((32, 32, 32, 20, 20), 12)
OPTIMISERS = {
    "adam": OptimiserSettings(weight_decay=0.01),
    "adamw": OptimiserSettings("adamw", weight_decay=0.1, warmup=0.1),
    "sgd": OptimiserSettings("sgd", learning_rate=0.01, weight_decay=0.01),
    "plain": OptimiserSettings("sgd", learning_rate=0.01, momentum=0.0),
    "muon": OptimiserSettings("muon", learning_rate=0.01, weight_decay=0.1),
}


@pytest.fixture(scope="module")
def exact(source: ImageSource) -> ImageSource:
    """In double precision, and distorted."""
    scaling = Scaling(source.scaling.mean.double(), source.scaling.deviation.double())
    return replace(source, scaling=scaling, augmentation=Augmentation(flip=True, crop=1))


def trainer(
    schedule: str,
    images: ImageSource,
    name: str = "faust-tuplet",
    network: NetworkSettings = UNEQUAL,
    optimiser: str = "adam",
    epochs: int = 3,
    options: dict[str, object] | None = None,
) -> TrainingLoop:
    settings = TrainingSettings(epochs=epochs, batch_size=64, schedule=schedule, evaluate_every=max(1, epochs // 4))
    method = small_method(name, network, **(options or {})).double()
    return TrainingLoop(
        method, images, replace(images, augmentation=Augmentation()), settings, OPTIMISERS[optimiser], seed=0
    )


@pytest.fixture(scope="module")
def whole(exact: ImageSource) -> TrainingLoop:
    """At the end of the sequential schedule."""
    return run_to_end(trainer("sequential", exact))


def stop_after(trained: TrainingLoop, count: int) -> None:
    """Run to the end of a batch."""
    done = 0

    def after_batch() -> None:
        nonlocal done
        done += 1
        if done == count:
            trained.stop()

    assert not trained.run(after_batch, lambda epoch: None)


def assert_same(one: TrainingLoop, other: TrainingLoop) -> None:
    """The same weights, the same memory of the optimiser, the same history but for the seconds."""
    (mine, facts), (others, other_facts) = one.state(), other.state()
    assert mine.keys() == others.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], others[name], rtol=1e-5, atol=1e-12, msg=lambda text, name=name: name + text)
    assert facts["batch"] == other_facts["batch"]
    for a, b in zip(facts["history"], other_facts["history"], strict=True):
        assert a["losses"] == pytest.approx(b["losses"], rel=1e-5)
        assert (a["accuracy"], a["layer_accuracy"]) == (b["accuracy"], b["layer_accuracy"])


@pytest.mark.parametrize(
    ("schedule", "milliseconds", "widths"),
    [
        ("sequential", 0.5, ()),
        ("wavefront", 0.5, ()),
        ("sequential", 5.0, ()),
        ("wavefront", 5.0, ()),
        ("wavefront", 0.5, (24,) * 6),
        ("wavefront", 0.5, (24,)),
    ],
)
def test_steps_that_are_done_together_are_those_steps(
    schedule: str, milliseconds: float, widths: tuple[int, ...], exact: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU eight short steps are recorded as one, and two long ones of the wavefront; here two are done as one, and a
    stop comes between two such."""
    network = NetworkSettings(widths, 16) if widths else UNEQUAL
    one_by_one, together = (trainer(schedule, exact, network=network) for _ in range(2))
    monkeypatch.setattr(step_graph, "STEPS", 2)
    done = set()

    def work(self: Recording) -> None:
        done.add(self.work.args[0])
        self.work()

    monkeypatch.setattr(step_graph, "warm_up", lambda work, changes: None)
    monkeypatch.setattr(Recording, "__init__", lambda self, work, shares=None: setattr(self, "work", work))
    monkeypatch.setattr(Recording, "__call__", work)
    monkeypatch.setattr(Recording, "milliseconds", lambda self, changes: milliseconds)
    together.schedule.graph.recorded = True
    stop_after(together, 11)
    stop_after(one_by_one, 11)
    assert_same(together, one_by_one)
    together.stopping = one_by_one.stopping = False
    run_to_end(together)
    run_to_end(one_by_one)
    assert_same(together, one_by_one)
    assert done == ({1, 2} if milliseconds < step_graph.SHORT or schedule == "wavefront" else {1})


NETWORKS = {
    "unequal": UNEQUAL,
    "equal": NetworkSettings((24,) * 4, 16, passes_on="embedding"),
    "learned length": NetworkSettings((24,) * 3, 16, length="learned"),
    "batch norm": NetworkSettings((24,) * 3, 16, norm="batch"),
}
BOTH = ["faust-representative", "forward-forward"]  # test_unchanged_learning.py covers every method, with fewer steps
METHODS_OF = {"learned length": BOTH[:1], "batch norm": ["faust-representative", "cwc"]}


@pytest.mark.parametrize(
    ("name", "network"),
    [
        pytest.param(name, network, id=f"{name}-{words}")
        for words, network in NETWORKS.items()
        for name in METHODS_OF.get(words, BOTH)
    ],
)
def test_two_hundred_steps_give_the_weights_of_the_sequential_schedule(
    name: str, network: NetworkSettings, exact: ImageSource
) -> None:
    one, other = (run_to_end(trainer(schedule, exact, name, network, epochs=40)) for schedule in ("wavefront", "sequential"))
    assert one.batches * one.epochs == 200
    for mine, theirs in zip(one.method.parameters(), other.method.parameters(), strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
    assert_same(one, other)


@pytest.mark.parametrize("name", ["faust-representative", "faust-prototype"])
def test_it_is_the_same_with_a_scale_that_changes_and_terms_of_the_batch(name: str, exact: ImageSource) -> None:
    options = {"final_scale": 0.2, "contrast": 0.3, "matching": 0.7, "mixup": 0.4}
    one, other = (run_to_end(trainer(schedule, exact, name, options=options)) for schedule in ("wavefront", "sequential"))
    assert_same(one, other)
    plain = run_to_end(trainer("wavefront", exact, name))
    assert one.history[-1].losses != pytest.approx(plain.history[-1].losses)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_it_is_the_same_with_every_optimiser(optimiser: str, exact: ImageSource) -> None:
    one, other = (run_to_end(trainer(schedule, exact, optimiser=optimiser)) for schedule in ("wavefront", "sequential"))
    assert_same(one, other)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7, 14])
def test_a_run_that_is_put_down_has_drained_and_can_be_taken_up_by_either_schedule(
    count: int, exact: ImageSource, whole: TrainingLoop
) -> None:
    """Also where fewer batches are on their way than there are layers."""
    one, other = trainer("wavefront", exact), trainer("sequential", exact)
    for each in (one, other):
        stop_after(each, count)
    assert_same(one, other)
    state = one.state()
    for schedule in ("wavefront", "sequential"):
        continued = trainer(schedule, exact)
        continued.restore(*state)
        assert_same(run_to_end(continued), whole)


@pytest.mark.parametrize("widths", [(24,), (24,) * 9, (64, 64, 24, 24, 64)])
def test_there_may_be_one_layer_or_more_layers_than_batches(widths: tuple[int, ...], exact: ImageSource) -> None:
    network = NetworkSettings(widths, 12)
    one, other = (run_to_end(trainer(schedule, exact, network=network)) for schedule in ("wavefront", "sequential"))
    assert_same(one, other)


def test_a_run_that_has_not_begun_can_be_taken_up_by_either_schedule(exact: ImageSource, whole: TrainingLoop) -> None:
    for schedule in ("wavefront", "sequential"):
        continued = trainer(schedule, exact)
        continued.restore(*trainer("sequential", exact).state())
        assert_same(run_to_end(continued), whole)


def test_a_run_that_is_put_down_twice_in_one_epoch(exact: ImageSource, whole: TrainingLoop) -> None:
    one = trainer("wavefront", exact)
    for _ in range(2):
        stop_after(one, 2)
        continued = trainer("wavefront", exact)
        continued.restore(*one.state())
        one = continued
    assert_same(run_to_end(one), whole)


def test_a_state_of_another_network_is_refused(exact: ImageSource) -> None:
    one = trainer("wavefront", exact)
    stop_after(one, 1)
    tensors, facts = one.state()
    key = next(key for key in tensors if key.endswith("exp_avg"))
    with pytest.raises(ValueError, match="other parameters"):
        trainer("wavefront", exact).restore({k: v for k, v in tensors.items() if k != key}, facts)
    with pytest.raises(ValueError, match="does not match the network"):
        trainer("wavefront", exact).restore(tensors | {key: torch.zeros(3)}, facts)


def test_it_trains_with_dropout(source: ImageSource, held_out: ImageSource) -> None:
    network = NetworkSettings((64, 64, 64), 32, dropout=0.2)
    settings = OptimiserSettings(learning_rate=3e-3)
    wavefront, sequential = (
        run_to_end(
            small_trainer(
                "faust-representative", source, held_out, network=network, schedule=name, optimiser=settings, epochs=20
            )
        )
        for name in ("wavefront", "sequential")
    )
    assert wavefront.history[-1].losses[0] == pytest.approx(sequential.history[-1].losses[0])  # images are not dropped
    assert wavefront.history[-1].losses[1] != pytest.approx(sequential.history[-1].losses[1])
    for before, after in zip(wavefront.history[0].losses, wavefront.history[-1].losses, strict=True):
        assert after < before / 10
    assert wavefront.history[-1].accuracy == pytest.approx(sequential.history[-1].accuracy, abs=0.05)


@pytest.mark.parametrize("schedule", ["sequential", "wavefront", "greedy"])
def test_bfloat16_is_for_products_alone_and_trains_nearly_as_well(
    schedule: str, source: ImageSource, held_out: ImageSource
) -> None:
    exact, rough = (
        run_to_end(small_trainer("faust-representative", source, held_out, schedule=schedule, precision=precision, epochs=8))
        for precision in ("float32", "bfloat16")
    )
    assert {tensor.dtype for tensor in rough.method.parameters()} == {torch.float32}
    assert rough.history[-1].losses != exact.history[-1].losses
    assert rough.history[-1].accuracy == pytest.approx(exact.history[-1].accuracy, abs=0.05)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_update_of_several_layers_is_torchs_for_every_layer_that_is_active(name: str) -> None:
    settings = OPTIMISERS[name]
    torch.manual_seed(0)
    together = torch.randn(3, 4, 5, dtype=torch.float64)
    apart = [torch.nn.ParameterList([layer.detach().clone()]) for layer in together]
    updates = [settings.create().updates(layer, [layer.parameters()]) for layer in apart]
    ours = settings.create()
    state = [torch.zeros_like(together) for _ in ours.slots(dimensions=2)]
    taken = torch.zeros(3)
    for step in range(12):
        gradient = torch.randn(3, 4, 5, dtype=torch.float64)
        active = torch.tensor([True, step >= 3, step % 2 == 0])
        rates = torch.tensor([0.01, 0.02, 0.03], dtype=torch.float64) * (1 + step)
        taken += active
        ours.update(together, gradient, state, ours.factors(rates, taken.clamp_min(1), active), together)
        for number, (layer, own) in enumerate(zip(apart, updates, strict=True)):
            if active[number]:
                layer[0].grad = gradient[number]
                own.step(rates[number])
    for mine, theirs in zip(together, apart, strict=True):
        torch.testing.assert_close(mine, theirs[0].detach(), rtol=1e-10, atol=1e-12)
