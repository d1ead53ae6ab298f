import pytest
import torch

from conftest import run_to_end, small_trainer
from faustnet.data import Augmentation, ImageSource
from faustnet.errors import FaustnetError
from faustnet.methods import PredictionSettings
from faustnet.nn.architectures import NetworkSettings
from faustnet.training.loop import TrainingLoop, balanced
from faustnet.training.optimisers import OptimiserSettings

RANDOM = NetworkSettings((32, 24), 16, dropout=0.2)


@pytest.fixture(scope="module")
def distorted(source: ImageSource) -> ImageSource:
    return ImageSource(
        source.images, source.scaling, source.class_names, Augmentation(flip=True, crop=1, rotation=5, zoom=0.05)
    )


def run_batches(trainer: TrainingLoop, count: int) -> None:
    """Train for so many batches, then stop."""
    done = []

    def after_batch() -> None:
        done.append(1)
        if len(done) == count:
            trainer.stop()

    assert not trainer.run(after_batch, lambda epoch: None)


def same_weights(one: TrainingLoop, other: TrainingLoop) -> bool:
    pairs = zip(one.method.state_dict().values(), other.method.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def whole_runs() -> dict[object, TrainingLoop]:
    """Trainings without interruption, so that each is done once."""
    return {}


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("stop_at", [1, 3, 5, 7, 10])
def test_a_run_that_was_put_down_ends_as_one_that_was_not(
    stop_at: int,
    optimiser: str,
    distorted: ImageSource,
    held_out: ImageSource,
    whole_runs: dict[object, TrainingLoop],
) -> None:
    """With everything random that there is: drawn tuplets, dropout, flips and crops. An epoch has five batches."""

    def make() -> TrainingLoop:
        settings = OptimiserSettings(optimiser, learning_rate=1e-3, weight_decay=0.01)
        return small_trainer("faust-tuplet", distorted, held_out, network=RANDOM, optimiser=settings, epochs=3)

    interrupted = make()
    run_batches(interrupted, stop_at)
    tensors, facts = interrupted.state()
    torch.rand(17)  # what happens in between is of no consequence
    continued = make()
    continued.restore({name: tensor.clone() for name, tensor in tensors.items()}, facts)
    run_to_end(continued)
    whole = whole_runs.get(optimiser) or whole_runs.setdefault(optimiser, run_to_end(make()))
    assert same_weights(continued, whole)
    assert [epoch.losses for epoch in continued.history] == [epoch.losses for epoch in whole.history]


@pytest.mark.parametrize("stop_at", [3, 5, 8, 12])
@pytest.mark.parametrize(
    ("name", "schedule"),
    [("faust-centroid", "sequential")]
    + [(name, s) for name in ("faust-representative", "faust-prototype") for s in ("sequential", "wavefront", "greedy")],
)
def test_a_scale_that_changes_and_running_means_are_taken_up_where_they_were(
    name: str,
    schedule: str,
    stop_at: int,
    source: ImageSource,
    held_out: ImageSource,
    whole_runs: dict[object, TrainingLoop],
) -> None:
    def make() -> TrainingLoop:
        return small_trainer(name, source, held_out, options={"final_scale": 0.5}, schedule=schedule, epochs=3)

    interrupted, continued = make(), make()
    run_batches(interrupted, stop_at)
    continued.restore(*interrupted.state())
    whole = whole_runs.get((name, schedule)) or whole_runs.setdefault((name, schedule), run_to_end(make()))
    assert same_weights(run_to_end(continued), whole)


@pytest.mark.parametrize(("schedule", "stages"), [("sequential", 1), ("wavefront", 1), ("greedy", 2)])
def test_the_scale_is_that_of_the_epoch_in_its_stage(
    schedule: str, stages: int, source: ImageSource, held_out: ImageSource
) -> None:
    options = {"scale": 0.01, "final_scale": 0.16}
    trainer = small_trainer("faust-prototype", source, held_out, options=options, schedule=schedule, epochs=3)
    now = trainer.method.objective.terms[0].current_scale
    scales: list[float] = []
    assert trainer.run(lambda: scales.append(now.item()), lambda epoch: None)
    assert trainer.method.objective.terms[0].current_scale is now, "a recorded step reads it there"
    assert scales == pytest.approx(([0.01] * 5 + [0.04] * 5 + [0.16] * 5) * stages)


@pytest.mark.parametrize("stop_at", [3, 10, 12, 20])
def test_a_greedy_run_can_be_put_down_in_any_stage(stop_at: int, source: ImageSource, held_out: ImageSource) -> None:
    def make() -> TrainingLoop:
        return small_trainer(
            "forward-forward", source, held_out, network=NetworkSettings((32, 24, 16), dropout=0.2), schedule="greedy"
        )

    interrupted = make()
    run_batches(interrupted, stop_at)
    continued = make()
    continued.restore(*interrupted.state())
    assert same_weights(run_to_end(continued), run_to_end(make()))


def test_training_leaves_the_callers_random_numbers_alone(source: ImageSource, held_out: ImageSource) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    run_to_end(small_trainer("faust-triplet", source, held_out, network=RANDOM))
    assert torch.equal(torch.rand(3), expected)


def test_the_history_has_every_layers_loss_and_accuracy(source: ImageSource, held_out: ImageSource) -> None:
    seen = []
    trainer = small_trainer("faust-representative", source, held_out, epochs=3)
    trainer.run(lambda: None, seen.append)
    assert seen == trainer.history
    assert [epoch.epoch for epoch in seen] == [1, 2, 3]
    for epoch in seen:
        assert len(epoch.losses) == len(epoch.layer_accuracy) == 2
        assert 0 <= epoch.accuracy <= 1
        assert epoch.seconds > 0


@pytest.mark.parametrize("schedule", ["sequential", "greedy"])
def test_votes_are_weighted_as_soon_as_all_layers_have_begun(
    schedule: str, source: ImageSource, held_out: ImageSource
) -> None:
    trainer = small_trainer("faust-representative", source, held_out, schedule=schedule)
    trainer.method.set_prediction(PredictionSettings(weights=(0, 1)))
    run_to_end(trainer)
    for epoch in trainer.history:
        begun = [value for value in epoch.layer_accuracy if value is not None]
        assert epoch.accuracy == begun[-1]
        assert len(begun) == (1 if schedule == "greedy" and epoch.epoch <= 2 else 2)


def test_only_every_second_epoch_and_the_last_one_are_measured(source: ImageSource, held_out: ImageSource) -> None:
    often = run_to_end(small_trainer("faust-representative", source, held_out, epochs=5))
    seldom = run_to_end(small_trainer("faust-representative", source, held_out, epochs=5, evaluate_every=2))
    for every, some in zip(often.history, seldom.history, strict=True):
        assert some.losses == every.losses
        if some.epoch in (2, 4, 5):
            assert (some.accuracy, some.layer_accuracy) == (every.accuracy, every.layer_accuracy)
            assert some.first_layers_accuracy[-1] == some.accuracy
            assert some.first_layers_accuracy[0] == some.layer_accuracy[0]
        else:
            assert (some.accuracy, some.layer_accuracy, some.first_layers_accuracy) == (None, [], [])


def test_the_loss_in_the_history_is_the_mean_over_the_batches(source: ImageSource, held_out: ImageSource) -> None:
    trainer = small_trainer("faust-representative", source, held_out, epochs=1)
    losses = []
    batched_loss = trainer.method.batched_loss

    def watched(embedding: torch.Tensor, y: torch.Tensor, layers: slice) -> torch.Tensor:
        losses.append(batched_loss(embedding, y, layers))
        return losses[-1]

    trainer.method.batched_loss = watched
    run_to_end(trainer)
    assert trainer.history[0].losses == pytest.approx(torch.stack(losses).reshape(5, 2).mean(0).tolist())


def test_every_image_is_seen_once_in_an_epoch_and_in_another_order_in_the_next(
    source: ImageSource, held_out: ImageSource
) -> None:
    watched = Watched(source)
    run_to_end(small_trainer("backprop", watched, held_out, epochs=2))  # type: ignore[arg-type]
    seen = watched.positions
    assert sorted(seen[:320]) == sorted(seen[320:]) == list(range(320))
    assert seen[:320] != seen[320:]


@pytest.mark.parametrize(("name", "what"), [("faust-representative", "The loss of layer 1"), ("backprop", "The loss")])
def test_a_loss_that_is_no_number_stops_the_run_and_says_where(
    name: str, what: str, source: ImageSource, held_out: ImageSource
) -> None:
    settings = OptimiserSettings("sgd", learning_rate=1e30)
    trainer = small_trainer(name, source, held_out, optimiser=settings)
    with pytest.raises(FaustnetError, match=f"^{what} is no longer finite in epoch 1: try a learning rate below 1e"):
        run_to_end(trainer)


def test_a_weight_that_breaks_in_the_last_step_is_noticed(source: ImageSource, held_out: ImageSource) -> None:
    trainer = small_trainer("faust-representative", source, held_out, epochs=1)

    def break_at_the_end() -> None:
        if trainer.batch == trainer.batches:
            trainer.method.network[1].body.linear.bias.data[0] = torch.nan

    with pytest.raises(FaustnetError, match="A weight of layer 2 is no longer finite in epoch 1"):
        trainer.run(break_at_the_end, lambda epoch: None)


def test_a_batch_larger_than_the_data_is_refused(source: ImageSource, held_out: ImageSource) -> None:
    with pytest.raises(
        FaustnetError, match=r"batch_size must be at most the number of training images, 320, got 321: try 160\."
    ):
        small_trainer("backprop", source, held_out, batch_size=321)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors, facts: facts.update(batch=9999),
        lambda tensors, facts: facts.update(batch="two"),
        lambda tensors, facts: facts.update(seconds=None),
        lambda tensors, facts: facts.update(history=facts["history"] * 9),
        lambda tensors, facts: tensors.pop("generator.cpu"),
        lambda tensors, facts: tensors.update({"generator.cpu": torch.zeros(3)}),
        lambda tensors, facts: tensors.pop("totals"),
        lambda tensors, facts: tensors.pop("method.network.layers.0.body.linear.bias"),
        lambda tensors, facts: tensors.update({"optimiser.network.layers.0.body.linear.weight/exp_avg": torch.zeros(2, 2)}),
        lambda tensors, facts: [tensors.pop(name) for name in list(tensors) if "0.body.linear.weight/" in name],
        lambda tensors, facts: tensors.update({"optimiser.read_out.weight/exp_avg": torch.zeros(2, 2)}),
    ],
)
def test_a_state_that_does_not_fit_is_refused(spoil, source: ImageSource, held_out: ImageSource) -> None:  # type: ignore[no-untyped-def]
    trainer = small_trainer("faust-representative", source, held_out)
    run_batches(trainer, 6)
    tensors, facts = trainer.state()
    spoil(tensors, facts)
    with pytest.raises((RuntimeError, LookupError, ValueError, TypeError, AttributeError)):
        small_trainer("faust-representative", source, held_out).restore(tensors, facts)


def test_plain_gradient_descent_has_no_state_and_needs_none(source: ImageSource, held_out: ImageSource) -> None:
    plain = OptimiserSettings("sgd", learning_rate=0.1, momentum=0.0)
    trainer = small_trainer("faust-representative", source, held_out, optimiser=plain)
    run_batches(trainer, 6)
    continued = small_trainer("faust-representative", source, held_out, optimiser=plain)
    continued.restore(*trainer.state())
    whole = run_to_end(small_trainer("faust-representative", source, held_out, optimiser=plain))
    assert same_weights(run_to_end(continued), whole)


@pytest.mark.parametrize(("schedule", "stages"), [("sequential", 1), ("greedy", 2)])
def test_every_step_has_the_learning_rate_of_its_place_in_the_stage(
    schedule: str, stages: int, source: ImageSource, held_out: ImageSource
) -> None:
    optimiser = OptimiserSettings(learning_rate=0.01, warmup=0.2)
    trainer = small_trainer("faust-representative", source, held_out, optimiser=optimiser, schedule=schedule)
    rates: list[float] = []

    def after_batch() -> None:
        rates.append(trainer.schedule.updates.rate.item())

    assert trainer.run(after_batch, lambda epoch: None)
    assert rates == [optimiser.rate(number, 10) for number in range(10)] * stages
    assert trainer.history[-1].learning_rate == rates[-1]


class Watched:
    """A source that remembers what it is asked for."""

    def __init__(self, source: ImageSource):
        self.source, self.labels, self.class_names = source, source.labels, source.class_names
        self.plain_images = 0
        self.positions: list[int] = []  # of images that were distorted

    def plain(self, index: torch.Tensor) -> torch.Tensor:
        self.plain_images += len(index)
        return self.source.plain(index)

    def augmented(self, index: torch.Tensor) -> torch.Tensor:
        self.positions += index.tolist()
        return self.source.augmented(index)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("backprop", 1), ("forward-forward", 1), ("faust-triplet", 3), ("faust-tuplet", 11), ("faust-representative", 1)],
)
def test_all_that_is_trained_on_is_distorted_but_for_the_representatives(
    name: str, rows: int, source: ImageSource, held_out: ImageSource
) -> None:
    watched = Watched(source)
    trainer = small_trainer(name, watched, held_out)  # type: ignore[arg-type]
    before = watched.plain_images
    watched.positions.clear()
    run_batches(trainer, 1)
    assert len(watched.positions) == 64 * rows
    assert watched.plain_images == before


def test_a_balanced_epoch_has_every_class_equally_often_and_each_of_its_images_too() -> None:
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 7)
    members = [(labels == number).nonzero()[:, 0] for number in range(3)]
    order = balanced(members, 60, torch.Generator().manual_seed(0))
    assert torch.bincount(labels[order]).tolist() == [20, 20, 20]
    times = torch.bincount(order, minlength=60)
    for own in members:
        assert times[own].max() - times[own].min() <= 1
    other = balanced(members, 60, torch.Generator().manual_seed(1))
    assert not torch.equal(order, other)
    assert torch.bincount(labels[balanced(members, 61, torch.Generator())]).tolist() == [21, 20, 20]


@pytest.mark.parametrize("schedule", ["sequential", "greedy"])
def test_balanced_training_can_be_put_down_too(schedule: str, source: ImageSource, held_out: ImageSource) -> None:
    first = [(source.labels == number).nonzero()[: 20 - number, 0] for number in range(10)]
    uneven = ImageSource(source.images.take(torch.cat(first)), source.scaling, source.class_names)

    def make(*, balance: bool) -> TrainingLoop:
        return small_trainer("faust-tuplet", uneven, held_out, batch_size=32, schedule=schedule, balance=balance)

    interrupted = make(balance=True)
    run_batches(interrupted, 6)
    continued = make(balance=True)
    continued.restore(*interrupted.state())
    run_to_end(continued)
    assert same_weights(continued, run_to_end(make(balance=True)))
    assert not same_weights(continued, run_to_end(make(balance=False)))
