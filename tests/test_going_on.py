"""Runs that are continued with another number of epochs."""

import csv
import json
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import faustnet as library
from conftest import Answer
from faustnet.errors import FaustnetError
from faustnet.runs.folder import Run
from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.session import Stopped
from faustnet.training.history import Epoch
from faustnet.training.loop import Diverged, TrainingLoop
from processes import Program
from test_distributed import by_hand, ends

Command = Callable[..., Answer]
FIXTURES = Path(__file__).parent / "fixtures" / "0.1"
FEW, MORE = 3, 5  # epochs


def table(epochs: int = FEW, **sections: dict[str, Any]) -> dict[str, Any]:
    network = {"widths": [24, 16], "embedding": 8, "dropout": 0.1}
    training = {"epochs": epochs, "batch_size": 128, **sections.pop("training", {})}
    return {"network": network, "training": training, **sections}


def train(out: Path, epochs: int = FEW, *, resume: bool = False, **sections: dict[str, Any]) -> Run:
    return library.train(table(epochs, **sections), out, device="cpu", resume=resume)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "finished").folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def stop_after(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Interrupt the training after this epoch."""
    show = ConsoleProgress.epoch

    def stop(self: ConsoleProgress, epoch: Epoch) -> None:
        show(self, epoch)
        if epoch.epoch == number:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ConsoleProgress, "epoch", stop)


def cosine(epoch: int, epochs: int, batches: int = 11) -> float:
    """The learning rate of the last step of an epoch."""
    return 0.001 * 0.5 * (1 + math.cos(math.pi * (epoch * batches - 1) / (epochs * batches)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "environment.json"}


def test_a_finished_run_trains_more_epochs(copy: Path, faustnet: Command, caplog: pytest.LogCaptureFixture) -> None:
    before = Run.open(copy)
    first, old_model = before.history, before.model()
    answer = faustnet("train", "--resume", "--out", copy, "--epochs", MORE, "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    assert [record.message for record in caplog.records] == [
        f"{copy}: the optimiser starts anew, because a finished run has no optimiser state."
    ]
    assert "continuing after 3 epochs and 0 batches" in answer.err
    run = Run.open(copy)
    assert run.finished
    assert (run.recipe.training.epochs, run.model().recipe.training.epochs) == (MORE, MORE)
    assert run.history[:FEW] == first
    assert [epoch["epoch"] for epoch in run.history] == [1, 2, 3, 4, 5]
    rates = [epoch["learning_rate"] for epoch in run.history]
    assert rates == pytest.approx([cosine(1, FEW), cosine(2, FEW), cosine(3, FEW), cosine(4, MORE), cosine(5, MORE)])
    assert json.loads(answer.out)["epochs"] == run.metrics["epochs"] == MORE
    assert run.metrics["epoch_changes"] == [{"after": 3, "from": 3, "to": 5}]
    assert run.metrics["train_seconds"] == pytest.approx(sum(epoch["seconds"] for epoch in run.history))
    assert run.metrics["test_accuracy"] == run.history[-1]["accuracy"]
    assert len(list(csv.reader((copy / "history.csv").read_text().splitlines()))) == MORE + 1
    assert len(run.environment["earlier"]) == 1
    weight = "network.layers.0.body.linear.weight"
    moved = (run.model().method.state_dict()[weight] - old_model.method.state_dict()[weight]).norm()
    assert 0 < moved < old_model.method.state_dict()[weight].norm(), "trained on, and not from new weights"
    assert {path.name for path in copy.iterdir()} == set(contents(copy)) | {"environment.json"}
    assert not list(copy.glob("checkpoint*"))


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("faust-prototype", "sequential"),
        ("faust-prototype", "wavefront"),
        ("faust-centroid", "sequential"),
        ("backprop", "sequential"),
    ],
)
def test_the_first_new_epoch_starts_where_the_last_one_ended(method: str, schedule: str, tmp_path: Path) -> None:
    """References that are learned or running means are kept."""
    settings = {"method": method, "training": {"schedule": schedule}, "network": {"widths": [24, 16]}}
    short = train(tmp_path / "run", 6, **settings)
    accuracy, loss = short.metrics["test_accuracy"], short.history[-1]["losses"]
    longer = train(tmp_path / "run", 7, resume=True, **settings)
    assert longer.metrics["test_accuracy"] > accuracy - 0.05
    assert all(new < old * 1.1 for new, old in zip(longer.history[-1]["losses"], loss, strict=True))


def test_until_the_continuation_is_complete_the_old_result_stays(
    copy: Path, monkeypatch: pytest.MonkeyPatch, faustnet: Command
) -> None:
    before = contents(copy)
    with monkeypatch.context() as patched:
        stop_after(patched, 4)
        answer = faustnet("train", "--resume", "--out", copy, "--epochs", MORE, "--device", "cpu")
        assert (answer.code, answer.sentence[:8]) == (130, "Stopped.")
    run = Run.open(copy)
    assert not run.finished
    kept = contents(copy)
    assert {name.split(".")[0] for name in kept if kept[name] != before.get(name)} == {"checkpoint", "recipe"}
    assert faustnet("evaluate", copy, "--device", "cpu").code == 0
    assert faustnet("train", "--resume", "--out", copy, "--device", "cpu").code == 0
    assert Run.open(copy).metrics["epochs"] == MORE
    assert len(Run.open(copy).history) == MORE


def test_an_interrupted_continuation_ends_in_the_same_weights(
    finished: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(Path(shutil.copytree(finished, tmp_path / "whole")), MORE, resume=True)
    with monkeypatch.context() as patched:
        stop_after(patched, 4)
        with pytest.raises(Stopped):
            train(copy, MORE, resume=True)
    again = train(copy, MORE, resume=True)
    assert contents(again.folder)["model.safetensors"] == contents(whole.folder)["model.safetensors"]
    assert again.metrics["epoch_changes"] == whole.metrics["epoch_changes"]


def test_a_continuation_that_is_killed_before_each_file_operation_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import json, pathlib, killing\n"
        "small = {'network.widths': [16], 'network.embedding': 8, 'network.dropout': 0.1, 'training.batch_size': 256}\n"
        "recipes = [killing.changed(killing.Recipe(), small | {'training.epochs': epochs}) for epochs in (2, 1)]\n"
        f"print(json.dumps(killing.killed_at_every_point(recipes[0], pathlib.Path({str(tmp_path)!r}), recipes[1])))"
    )
    process = Program(program)
    out, err = process.communicate()
    assert process.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["points"] > 20
    assert (found["not_whole"], found["different_after"]) == ([], [])


def test_an_interrupted_run_keeps_its_optimiser_and_takes_the_new_learning_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        with pytest.raises(Stopped):
            train(folder, MORE)
    steps: list[float] = []

    def note(self: TrainingLoop, *arguments: object, restore: Callable[..., None] = TrainingLoop.restore) -> None:
        restore(self, *arguments)
        steps.extend(float(tensor) for name, tensor in self.schedule.state().items() if name.endswith("/step"))

    monkeypatch.setattr(TrainingLoop, "restore", note)
    run = train(folder, 4, resume=True)
    assert set(steps) == {22.0}
    assert not caplog.records
    rates = [epoch["learning_rate"] for epoch in run.history]
    assert rates == pytest.approx([cosine(1, MORE), cosine(2, MORE), cosine(3, 4), cosine(4, 4)])
    assert run.metrics["epoch_changes"] == [{"after": 2, "from": 5, "to": 4}]
    assert run.recipe.training.epochs == 4


@pytest.mark.parametrize("epochs", [1, 2])
def test_fewer_epochs_than_are_done_are_refused(epochs: int, copy: Path, faustnet: Command) -> None:
    before = contents(copy)
    answer = faustnet("train", "--resume", "--out", copy, "--epochs", epochs)
    assert answer.sentence.endswith(
        f"training.epochs must be more than 3, the number of epochs that this run has done, to continue it, got {epochs}."
    )
    assert contents(copy) == before


def test_the_epochs_of_a_greedy_run_stay(tmp_path: Path) -> None:
    greedy = {"training": {"schedule": "greedy"}}
    folder = train(tmp_path / "run", 1, **greedy).folder
    with pytest.raises(FaustnetError, match=r"training\.epochs cannot be changed with training\.schedule=greedy"):
        train(folder, 2, resume=True, **greedy)
    assert train(folder, 1, resume=True, **greedy).metrics["epochs"] == 2


def test_a_continuation_that_diverges_leaves_the_finished_run(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(copy)
    monkeypatch.setattr(TrainingLoop, "_not_finite", lambda self: "The loss")
    with pytest.raises(Diverged):
        train(copy, MORE, resume=True)
    assert contents(copy) == before
    assert Run.open(copy).finished


def test_a_model_with_an_added_class_is_not_trained_further(copy: Path) -> None:
    run = Run.open(copy)
    grown = run.model().add_class("ten", torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    (copy / "model.safetensors").write_bytes(grown.to_bytes())
    with pytest.raises(FaustnetError, match=r"must have the classes of the training data, 0, 1, .*, got .*, ten: start"):
        train(copy, MORE, resume=True)


@pytest.fixture(params=["dense", "convolutional", "prototypes", "backprop"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURES / request.param, tmp_path / "old")


def test_runs_of_version_0_1_can_be_continued(old: Path, faustnet: Command) -> None:
    epochs = Run.open(old).recipe.training.epochs
    answer = faustnet("train", "--resume", "--out", old, "--epochs", epochs + 1, "--device", "cpu")
    assert answer.code == 0, answer.err
    run = Run.open(old)
    assert run.finished
    assert (len(run.history), run.metrics["epochs"]) == (epochs + 1, epochs + 1)


def test_the_card_says_when_the_number_of_epochs_was_changed(copy: Path, tmp_path: Path, faustnet: Command) -> None:
    train(copy, MORE, resume=True)
    assert faustnet("export", copy, tmp_path / "model.onnx").code == 0
    assert "5; changed from 3 to 5 after 3" in (tmp_path / "model.md").read_text()


def test_several_ranks_continue_a_finished_run_to_the_same_weights(finished: Path, copy: Path, tmp_path: Path) -> None:
    with by_hand(2, "train", "--resume", "--out", copy, "--epochs", MORE) as started:
        assert [code for code, _ in ends(started)] == [0, 0]
    alone = train(Path(shutil.copytree(finished, tmp_path / "alone")), MORE, resume=True)
    together = Run.open(copy)
    assert together.metrics["epoch_changes"] == alone.metrics["epoch_changes"]
    assert len(together.history) == MORE
    for name, tensor in alone.model().method.state_dict().items():
        torch.testing.assert_close(together.model().method.state_dict()[name], tensor, rtol=1e-4, atol=1e-4)
