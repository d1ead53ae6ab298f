"""Runs that are killed, folders that two want to write, and files that are damaged."""

import errno
import fcntl
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import faustnet as library
import killing
from conftest import Answer
from faustnet.data import load_data
from faustnet.errors import FaustnetError
from faustnet.runs.folder import RECIPE, Run
from faustnet.runs.model import Model
from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.session import Stopped
from faustnet.runs.tensor_file import pack, read_tensors
from faustnet.system.files import write_whole, writing
from faustnet.system.locks import LOCK, folder_lock
from faustnet.training.history import Epoch
from faustnet.training.loop import Diverged, TrainingLoop
from processes import COMMAND, Program

Command = Callable[..., Answer]
SMALL = {"network.widths": [16], "network.embedding": 8, "training.batch_size": 256, "network.dropout": 0.1, "data.crop": 1}
TABLE: dict[str, Any] = {
    "network": {"widths": [24, 16], "embedding": 8, "dropout": 0.1},
    "data": {"crop": 1},
    "training": {"epochs": 5, "batch_size": 128},
}
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


def train(out: Path) -> Run:
    return library.train(TABLE, out, device="cpu")


def resumed(out: Path) -> Run:
    return library.train(TABLE, out, device="cpu", resume=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    return train(tmp_path_factory.mktemp("runs") / "whole").folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after its third epoch, with a checkpoint of every epoch so far as long as there is room."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    show = ConsoleProgress.epoch

    def stop(self: ConsoleProgress, epoch: Epoch) -> None:
        show(self, epoch)
        if epoch.epoch == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("faustnet.runs.session.SAVE_EVERY", 0.0)
        patched.setattr(ConsoleProgress, "epoch", stop)
        with pytest.raises(Stopped):
            train(folder)
    return folder


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def epochs_in(path: Path) -> int:
    return len(json.loads(read_tensors(path)[0]["faustnet"])["history"])


def test_a_run_killed_before_each_operation_on_files_comes_to_the_same(tmp_path: Path) -> None:
    """In a process that has computed nothing, for it is copied."""
    program = (
        "import json, pathlib, killing\n"
        f"recipe = killing.changed(killing.Recipe(), {SMALL | {'training.epochs': 2}})\n"
        f"print(json.dumps(killing.killed_at_every_point(recipe, pathlib.Path({str(tmp_path)!r}))))"
    )
    process = Program(program)
    out, err = process.communicate()
    assert process.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["found"].keys() == set(killing.STATES), "none of a run's stages is missed"
    assert found["points"] > 50
    assert found["not_whole"] == []
    assert found["different_after"] == []


def trained(folder: Path, recipe: Path, seconds: float | None) -> bool:
    """Like `killing.trained`, in a fork: most of its life is the training, not imports."""
    how = ["--resume"] if (folder / RECIPE).exists() else ["--recipe", recipe]
    process = Program(COMMAND, "train", *how, "--out", folder, "--device", "cpu")
    process.process.join(seconds)
    finished = process.returncode is not None
    process.kill()
    _, said = process.communicate()
    assert not finished or process.returncode == 0, said
    return finished


def test_a_process_killed_at_a_random_moment_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killing, "trained", trained)
    monkeypatch.setitem(killing.KINDS, "small", SMALL | {"training.epochs": 30})
    monkeypatch.setattr(killing, "LEAST", 1)
    monkeypatch.setattr(killing, "KILLS", 1)
    found = killing.killed_at_random("small", seed=int(random.SystemRandom().random() * 1000))
    assert killing.is_good(found), found


def test_the_study_knows_a_file_that_is_not_whole(stopped: Path, tmp_path: Path) -> None:
    assert killing.spoiled(stopped) == []
    (tmp_path / ".history.json.abc.part").write_text("[")
    for path in stopped.iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content[: -3 if path.suffix == ".toml" else len(content) // 2])
    assert sorted(killing.spoiled(tmp_path)) == sorted(path.name for path in stopped.iterdir())


def test_two_checkpoints_are_kept_and_no_more(stopped: Path) -> None:
    names = {path.name for path in stopped.iterdir()}
    assert names == {"recipe.toml", "environment.json", "history.json", "history.csv", CHECKPOINT, PREVIOUS}
    assert epochs_in(stopped / CHECKPOINT) == 3
    assert epochs_in(stopped / PREVIOUS) == 3, "the stop came right after an epoch that was saved"


def test_where_there_are_no_links_the_checkpoint_before_is_a_copy(
    copy: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    kept: list[tuple[int, int]] = []

    def look(self: ConsoleProgress, epoch: Epoch) -> None:
        kept.append((epochs_in(copy / CHECKPOINT), epochs_in(copy / PREVIOUS)))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("faustnet.runs.session.SAVE_EVERY", 0.0)
    monkeypatch.setattr(ConsoleProgress, "epoch", look)
    resumed(copy)
    assert kept == [(4, 3), (5, 4)]
    assert weights(copy) == weights(whole)


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeros(content: bytes) -> bytes:
    return bytes(len(content))


def flipped_in_a_weight(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def flipped_in_the_history(content: bytes) -> bytes:
    place = content.index(b"learning_rate") + len(b'learning_rate\\": 0.0')
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def of_another_run(content: bytes) -> bytes:
    return pack({"method.network.layers.0.linear.weight": torch.zeros(3, 3)}, {"history": []})


def empty(content: bytes) -> bytes:
    return b""


DAMAGES = [truncated, zeros, flipped_in_a_weight, flipped_in_the_history, of_another_run, empty]


@pytest.mark.parametrize("damaged", DAMAGES)
def test_the_checkpoint_before_is_taken_up_when_the_last_is_damaged(
    damaged: Callable[[bytes], bytes], copy: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy / CHECKPOINT
    path.write_bytes(damaged(path.read_bytes()))
    resumed(copy)
    assert caplog.messages == [f"{path} is damaged: continuing from the previous checkpoint."]
    assert weights(copy) == weights(whole)
    assert {path.name for path in copy.iterdir()} == {path.name for path in whole.iterdir()}


def test_a_damaged_checkpoint_never_becomes_the_one_before(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / CHECKPOINT).write_bytes(b"half a checkpoint")
    monkeypatch.setattr("faustnet.runs.session.SAVE_EVERY", 0.0)
    monkeypatch.setattr(ConsoleProgress, "epoch", lambda self, epoch: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        resumed(copy)
    assert (epochs_in(copy / PREVIOUS), epochs_in(copy / CHECKPOINT)) == (4, 4)


@pytest.mark.parametrize("damaged", DAMAGES[:3])
def test_when_no_checkpoint_is_whole_one_sentence_says_what_to_do(
    damaged: Callable[[bytes], bytes], copy: Path, whole: Path, faustnet: Command
) -> None:
    before = {path: path.write_bytes(damaged(path.read_bytes())) for path in (copy / CHECKPOINT, copy / PREVIOUS)}
    answer = faustnet("train", "--resume", "--out", copy, "--device", "cpu")
    assert answer.code == 2
    both = f"{copy / CHECKPOINT} and {copy / PREVIOUS} are damaged or from another run"
    assert f"{both}: delete them, then run the same command again to restart the run." in answer.sentence
    assert all(path.exists() for path in before)
    (copy / PREVIOUS).unlink()
    assert "is damaged or from another run: delete it" in faustnet("train", "--resume", "--out", copy).sentence
    (copy / CHECKPOINT).unlink()
    assert faustnet("train", "--resume", "--out", copy, "--device", "cpu").code == 0
    assert weights(copy) == weights(whole)


def test_damaged_files_that_a_checkpoint_can_replace_do_not_stop_a_run(copy: Path, whole: Path) -> None:
    began = Run(copy).read("environment.json")["started"]
    for name in ("environment.json", "history.json", "history.csv", "metrics.json"):
        (copy / name).write_bytes(b'{"cut sho')
    run = resumed(copy)
    assert weights(copy) == weights(whole)
    assert run.metrics["test_accuracy"] == Run(whole).metrics["test_accuracy"]
    assert [epoch["losses"] for epoch in run.history] == [epoch["losses"] for epoch in Run(whole).history]
    assert [place["started"] for place in run.read("environment.json")["earlier"]] == [began]


@pytest.mark.parametrize("name", ["metrics.json", "history.json", "model.safetensors"])
def test_as_long_as_there_is_a_checkpoint_a_result_that_is_damaged_is_made_again(
    name: str, stopped: Path, whole: Path, tmp_path: Path
) -> None:
    """As after a kill between the last file and the removal of the checkpoint."""
    folder = shutil.copytree(whole, tmp_path / "run")
    shutil.copy(stopped / CHECKPOINT, folder)
    (folder / name).write_bytes(truncated((folder / name).read_bytes()))
    assert resumed(folder).metrics["test_accuracy"] == Run(whole).metrics["test_accuracy"]
    assert weights(folder) == weights(whole)
    assert not (folder / CHECKPOINT).exists()


def test_what_is_left_of_a_training_goes_and_a_model_that_has_learned_more_stays(
    stopped: Path, whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    larger = Run(folder).model().add_class("ten", load_data("digits").test.pixels[:3]).to_bytes()
    write_whole(folder / "model.safetensors", larger)
    for name in (CHECKPOINT, PREVIOUS):
        shutil.copy(stopped / name, folder)
    (folder / ".metrics.json.abc.part").write_text("{")
    (folder / LOCK).write_text("process 1 on a machine that is no more\n")
    assert resumed(folder).finished
    assert weights(folder) == larger
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


def test_a_model_with_one_bit_changed_is_refused(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for place in (-1, -1001):
        content = bytearray(weights(whole))
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(FaustnetError, match="is damaged or was changed"):
            Model.load(path)


@pytest.fixture
def holder(tmp_path: Path) -> Program:
    """A process that trains into tmp_path/run, and stands still in the middle of it."""
    program = f"""
import os, signal, faustnet
from faustnet.runs.progress import ConsoleProgress
ConsoleProgress.epoch = lambda self, epoch: epoch.epoch == 3 and os.kill(os.getpid(), signal.SIGSTOP)
faustnet.train({TABLE!r}, {str(tmp_path / "run")!r}, device="cpu")
"""
    process, deadline = Program(program), time.monotonic() + 120
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_a_second_process_is_told_who_trains_and_goes_on_when_that_is_killed(
    holder: Program, faustnet: Command, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = f"{folder} is in use by process {holder.pid} on {socket.gethostname()}: wait until it has finished"
    try:
        assert said in faustnet("train", "--out", folder, "--device", "cpu").sentence
        assert said in faustnet("train", "--out", folder, "--resume", "--device", "cpu").sentence
        with pytest.raises(FaustnetError, match=said):
            train(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    finally:
        holder.kill()
        holder.communicate()
    assert (folder / LOCK).exists()
    resumed(folder)
    assert weights(folder) == weights(whole)
    assert not (folder / LOCK).exists()


def test_what_a_start_that_was_killed_has_left_is_no_run(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).write_text("process 1 on a machine that is no more\n")
    (folder / ".recipe.toml.abc.part").write_text("datas")
    assert weights(train(folder).folder) == weights(whole)
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


def test_a_training_that_diverges_at_once_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: TrainingLoop) -> None:
        raise Diverged("The loss is no longer a finite number.")

    monkeypatch.setattr(TrainingLoop, "_check_finite", diverge)
    with pytest.raises(Diverged):
        train(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_one_at_a_time_has_a_lock_though_it_comes_and_goes(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(50):
            with folder_lock(tmp_path, wait=math.inf):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                with pytest.raises(FaustnetError, match=f"process {os.getpid()} on"), folder_lock(tmp_path):
                    pass
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == ([0], [1])
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_without_locks_in_the_file_system_the_lock_file_itself_is_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        folder_lock(tmp_path),
        pytest.raises(FaustnetError, match=f"process {os.getpid()} on .* delete {tmp_path / LOCK}"),
        folder_lock(tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())
    with folder_lock(tmp_path):
        pass


def test_a_lock_whose_folder_was_replaced_leaves_the_new_lock_alone(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).write_text("1\nanother machine\n")
    assert (tmp_path / LOCK).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_cannot_be_locked_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FaustnetError, match="could not be locked for writing"), folder_lock(tmp_path):
        pass


def test_a_file_appears_when_it_is_complete_or_never(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with writing(path) as file:
        file.write(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    with suppress(KeyboardInterrupt), writing(path) as file:
        file.write(b"other")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("swallowed", [False, True])
def test_an_interrupt_while_torch_is_imported_ends_the_command_with_a_word(swallowed: bool, tmp_path: Path) -> None:
    raised = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    pass\n"
    end = "except BaseException:\n    pass\n" if swallowed else "finally:\n    pass\n"
    (tmp_path / "torch.py").write_text(f"{raised}{end}raise ImportError")
    places = os.pathsep.join([str(tmp_path), *sys.path])
    answer = subprocess.run(
        [sys.executable, "-m", "faustnet", "methods"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": places},
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "faustnet: interrupted\n")


def test_an_interrupt_while_python_shuts_down_after_a_command_prints_nothing() -> None:
    program = (
        "import atexit, os, signal, sys; from faustnet.__main__ import main; sys.argv = ['faustnet', '--help']; "
        "atexit.register(os.kill, os.getpid(), signal.SIGINT); main()"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (-signal.SIGINT, "")
    assert "faustnet" in answer.stdout


def test_an_interrupt_before_training_ends_the_command_with_a_word_too(
    faustnet: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faustnet.runs.session.load_data", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    answer = faustnet("train", "--dataset", "digits", "--out", tmp_path / "run")
    assert (answer.code, answer.err) == (130, "faustnet: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as said:
        write_whole(tmp_path / "model.onnx", b"content")
    assert said.value.filename == str(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
