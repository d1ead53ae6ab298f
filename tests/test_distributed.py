"""Training on several ranks gives the result of one process, and ends with a message when a rank fails."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import ranks
from conftest import Answer
from faustnet import load, train
from faustnet.data import DataSet
from faustnet.errors import FaustnetError
from faustnet.nn.row_shard import RowShard
from faustnet.runs.folder import Run
from faustnet.runs.recipes import read_recipe, recipe_from, write_recipe
from faustnet.training.distributed import grid_size, row_parallel, watch
from faustnet.training.distributed.communicator import balanced_stages
from processes import COMMAND, Program, free_port, start_ranks

PATIENCE = 120  # seconds, on a busy machine
RECIPE = {
    "network": {"widths": [24, 24, 24], "embedding": 8, "dropout": 0.1},
    "training": {"epochs": 40, "batch_size": 64, "evaluate_every": 1000},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, digits: DataSet) -> Path:
    """A recipe that trains for a few seconds. Its data are in a file, because importing scikit-learn is slow."""
    folder = tmp_path_factory.mktemp("small")
    parts = {"train": digits.train, "test": digits.test}
    pixels = {f"x_{name}": part.pixels.numpy() for name, part in parts.items()}
    np.savez(folder / "digits.npz", **pixels, **{f"y_{name}": part.labels.numpy() for name, part in parts.items()})
    recipe = recipe_from({**RECIPE, "dataset": str(folder / "digits.npz")})
    (folder / "recipe.toml").write_text(write_recipe(recipe))
    return folder / "recipe.toml"


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The difference between several ranks and one process after two epochs in float64, by arrangement and case."""
    file = tmp_path_factory.mktemp("ranks") / "found.json"
    process = Program("import ranks\nranks.BATCHES = 3\nranks.main()", "equality", "--steps", 6, "--out", file)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    found: dict[str, dict[str, float]] = {}
    for line in ranks.read(file)["equality"]["cases"]:
        found.setdefault(line["arrangement"], {})[line["case"]] = line["difference"]
    return found


@pytest.mark.parametrize("arrangement", [name for names in ranks.ARRANGEMENTS.values() for name in names])
def test_several_ranks_end_with_the_state_of_one_process(arrangement: str, differences: dict[str, dict[str, float]]) -> None:
    """Weights, optimiser states, generators and losses of every local method, with all sources of randomness and with rows
    that cannot be divided evenly."""
    assert set(ranks.LOCAL) <= differences[arrangement].keys()
    assert {case: found for case, found in differences[arrangement].items() if found > 1e-7} == {}


@pytest.mark.parametrize("costs", [[1, 1, 1, 1], [9, 1, 1, 1], [5, 4, 1, 1, 5], [1, 2, 3, 4, 5, 6], [1, 1, 100]])
def test_stages_minimise_the_cost_of_the_most_expensive_one(costs: list[int]) -> None:
    """Compared with all divisions."""
    for stages in range(1, len(costs) + 1):
        ways = [[0, *cuts, len(costs)] for cuts in combinations(range(1, len(costs)), stages - 1)]
        least = min(max(sum(costs[a:b]) for a, b in pairwise(way)) for way in ways)
        found = balanced_stages(costs, stages)
        assert [number for span in found for number in span] == list(range(len(costs)))
        assert all(found)
        assert max(sum(costs[number] for number in span) for span in found) == least


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(FaustnetError, match="needs at least 3 layers for 3 groups of ranks, got 2"):
        balanced_stages([1, 1], 3)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [("2x3", "requires 6 ranks, got 4"), ("rows", "data, layers, or a grid"), ("0x4", "got '0x4'"), ("4x", "got '4x'")],
)
def test_an_invalid_value_of_parallel_is_refused(parallel: str, said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        grid_size(parallel, 4)


@pytest.mark.parametrize(("total", "counts"), [(8, [2, 2, 2, 2]), (9, [3, 3, 3, 0]), (5, [2, 2, 1, 0]), (1, [1, 0, 0, 0])])
def test_shards_are_all_rows_in_order(total: int, counts: list[int]) -> None:
    parts = [RowShard(None, rank, 4, total) for rank in range(4)]  # type: ignore[arg-type]
    assert all(part.counts == counts for part in parts)
    rows = torch.arange(total)
    assert torch.equal(torch.cat([rows[part.own] for part in parts]), rows)


@contextmanager
def by_hand(count: int, *words: object, code: str = COMMAND, folders: tuple[Path, ...] = ()) -> Iterator[list[Program]]:
    """Start ranks of a command, and end them after the block."""
    started = start_ranks(count, code, *words, folders=folders)
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ends(processes: list[Program]) -> list[tuple[int | None, str]]:
    """Return the exit status and the last line of each process."""
    lines = [process.communicate(timeout=PATIENCE)[1].strip().splitlines() for process in processes]
    return [(process.returncode, (said or [""])[-1]) for process, said in zip(processes, lines, strict=True)]


@pytest.mark.parametrize(("count", "victim", "parallel"), [(3, 1, "layers"), (2, 0, "data")])
def test_a_rank_that_is_killed_ends_the_others_by_name(
    count: int, victim: int, parallel: str, small: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with by_hand(count, "train", "--recipe", small, "--epochs", 10**6, "--out", folder, "--parallel", parallel) as started:
        wait_until((folder / "checkpoint.safetensors").exists)
        started[victim].kill()
        began = time.monotonic()
        others = [process for rank, process in enumerate(started) if rank != victim]
        found = ends(others)
    assert time.monotonic() - began < 30
    assert [code for code, _ in found] == [1] * len(others)
    sentence = f"faustnet: rank {victim} on {socket.gethostname()} has died, so all ranks stop. Continue from the last"
    assert found[0][1].startswith(sentence)
    assert not victim or not found[1][1], "the first rank speaks for all"


def test_a_rank_that_does_not_respond_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its machine is lost: the connection stays open. The other ranks are told to end."""
    printed, codes, stores = [], [], [torch.distributed.HashStore() for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        made = [
            threads.submit(torch.distributed.ProcessGroupGloo, store, rank, 2, timedelta(seconds=PATIENCE))
            for store in stores
            for rank in range(2)
        ]
        to_silent, _silent, to_other, other = (future.result() for future in made)
    monkeypatch.setattr(watch, "SILENCE", 1.0)
    monkeypatch.setattr(watch, "_print", printed.append)
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), first.links.clear()))
    first = watch.Watch({1: to_silent, 2: to_other}, ["here", "silent", "other"])
    watch.send(other, {})
    assert watch.receive(other, PATIENCE) == {"end": 1}
    first.thread.join()
    assert codes == [1]
    assert printed == [
        "faustnet: rank 1 on silent has not responded for 1 s, so all ranks stop. "
        "Continue from the last checkpoint with --resume."
    ]


def test_an_error_of_all_ranks_is_printed_once(tmp_path: Path) -> None:
    with by_hand(2, "train", "--widths", "24,0", "--out", tmp_path / "run") as started:
        (code, said), (other_code, nothing) = ends(started)
    assert (code, other_code, nothing) == (2, 2, "")
    assert said.startswith("faustnet: network.widths must be")
    assert not (tmp_path / "run").exists()


def test_an_error_of_one_rank_is_printed_with_its_number_and_host(tmp_path: Path) -> None:
    """One machine lacks the data."""
    folders = (tmp_path / "here", tmp_path / "there")
    for folder in folders:
        folder.mkdir()
    images = np.zeros((40, 1, 4, 4), dtype=np.uint8)
    parts = {f"{kind}_{part}": images if kind == "x" else np.arange(40) % 2 for kind in "xy" for part in ("train", "test")}
    np.savez(folders[0] / "mine.npz", **parts)
    words = ["train", "--dataset", "mine.npz", "--batch-size", 8, "--out", tmp_path / "run"]
    without_waiting = f"from faustnet.training.distributed import watch\nwatch.GRACE = 0.1\n{COMMAND}"
    with by_hand(2, *words, code=without_waiting, folders=folders) as started:
        (code, said), (other_code, _) = ends(started)
    assert (code, other_code) == (2, 2)
    assert said.startswith("faustnet: ")
    assert said.endswith(f"(rank 1, on {socket.gethostname()})")
    assert not (tmp_path / "run").exists()


def test_ranks_with_different_data_are_refused(tmp_path: Path) -> None:
    """Fewer images make fewer batches, and a rank would wait for another that has finished."""
    folders = (tmp_path / "here", tmp_path / "there")
    for folder, count in zip(folders, (40, 24), strict=True):
        folder.mkdir()
        images, labels = np.zeros((count, 1, 4, 4), dtype=np.uint8), np.arange(count) % 2
        np.savez(folder / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    words = ["train", "--dataset", "mine.npz", "--batch-size", 8, "--out", tmp_path / "run"]
    with by_hand(2, *words, folders=folders) as started:
        (code, said), (other_code, _) = ends(started)
    assert (code, other_code) == (2, 2)
    assert said == "faustnet: Rank 1 has a different data set than rank 0: give all ranks the same."
    assert not (tmp_path / "run").exists()


def same_as_one_process(folder: Path, small: Path, tmp_path: Path) -> None:
    """Compare with a training in one process, up to rounding."""
    whole = train(read_recipe(small), tmp_path / "whole", device="cpu")
    mine, run = load(folder).method.state_dict(), Run.open(folder)
    for name, tensor in load(whole.folder).method.state_dict().items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-5)
    assert run.metrics.keys() == whole.metrics.keys()
    assert run.metrics["schedule"] == whole.metrics["schedule"]
    assert run.metrics["test_accuracy"] == pytest.approx(whole.metrics["test_accuracy"], abs=0.01)
    for here, there in zip(run.history, whole.history, strict=True):
        assert here["losses"] == pytest.approx(there["losses"], rel=1e-3)
        assert here["learning_rate"] == there["learning_rate"]


def test_all_ranks_stop_when_one_is_asked_to_and_one_process_resumes(
    small: Path, tmp_path: Path, faustnet: Callable[..., Answer]
) -> None:
    folder = tmp_path / "run"
    with by_hand(2, "train", "--recipe", small, "--out", folder) as started:
        wait_until((folder / "checkpoint.safetensors").exists)
        started[1].send_signal(signal.SIGTERM)
        (code, said), (other_code, nothing) = ends(started)
    assert (code, other_code, nothing) == (130, 130, "")
    assert said.startswith(f"Stopped. The run is saved; continue it with: faustnet train --resume --out {folder}")
    assert faustnet("train", "--resume", "--out", folder).code == 0
    same_as_one_process(folder, small, tmp_path)


# Like torchrun -m faustnet: the same agent starts and restarts the ranks, as forks instead of new interpreters.
TORCHRUN = """
import sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from faustnet.__main__ import main
def rank():
    main()
about = {"rdzv_backend": "static", "rdzv_endpoint": sys.argv.pop(1), "rdzv_configs": {"rank": 0}}
config = LaunchConfig(1, 1, 2, max_restarts=2, start_method="fork", monitor_interval=0.1, **about)
elastic_launch(config, rank)()
"""


def test_torchrun_restarts_a_killed_job_with_the_same_result(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("train", "--parallel", "layers", "--recipe", small, "--out", folder)
    job = Program(TORCHRUN, f"127.0.0.1:{free_port()}", *words)
    try:
        wait_until((folder / "checkpoint.safetensors").exists)
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        out, err = job.communicate(timeout=PATIENCE)
    finally:
        job.kill()
    assert job.returncode == 0, err
    assert out.startswith("test accuracy ")
    assert "continuing after" in err, "it was not begun anew"
    same_as_one_process(folder, small, tmp_path)


def test_summed_gradients_have_the_order_of_memory_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the weights of convolutions are stored with the channels last, and torch's fused optimisers need gradients
    that are, too."""

    class Done:
        def wait(self) -> None: ...

    monkeypatch.setattr(row_parallel.dist, "all_reduce", lambda tensor, **_: tensor.mul_(2) is not None and Done())
    shapes = ((4, 3, 2, 2), (5,))
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    weights[0].data = weights[0].data.contiguous(memory_format=torch.channels_last)
    gradients = [torch.randn(shape) for shape in shapes]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.clone()
    row_parallel.GradientSum(weights, torch.tensor(0.1), None).wait()  # type: ignore[arg-type]
    for weight, gradient in zip(weights, gradients, strict=True):
        assert torch.equal(weight.grad, 2 * gradient)
        assert weight.grad.stride() == weight.stride()
