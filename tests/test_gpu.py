"""What only a GPU can show: recorded steps. The kernels are in test_kernels.py."""

import gc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import run_to_end, small_method
from faustnet.data import Augmentation, DataSet, Images, ImageSource, load_data
from faustnet.data.shard_writer import shard_images
from faustnet.losses import reference_tuplet_loss, soft_minimum, squared_distances, tuplet_loss
from faustnet.methods import METHODS, LocalMethod
from faustnet.nn.architectures import NetworkSettings
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules import SCHEDULES, step_graph
from faustnet.training.schedules.step_graph import Recording
from faustnet.training.settings import TrainingSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PAIRS = [
    (name, schedule)
    for name, method in METHODS.items()
    for schedule in SCHEDULES
    if schedule == "sequential" or issubclass(method, LocalMethod)
]
REPEATABLE = ("backprop", "ffcm", "faust-representative", "faust-prototype", "faust-centroid")


@pytest.fixture(autouse=True)
def two_steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small data of these tests have five batches in an epoch."""
    monkeypatch.setattr(step_graph, "STEPS", 2)


def on_gpu(source: ImageSource, augmentation: Augmentation = Augmentation()) -> ImageSource:
    gpu = torch.device("cuda")
    return replace(source, images=source.images.to(gpu), scaling=source.scaling.to(gpu), augmentation=augmentation)


DENSE = NetworkSettings((64, 64, 48), 32)
CONVOLUTIONAL = NetworkSettings((16, 16, 24), 32, kind="residual", pools=(1, 3), head=16, length="unit")
ADAM, SLOW = OptimiserSettings(learning_rate=3e-3), OptimiserSettings(learning_rate=3e-4)
MUON = OptimiserSettings("muon", learning_rate=3e-3)


def trainer(
    name: str,
    source: ImageSource,
    held_out: ImageSource,
    network: NetworkSettings = DENSE,
    optimiser: OptimiserSettings = ADAM,
    options: dict | None = None,
    **training: object,
) -> TrainingLoop:
    settings = TrainingSettings(**{"epochs": 6, "batch_size": 64, "precision": "float32", **training})
    method = small_method(name, network, **(options or {})).to(source.labels.device)
    return TrainingLoop(method, source, held_out, settings, optimiser, seed=0)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(("name", "schedule"), PAIRS)
def test_no_step_waits_for_the_gpu_and_the_gpu_learns_too(
    name: str, schedule: str, source: ImageSource, held_out: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    distortion = Augmentation() if schedule == "greedy" else Augmentation(crop=1, rotation=5, zoom=0.05)
    images = on_gpu(source, distortion)
    trained = trainer(name, images, on_gpu(held_out), replace(DENSE, dropout=0.1), schedule=schedule, epochs=12)
    learns_without_waiting(trained, monkeypatch)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_convolutions_and_all_that_a_loss_can_have_are_recorded_too(
    schedule: str, precision: str, source: ImageSource, held_out: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = on_gpu(source, Augmentation() if schedule == "greedy" else Augmentation(crop=1, cutout=2, rotation=5))
    options = {"scale": 5.0, "representatives": 2, "contrast": 0.5, "label_smoothing": 0.1}
    options["mixup"] = 0.0 if schedule == "greedy" else 0.2  # cached activations cannot be blended
    network = replace(CONVOLUTIONAL, dropout=0.1)
    how = {"schedule": schedule, "precision": precision, "epochs": 20}
    trained = trainer("faust-representative", images, on_gpu(held_out), network, MUON, options, **how)
    learns_without_waiting(trained, monkeypatch)
    assert trained.history[-1].accuracy > 0.8


def learns_without_waiting(trained: TrainingLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, replays = Recording.__call__, 0

    def strict(recording: Recording) -> None:
        nonlocal replays
        torch.cuda.set_sync_debug_mode("error")
        try:
            replay(recording)
        finally:
            replays += 1
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Recording, "__call__", strict)
    run_to_end(trained)
    assert replays
    epochs = trained.settings.epochs
    for number in range(trained.schedule.phases):
        stage = trained.history[epochs * number : epochs * (number + 1)]
        for before, after in zip(stage[0].losses, stage[-1].losses, strict=True):
            assert before is after is None or after < before


@pytest.mark.parametrize("network", [DENSE, CONVOLUTIONAL], ids=["dense", "convolutional"])
@pytest.mark.parametrize(("name", "schedule"), [pair for pair in PAIRS if pair[0] in REPEATABLE])
def test_a_recorded_step_learns_what_the_cpu_learns(
    name: str, schedule: str, network: NetworkSettings, source: ImageSource, held_out: ImageSource
) -> None:
    """The other methods draw images or labels for every batch, and draw others on a GPU. FFCM's convolutions learn slowly:
    of a difference of a millionth they make one of 7 % at the others' rate, and of 0.1 % at this one."""
    optimiser = SLOW if name == "ffcm" and network is CONVOLUTIONAL else ADAM
    cpu, gpu = (
        run_to_end(trainer(name, train, test, network, optimiser, schedule=schedule))
        for train, test in ((source, held_out), (on_gpu(source), on_gpu(held_out)))
    )
    for one, other in zip(cpu.history, gpu.history, strict=True):
        for mine, theirs in zip(one.losses, other.losses, strict=True):
            assert mine is theirs is None or theirs == pytest.approx(mine, rel=0.01)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("faust-centroid", "sequential")]
    + [(name, s) for name in ("faust-representative", "faust-prototype") for s in SCHEDULES],
)
def test_a_recorded_step_reads_the_scale_of_its_epoch(
    name: str, schedule: str, source: ImageSource, held_out: ImageSource
) -> None:
    options = {"final_scale": 0.2, "matching": 0.5}
    cpu = run_to_end(trainer(name, source, held_out, options=options, schedule=schedule))
    gpu = run_to_end(trainer(name, on_gpu(source), on_gpu(held_out), options=options, schedule=schedule))
    for one, other in zip(cpu.history, gpu.history, strict=True):
        for mine, theirs in zip(one.losses, other.losses, strict=True):
            assert mine is theirs is None or theirs == pytest.approx(mine, rel=0.02)


def test_a_run_on_the_gpu_can_be_put_down_and_taken_up(source: ImageSource, held_out: ImageSource) -> None:
    def make() -> TrainingLoop:
        return trainer("faust-representative", on_gpu(source), on_gpu(held_out))

    whole, one, continued = make(), make(), make()
    assert one.schedule.name == "wavefront"
    run_to_end(whole)

    def after_batch() -> None:
        if len(one.history) == 2 and one.batch == 3:
            one.stop()

    assert not one.run(after_batch, lambda epoch: None)
    continued.restore(*one.state())
    run_to_end(continued)
    for mine, theirs in zip(continued.method.parameters(), whole.method.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def relative(one: Tensor, other: Tensor) -> float:
    return ((one.double().cpu() - other.cpu()).norm() / other.cpu().norm()).item()


@pytest.mark.parametrize("count", [1, 3])
def test_the_tuplet_loss_without_a_kernel_is_the_formula(count: int) -> None:
    """A scale that is a tensor and several references per class are computed without a kernel."""
    torch.manual_seed(0)
    exact = torch.randn(3, 50 + 7 * count, 40, dtype=torch.float64).requires_grad_()
    labels, weights = torch.randint(7, (3, 50)), torch.rand(3)
    distances = squared_distances(exact[:, :50], exact[:, 50:]).view(3, 50, 7, count)
    expected = tuplet_loss(soft_minimum(distances, 0.02), labels, 0.02, 0.1)
    rough = exact.detach().float().cuda().requires_grad_()
    found = reference_tuplet_loss(rough, labels.cuda(), 7, torch.tensor(0.02, device="cuda"), 0.1)
    assert relative(found, expected) < 1e-5
    (by_exact,) = torch.autograd.grad((expected * weights).sum(), exact)
    (by_rough,) = torch.autograd.grad((found * weights.cuda()).sum(), rough)
    assert relative(by_rough, by_exact) < 1e-5


@pytest.mark.parametrize(
    "loss",
    [
        "tuplet_loss(rows[:6, :4], labels)",
        "tuplet_loss(rows[:6, :4], labels, 1.0, 0.1)",
        "reference_tuplet_loss(rows, labels, 4, 0.3)",
        "reference_tuplet_loss(rows, labels, 4, torch.tensor(0.3, device='cuda'))",
    ],
)
@pytest.mark.parametrize("label", [-100, -1, 4])
def test_a_label_out_of_range_gives_nan_or_a_failed_assertion(loss: str, label: int) -> None:
    """In a process of its own: after a failed assertion on the device, a process cannot use it any more."""
    program = f"""
import torch
from faustnet.losses import reference_tuplet_loss, tuplet_loss
rows, labels = torch.randn(10, 5, device="cuda"), torch.tensor([0, 3, 1, 1, 2, {label}], device="cuda")
print({loss}.item())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    failed = ended.returncode != 0 and "Assertion" in ended.stderr  # the CUDA call that notices it may report another error
    assert ended.stdout.strip() == "nan" or failed, ended.stdout + ended.stderr


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_epoch_may_have_a_single_batch(schedule: str, source: ImageSource, held_out: ImageSource) -> None:
    """Recording tries a step several times, and must not read past the end of the plan."""
    trained = trainer("faust-representative", on_gpu(source), on_gpu(held_out), schedule=schedule, batch_size=320)
    run_to_end(trained)
    assert all(loss is None or loss > 0 for epoch in trained.history for loss in epoch.losses)


def from_files(source: ImageSource, folder: Path) -> ImageSource:
    """The same images, which stay in shards."""
    shard_images(DataSet("same", tuple(source.class_names), source.images, source.images), folder, lambda done, all: None)
    images = load_data(str(folder), stream="always").train
    return replace(source, images=Images(images.pixels, images.labels))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_recorded_steps_find_images_from_files(
    schedule: str, source: ImageSource, held_out: ImageSource, tmp_path: Path
) -> None:
    distortion = Augmentation() if schedule == "greedy" else Augmentation(crop=1, flip=True)
    ends = []
    for images in (source, from_files(source, tmp_path / "shards")):
        trained = trainer(
            "faust-representative", on_gpu(images, distortion), on_gpu(held_out), schedule=schedule, balance=True
        )
        assert trained.schedule.graph.recorded
        ends.append(run_to_end(trained))
    assert ends[1].schedule.feed.streams or schedule == "greedy"
    states = [end.method.state_dict() for end in ends]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert [epoch.losses for epoch in ends[0].history] == [epoch.losses for epoch in ends[1].history]


def test_what_is_drawn_in_a_step_is_read_from_files(source: ImageSource, held_out: ImageSource, tmp_path: Path) -> None:
    images = from_files(source, tmp_path / "shards")
    trained = trainer("faust-tuplet", on_gpu(images), on_gpu(held_out), epochs=12)
    assert not trained.schedule.graph.recorded
    assert run_to_end(trained).history[-1].accuracy > 0.7


def test_garbage_with_an_older_recording_is_not_collected_while_another_is_made() -> None:
    """CUDA refuses to free a graph while a stream is being recorded, and that recording fails."""
    values = torch.zeros(4, device="cuda")
    older = Recording(lambda: values.add_(1))
    older.work = older.__call__  # a cycle, which only the collector frees
    del older

    def work() -> None:
        kept: list[object] = []
        for _ in range(200_000):  # enough to start the collector, if it is on
            kept.append([])
        values.add_(1)

    recording = Recording(work)
    recording()
    assert values.tolist() == [1.0] * 4
    assert gc.isenabled()
