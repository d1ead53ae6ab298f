"""The method on docs/adding-a-method.md, with learned state of its own, works with every part of the package."""

from pathlib import Path

import pytest

import faustnet
from conftest import small_trainer
from faustnet.cli import main
from faustnet.data import DataSet, ImageSource
from faustnet.export import export_run
from faustnet.methods import METHODS
from page_method import LearnedScale
from test_export import compare_scores

TABLE = {
    "method": "learned-scale",
    "network": {"widths": [20, 16], "embedding": 8},
    "training": {"epochs": 3, "batch_size": 32},
    "optimiser": {"learning_rate": 0.005},
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, LearnedScale.name, LearnedScale)


@pytest.mark.parametrize("schedule", ["sequential", "wavefront", "greedy"])
def test_every_schedule_trains_the_state_that_only_the_loss_reads(
    schedule: str, source: ImageSource, held_out: ImageSource
) -> None:
    trainer = small_trainer("learned-scale", source, held_out, schedule=schedule, epochs=3)
    assert trainer.run(lambda: None, lambda epoch: None)
    assert all(abs(layer.head.log_scale.item()) > 1e-3 for layer in trainer.method.network)


@pytest.mark.usefixtures("one_operator_table")
def test_its_runs_are_trained_loaded_and_exported(digits: DataSet, tmp_path: Path) -> None:
    run = faustnet.train(TABLE, tmp_path / "run", device="cpu")
    assert run.metrics["test_accuracy"] > 0.5
    model = faustnet.load(tmp_path / "run", device="cpu")
    assert all(layer.head.log_scale.item() != 0 for layer in model.method.network)
    made = export_run(run, tmp_path / "model.onnx")
    assert made.difference < 1e-4
    compare_scores(made.path.read_bytes(), model, digits.test.pixels[:50].numpy())


def test_it_is_explained_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["methods", "learned-scale"])
    assert "fixed random vector in every layer" in capsys.readouterr().out
