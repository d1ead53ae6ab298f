import errno
import tempfile
import weakref
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import run_to_end, small_method, small_trainer, started
from faustnet.data import Augmentation, ImageSource
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, LocalMethod
from faustnet.nn.architectures import NetworkSettings
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import evaluating
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules import SCHEDULES, Greedy, Sequential

EVERY_PAIR = [
    (name, schedule)
    for name, method in METHODS.items()
    for schedule in SCHEDULES
    if schedule == "sequential" or issubclass(method, LocalMethod)
]
TERMS = {"final_scale": 0.1, "contrast": 0.5, "matching": 0.5}
LOCAL = [name for name, method in METHODS.items() if issubclass(method, LocalMethod)]


@pytest.mark.parametrize("name", LOCAL)
def test_sequential_is_algorithm_1_written_out(name: str, source: ImageSource) -> None:
    """Each layer takes its step before the next one works, on what it computed before that step. In float64: with batch
    norm, weights of constant pixels have gradients that are rounding errors, which Adam would enlarge in float32."""
    ours, theirs = started(name, source).double(), started(name, source).double()
    schedule = Sequential(ours, source, OptimiserSettings().create())
    schedule.enter(0)
    optimisers = [torch.optim.Adam(layer.parameters(), lr=1e-3) for layer in theirs.network]
    batches = torch.arange(320).view(5, 64)
    schedule.begin(batches, torch.full((5,), 1e-3, dtype=torch.float64), 0)
    with seeded(5):
        for _ in batches:
            schedule.step()
    with seeded(5):
        for index in batches:
            y = source.labels[index]
            rows = theirs.rows(source.plain(index), y)
            for number, (layer, optimiser) in enumerate(zip(theirs.network, optimisers, strict=True)):
                outputs, embedding = layer(rows)
                optimiser.zero_grad()
                theirs.local_loss(embedding, y, number).backward()
                optimiser.step()
                rows = outputs.detach()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_embeddings_of_a_group_are_freed_before_the_next_group_is_computed(
    source: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = started("faust-representative", source, NetworkSettings((24, 20, 16), 12))
    monkeypatch.setattr(type(method), "loss_groups", lambda self, batch: [range(2), range(2, 3)])
    seen: list[weakref.ref[torch.Tensor]] = []
    for layer in method.network:
        layer.register_forward_hook(lambda module, inputs, outputs: seen.append(weakref.ref(outputs[1])))
    alive: list[list[bool]] = []
    method.network[2].register_forward_pre_hook(lambda module, inputs: alive.append([one() is not None for one in seen]))
    schedule = Sequential(method, source, OptimiserSettings("sgd").create())
    schedule.enter(0)
    schedule.begin(torch.arange(64).view(1, 64), torch.full((1,), 1e-3, dtype=torch.float64), 0)
    schedule.step()
    assert alive == [[False, False]]


@pytest.mark.parametrize("name", LOCAL)
def test_greedy_caches_just_what_the_finished_layers_would_give(name: str, source: ImageSource) -> None:
    method = started(name, source, NetworkSettings((24, 20, 16), 12))
    greedy = Greedy(method, source, OptimiserSettings().create())
    x, y = source.plain(torch.arange(50)), source.labels[:50]
    with seeded(7):
        rows = method.rows(x, y)
    for stage in range(len(method.network)):
        greedy.enter(stage)  # sets the statistics of the layer before
        if stage:
            with evaluating(method):
                rows = method.network[stage - 1](rows)[0]
        with seeded(7):
            torch.testing.assert_close(method.rows(greedy.received.plain(torch.arange(50)), y), rows, rtol=1e-4, atol=1e-5)


def test_greedy_trains_one_layer_after_the_other(source: ImageSource, held_out: ImageSource) -> None:
    trainer = small_trainer("faust-representative", source, held_out, schedule="greedy", epochs=3)
    fresh = small_method("faust-representative")
    weights = [[layer.body.linear.weight.clone() for layer in fresh.network]]
    trainer.run(
        lambda: None, lambda epoch: weights.append([layer.body.linear.weight.clone() for layer in trainer.method.network])
    )
    assert len(trainer.history) == 6
    for number, (before, after) in enumerate(pairwise(weights)):
        changed = [not torch.equal(b, a) for b, a in zip(before, after, strict=True)]
        assert changed == ([True, False] if number < 3 else [False, True])
    assert [[loss is None for loss in epoch.losses] for epoch in trainer.history] == [[False, True]] * 3 + [
        [True, False]
    ] * 3
    assert trainer.history[0].layer_accuracy[1] is None
    assert trainer.history[-1].accuracy > 0.6


def test_the_first_greedy_layer_learns_what_it_would_learn_beside_the_others(
    source: ImageSource, held_out: ImageSource
) -> None:
    greedy = run_to_end(small_trainer("faust-tuplet", source, held_out, schedule="greedy"))
    together = run_to_end(small_trainer("faust-tuplet", source, held_out))
    assert torch.equal(greedy.method.network[0].body.linear.weight, together.method.network[0].body.linear.weight)


@pytest.mark.parametrize("schedule", ["greedy", "wavefront"])
@pytest.mark.parametrize("name", ["backprop", "faust-centroid"])
def test_layers_that_are_trained_together_have_one_schedule(
    name: str, schedule: str, source: ImageSource, held_out: ImageSource
) -> None:
    said = f"schedule must be sequential for {name}, whose layers are trained together, got {schedule}"
    with pytest.raises(FaustnetError, match=said):
        small_trainer(name, source, held_out, schedule=schedule)


@pytest.mark.parametrize("name", METHODS)
def test_recording_knows_all_that_a_step_of_the_sequential_schedule_changes(name: str, source: ImageSource) -> None:
    method = started(name, source)
    schedule = Sequential(method, source, OptimiserSettings().create())
    schedule.enter(0)
    schedule.begin(torch.arange(320).view(5, 64), torch.full((5,), 1e-3, dtype=torch.float64), 0)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    schedule.step()
    known = {tensor.data_ptr() for tensor in schedule._all_changes()}
    changed = {name: tensor for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
    assert ("references.layer_0" in changed) == (name == "faust-centroid")
    assert {name for name, tensor in changed.items() if tensor.data_ptr() not in known} == set()


class NoWaiting(TorchDispatchMode):
    """Refuses the operations that make the host wait for a device: reading a number, counting, comparing."""

    WAITING = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "unique", "masked_select", "item")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.__name__.split(".")[0]
        assert name not in self.WAITING, f"{name} waits for the device"
        assert not any(
            isinstance(arg, torch.Tensor) and arg.dtype == torch.bool for arg in (args[1] if name == "index" else [])
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "schedule", "options"),
    [(*pair, {}) for pair in EVERY_PAIR]
    + [(name, "sequential", TERMS) for name in ("faust-representative", "faust-prototype", "faust-centroid")],
)
def test_nothing_between_batches_waits_for_the_device(
    name: str,
    schedule: str,
    options: dict[str, object],
    source: ImageSource,
    held_out: ImageSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distortion = Augmentation() if schedule == "greedy" else Augmentation(True, crop=1, cutout=2, rotation=10, zoom=0.1)
    images = ImageSource(source.images, source.scaling, source.class_names, distortion)
    network = NetworkSettings((24, 20), 12, dropout=0.1)
    trainer = small_trainer(name, images, held_out, network=network, schedule=schedule, options=options)

    def after_batch() -> None:
        if trainer.batch == 3:
            trainer.stop()

    monkeypatch.setattr("faustnet.losses.checks.check_range", lambda labels, classes: None)  # not called on a GPU
    monkeypatch.setattr("faustnet.training.schedules.groups._same", lambda *_: True)  # called before the first batch only
    for read in ("tolist", "cpu", "numpy", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, read, lambda *_, read=read: pytest.fail(f"{read} waits for the device"))
    with NoWaiting():
        assert not trainer.run(after_batch, lambda epoch: None)
    assert trainer.batch == 3


@pytest.mark.parametrize("name", ["faust-tuplet", "forward-forward"])
def test_activations_that_do_not_fit_lie_in_a_file_and_make_no_difference(
    name: str, source: ImageSource, held_out: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NetworkSettings((24, 20, 16), 12)
    in_memory = run_to_end(small_trainer(name, source, held_out, network=network, schedule="greedy"))
    monkeypatch.setattr("faustnet.training.schedules.greedy.free_memory", lambda device: 0)
    make, files = tempfile.TemporaryFile, []
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: files.append(make()) or files[-1])
    in_file = run_to_end(small_trainer(name, source, held_out, network=network, schedule="greedy"))
    assert len(files) == 2
    for mine, other in zip(in_file.method.parameters(), in_memory.method.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_disk_without_room_for_the_activations_is_an_error(
    source: ImageSource, held_out: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("faustnet.training.schedules.greedy.free_memory", lambda device: 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(FaustnetError, match=r"No space left on device.*TMPDIR"):
        run_to_end(small_trainer("faust-representative", source, held_out, schedule="greedy"))
