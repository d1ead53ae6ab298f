"""The run folder, with real processes that are interrupted, killed and out of disk."""

import csv
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import faustnet as library
from conftest import Answer
from faustnet.errors import FaustnetError
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from processes import COMMAND, Program

QUICK = ["--widths", "48,32", "--embedding", "16", "--batch-size", "64", "--device", "cpu"]
LONG = [*QUICK, "--method", "faust-tuplet", "--epochs", "12", "--set", "network.dropout=0.1", "--set", "data.crop=1"]
Command = Callable[..., Answer]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    table = {"network": {"widths": [48, 32], "embedding": 16}, "training": {"epochs": 4, "batch_size": 64}}
    table["optimiser"] = {"learning_rate": 0.01}
    return library.train(table, tmp_path_factory.mktemp("runs") / "finished", device="cpu")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    process = start(folder, *LONG)
    process.communicate()
    assert process.returncode == 0
    return load_file(folder / "model.safetensors")


def start(folder: Path, *words: str, before: str = "") -> Program:
    """The command line in a process of its own; `before` is Python that runs in it first."""
    return Program(f"{before}\n{COMMAND}", "train", "--out", folder, *words)


def signalled(number: int, batch: int) -> str:
    """Python that makes a process send itself a signal after so many batches, which it does not ignore, whatever these tests
    were started by."""
    return f"""
import os, signal
from faustnet.runs.progress import ConsoleProgress
if signal.getsignal({int(number)}) is signal.SIG_IGN:
    signal.signal({int(number)}, signal.SIG_DFL)
shown, done = ConsoleProgress.batch, []
def counted(self):
    shown(self)
    done.append(1)
    if len(done) == {batch}:
        os.kill(os.getpid(), {int(number)})
ConsoleProgress.batch = counted
"""


def same_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_finished_run_holds_all_that_its_result_depends_on(finished: Run) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert names == {
        "recipe.toml", "history.json", "history.csv", "metrics.json", "model.safetensors", "environment.json"
    }  # fmt: skip
    metrics = finished.metrics
    assert metrics["test_accuracy"] > 0.85
    assert len(metrics["layer_accuracy"]) == len(metrics["first_layers_accuracy"]) == 2
    assert metrics["forward_passes"] == 1
    assert sum(map(sum, metrics["confusion"])) == 360
    assert [epoch["epoch"] for epoch in finished.history] == [1, 2, 3, 4]
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["seed"] == 0


def test_the_history_is_a_table_too_with_a_column_for_each_loss_and_accuracy(finished: Run) -> None:
    with (finished.folder / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row, epoch in zip(rows, finished.history, strict=True):
        values = {name: float(value) for name, value in row.items()}
        assert values == {
            "epoch": epoch["epoch"],
            **{f"loss/layer {i + 1}": loss for i, loss in enumerate(epoch["losses"])},
            **{f"accuracy/layer {i + 1}": value for i, value in enumerate(epoch["layer_accuracy"])},
            "accuracy/layers 1-2": epoch["first_layers_accuracy"][1],
            "accuracy/all": epoch["accuracy"],
            "learning_rate": epoch["learning_rate"],
            "seconds": epoch["seconds"],
        }


def test_what_was_not_measured_is_empty_in_the_table(faustnet: Command, tmp_path: Path) -> None:
    words = [*QUICK, "--schedule", "greedy", "--epochs", "2", "--set", "training.evaluate_every=2"]
    assert faustnet("train", *words, "--out", tmp_path / "run").code == 0
    with (tmp_path / "run" / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [bool(row["accuracy/all"]) for row in rows] == [False, True, False, True]
    assert [bool(row["accuracy/layer 2"]) for row in rows] == [False, False, False, True]
    assert [bool(row["loss/layer 1"]) for row in rows] == [True, True, False, False]
    assert [bool(row["loss/layer 2"]) for row in rows] == [False, False, True, True]


def curves_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By TensorBoard's own reader."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert "recipe/text_summary" in events.Tags()["tensors"]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check_curves(run: Run) -> None:
    """TensorBoard shows the history, each epoch once."""
    with (run.folder / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = curves_in(run.folder / "tensorboard")
    assert found.keys() == rows[0].keys() - {"epoch"}
    for name, values in found.items():
        assert values == [(int(row["epoch"]), pytest.approx(float(row[name]))) for row in rows if row[name]]


def test_tensorboard_shows_every_curve_and_a_run_that_is_continued_goes_on_in_them(
    faustnet: Command, tmp_path: Path
) -> None:
    """Killed after four epochs of which one was saved: three are trained again, and none is there twice."""
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    rarely = "import faustnet.runs.session\nfaustnet.runs.session.SAVE_EVERY = 1000.0\n"
    words = (*QUICK, "--epochs", "6", "--tensorboard")
    start(folder, *words, before=rarely + signalled(signal.SIGKILL, 90)).communicate()
    assert len(Run(folder).history) == 1
    assert [step for step, _ in curves_in(folder / "tensorboard")["accuracy/all"]] == [1, 2, 3, 4]
    assert faustnet("train", "--resume", "--out", folder, "--device", "cpu").code == 0
    check_curves(Run(folder))
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_tensorboard_may_watch_from_the_middle_of_a_run(faustnet: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    start(folder, *QUICK, "--epochs", "4", before=signalled(signal.SIGINT, 50)).communicate()
    assert faustnet("train", "--resume", "--tensorboard", "--out", folder, "--device", "cpu").code == 0
    check_curves(Run(folder))


def test_a_training_that_fails_in_its_first_epoch_leaves_nothing_for_tensorboard(faustnet: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    words = [*QUICK, "--tensorboard", "--set", "options.scale=1e38", "--out", tmp_path / "run"]
    assert "no longer finite in epoch 1" in faustnet("train", *words).sentence
    assert not (tmp_path / "run").exists()


def test_without_tensorboard_a_sentence_names_the_package(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    answer = faustnet("train", *QUICK, "--tensorboard", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "pip install 'faustnet[tensorboard]'" in answer.sentence
    assert not (tmp_path / "run").exists()


def test_a_full_disk_for_tensorboard_is_a_sentence_and_the_run_continues(faustnet: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    full = """
from pathlib import Path
opened = Path.open
def full(self, mode="r", *words, **more):
    if "tfevents" in self.name and "a" in mode:
        raise OSError(28, "No space left on device")
    return opened(self, mode, *words, **more)
Path.open = full
"""
    process = start(folder, *QUICK, "--epochs", "3", "--tensorboard", before=full)
    _, err = process.communicate()
    assert process.returncode == 2
    assert "tensorboard could not be written to (No space left on device)" in err
    assert "Traceback" not in err
    assert faustnet("train", "--resume", "--out", folder, "--device", "cpu").code == 0
    check_curves(Run(folder))


def test_a_model_predicts_without_the_training_data(finished: Run, digits: library.data.DataSet) -> None:
    model = library.load(finished.folder, device="cpu")
    predictions = model.predict(digits.test.pixels)
    right = [
        model.class_names.index(p.class_name) == label for p, label in zip(predictions, digits.test.labels, strict=True)
    ]
    assert sum(right) / len(right) == pytest.approx(finished.metrics["test_accuracy"])
    first = model.predict(digits.test.pixels, layers=[1])
    assert [p.class_name for p in first] == [p.votes[0] for p in predictions]


def test_a_run_can_predict_from_its_last_layer(faustnet: Command, digits: library.data.DataSet, tmp_path: Path) -> None:
    """In all commands, and in an exported file."""
    run, words = tmp_path / "run", [*QUICK, "--epochs", "2", "--set", "prediction.layers=last"]
    assert faustnet("train", *words, "--out", run).code == 0
    assert Run(run).recipe.prediction.layers == "last"
    metrics = Run(run).metrics
    assert metrics["weights"] == [0, 1]
    assert metrics["test_accuracy"] == metrics["layer_accuracy"][1] != metrics["first_layers_accuracy"][1]
    (found,) = json.loads(faustnet("evaluate", run, "--early-exit", "--json", "--device", "cpu").out)
    assert found["accuracy"] == metrics["test_accuracy"]
    assert all(line["leaving"] == [0, 1] for line in found["early_exit"]), "no early exit before a layer with a weight"
    model, pixels = Run(run).model(), digits.test.pixels[:50]
    assert all(one.class_name == one.votes[1] for one in model.predict(pixels))
    assert [one.layers for one in model.predict_early(pixels, 0.0)] == [2] * 50
    onnxruntime = pytest.importorskip("onnxruntime")
    assert faustnet("export", run, tmp_path / "model.onnx").code == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    votes, joined, _ = session.run(None, {"images": pixels.numpy()})
    assert (votes[:, 1] == joined).all()
    card = (tmp_path / "model.md").read_text()
    assert "layer 2" in card
    assert "layer 1," not in card


def test_a_model_takes_arrays_and_refuses_what_it_was_not_trained_on(finished: Run, digits: library.data.DataSet) -> None:
    model, pixels = finished.model(), digits.test.pixels[:5]
    assert model.predict(pixels.numpy()) == model.predict(pixels[:, 0]) == model.predict(pixels)
    with pytest.raises(FaustnetError, match="must be images of 1×8×8 for this model, got images of 1×9×9"):
        model.predict(torch.zeros(2, 1, 9, 9, dtype=torch.uint8))
    with pytest.raises(FaustnetError, match="pixels must be uint8 from 0 to 255 for this model, got torch"):
        model.predict(pixels / 255)
    with pytest.raises(FaustnetError, match=r"pixels must be \(n, 1, 8, 8\), got \(8, 8\)"):
        model.predict(pixels[0, 0])


def test_a_model_file_of_another_shape_is_refused(finished: Run, tmp_path: Path) -> None:
    from safetensors import safe_open

    path = finished.folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        about = file.metadata()
    tensors = load_file(path)
    name = "method.network.layers.1.body.linear.weight"
    save_file(tensors | {name: tensors[name][:, :-1].contiguous()}, tmp_path / "odd", about)
    with pytest.raises(FaustnetError, match=r"the shape of .*linear.weight is 32×47, but must be 32×48"):
        Model.load(tmp_path / "odd")
    del tensors[name]
    save_file(tensors, tmp_path / "short", about)
    with pytest.raises(FaustnetError, match=r"linear.weight is missing"):
        Model.load(tmp_path / "short")
    save_file(tensors, tmp_path / "strange")
    with pytest.raises(FaustnetError, match="is not a faustnet model"):
        Model.load(tmp_path / "strange")
    tensors = load_file(path)
    save_file(tensors | {name: tensors[name] * torch.nan}, tmp_path / "nan", about)
    with pytest.raises(FaustnetError, match="must contain only finite values"):
        Model.load(tmp_path / "nan")
    save_file(tensors, tmp_path / "newer", {"faustnet": about["faustnet"].replace('"format": 1', '"format": 99')})
    with pytest.raises(FaustnetError, match="another version"):
        Model.load(tmp_path / "newer")
    for spoiled in ('{"shape": [1, 8]', '"shape": [1, 8, -8]', "[" * 100_000, "null"):
        save_file(tensors, tmp_path / "spoiled", {"faustnet": spoiled})
        with pytest.raises(FaustnetError, match="is not a faustnet model"):
            Model.load(tmp_path / "spoiled")
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FaustnetError, match="is damaged"):
        Model.load(tmp_path / "cut")


def test_an_existing_folder_is_left_alone(finished: Run, faustnet: Command) -> None:
    before = {path.name: path.read_bytes() for path in finished.folder.iterdir()}
    answer = faustnet("train", *QUICK, "--out", finished.folder)
    assert answer.code == 2
    assert "already exists: choose another --out, or continue the run with --resume" in answer.sentence
    assert {path.name: path.read_bytes() for path in finished.folder.iterdir()} == before
    file = finished.folder / "model.safetensors"
    assert faustnet("train", *QUICK, "--out", file).sentence == (
        f"faustnet: The run must be a folder, but {file} is a file: choose another --out."
    )
    assert file.read_bytes() == before[file.name]


def test_resuming_a_finished_run_changes_nothing(finished: Run, faustnet: Command) -> None:
    before = (finished.folder / "model.safetensors").read_bytes()
    answer = faustnet("train", "--out", finished.folder, "--resume")
    assert answer.code == 0
    assert (finished.folder / "model.safetensors").read_bytes() == before


def test_a_run_without_its_model_is_made_again_and_a_first_file_cut_short_is_no_run(
    faustnet: Command, tmp_path: Path
) -> None:
    assert faustnet("train", *QUICK, "--epochs", "1", "--out", tmp_path / "run").code == 0
    (tmp_path / "run" / "model.safetensors").unlink()
    assert faustnet("evaluate", tmp_path / "run").code == 2
    assert faustnet("train", "--resume", "--out", tmp_path / "run").code == 0
    assert faustnet("evaluate", tmp_path / "run").code == 0
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / ".recipe.toml.x1y2.part").write_text("datas")
    assert faustnet("train", *QUICK, "--epochs", "1", "--out", tmp_path / "cut").code == 0


@pytest.mark.parametrize(
    "content", ["{}", "null", "[]", '{"test_accuracy": "good", "train_seconds": 1.0}', "[" * 100_000, "{"]
)
def test_damaged_metrics_are_named(content: str, finished: Run, faustnet: Command, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    (folder / "metrics.json").write_text(content)
    answer = faustnet("train", "--resume", "--out", folder)
    assert answer.code == 2
    assert "metrics.json is damaged" in answer.sentence


def test_a_mistake_that_shows_late_leaves_no_folder(faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("train", "--out", tmp_path / "run", "--set", "options.representatives=1000")
    assert answer.code == 2
    assert "options.representatives must be at most" in answer.sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_ends_at_a_batch_and_continues_to_the_same_weights(
    number: int, uninterrupted: dict[str, torch.Tensor], faustnet: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder, *LONG, before=signalled(number, 55))
    _, err = process.communicate()
    assert process.returncode == 130
    assert f"faustnet train --resume --out {folder}" in err
    assert not Run(folder).finished
    assert leftovers(folder) == []
    answer = faustnet("train", *LONG, "--out", folder, "--resume")
    assert answer.code == 0
    assert "continuing after" in answer.err
    assert same_tensors(load_file(folder / "model.safetensors"), uninterrupted)
    assert len(Run(folder).history) == 12
    assert len(Run(folder).read("environment.json")["earlier"]) == 1


def test_an_interrupt_ends_a_script_that_trains_one_run_after_the_other(tmp_path: Path) -> None:
    table = {"network": {"widths": [24]}, "training": {"epochs": 3}}
    script = f"import faustnet\nfor n in range(3): faustnet.train({table}, f'{tmp_path}/{{n}}', device='cpu')"
    process = Program(signalled(signal.SIGINT, 4) + script)
    process.communicate()
    assert process.returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_wavefront_run_is_stopped_continued_and_saved_as_any_other(
    uninterrupted: dict[str, torch.Tensor], faustnet: Command, tmp_path: Path
) -> None:
    words = (*LONG, "--schedule", "wavefront")
    assert faustnet("train", *words, "--out", tmp_path / "whole").code == 0
    process = start(tmp_path / "parts", *words, before=signalled(signal.SIGINT, 55))
    process.communicate()
    assert process.returncode == 130
    assert faustnet("train", "--out", tmp_path / "parts", "--resume", "--device", "cpu").code == 0
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert same_tensors(whole, parts)
    assert {name: tensor.shape for name, tensor in whole.items()} == {n: t.shape for n, t in uninterrupted.items()}
    assert Run(tmp_path / "parts").metrics["schedule"] == "wavefront"


@pytest.mark.parametrize(("seconds", "epochs"), [(0.0, 3), (1000.0, 1)])
def test_a_killed_run_continues_from_the_last_epoch_that_was_saved_to_the_same_weights(
    seconds: float, epochs: int, uninterrupted: dict[str, torch.Tensor], faustnet: Command, tmp_path: Path
) -> None:
    """The first epoch is saved always, and then one whenever so many seconds are over."""
    folder = tmp_path / "run"
    often = f"import faustnet.runs.session\nfaustnet.runs.session.SAVE_EVERY = {seconds}\n"
    process = start(folder, *LONG, before=often + signalled(signal.SIGKILL, 75))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(Run(folder).history) == epochs, "an epoch has 22 batches"
    assert faustnet("train", "--out", folder, "--resume", "--device", "cpu").code == 0
    assert same_tensors(load_file(folder / "model.safetensors"), uninterrupted)


def test_a_full_disk_loses_nothing_that_was_saved(
    uninterrupted: dict[str, torch.Tensor], faustnet: Command, tmp_path: Path
) -> None:
    """A limit on the size of files makes the write of a checkpoint fail in its middle."""
    folder = tmp_path / "run"
    process = start(folder, *LONG, before=signalled(signal.SIGINT, 55))
    process.communicate()
    saved = (folder / "checkpoint.safetensors").read_bytes()
    limit = len(saved) // 2
    before = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    )
    process = start(folder, "--resume", "--device", "cpu", before=before)
    _, err = process.communicate()
    assert process.returncode == 2
    assert "checkpoint.safetensors could not be written (File too large)" in err
    assert "Traceback" not in err
    assert (folder / "checkpoint.safetensors").read_bytes() == saved
    assert leftovers(folder) == []
    assert faustnet("train", "--out", folder, "--resume", "--device", "cpu").code == 0
    assert same_tensors(load_file(folder / "model.safetensors"), uninterrupted)


def test_a_run_continues_only_with_the_recipe_it_was_begun_with(finished: Run, faustnet: Command) -> None:
    answer = faustnet("train", "--out", finished.folder, "--resume", "--learning-rate", "0.5")
    assert answer.code == 2
    assert "optimiser.learning_rate must be 0.01 to resume" in answer.sentence


def test_a_path_may_be_a_string(finished: Run) -> None:
    run = Run.open(str(finished.folder))
    assert run.metrics == finished.metrics
    assert run.model().to_bytes() == Model.load(str(finished.folder / "model.safetensors")).to_bytes()
    with pytest.raises(FaustnetError, match="is not a run folder"):
        Run.open(str(finished.folder / "nothing"))


def test_folders_that_are_no_runs_are_refused(faustnet: Command, tmp_path: Path) -> None:
    assert "is not a run" in faustnet("train", "--out", tmp_path, "--resume").sentence
    assert "is not a run" in faustnet("evaluate", tmp_path).sentence
    (tmp_path / "file").write_text("")
    answer = faustnet("train", *QUICK, "--out", tmp_path / "file" / "run")
    assert answer.code == 2
    assert "cannot be created" in answer.sentence


def test_a_folder_that_cannot_be_written_is_an_error(faustnet: Command, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        target = Path("/proc/faustnet-run")
    else:
        tmp_path.chmod(0o500)
        target = tmp_path / "run"
    answer = faustnet("train", *QUICK, "--epochs", "1", "--out", target)
    assert answer.code == 2
    assert "cannot be created" in answer.sentence
