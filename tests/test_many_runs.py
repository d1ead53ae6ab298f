"""Many runs by several processes, commands and machines: each is done once, whatever dies meanwhile."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Answer
from faustnet.errors import FaustnetError
from faustnet.reproduce import claims
from faustnet.reproduce.claims import Claim, claim_on
from faustnet.reproduce.dispatch import Dispatcher
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.worker import JobSpec, Status, answer
from faustnet.reproduce.workers import Workers
from faustnet.system.locks import folder_lock
from forked_workers import workers_of
from processes import COMMAND, Program

Command = Callable[..., Answer]
SMALL = ("--datasets", "digits", "--networks", "2x24", "--recipes", "tuned", "--device", "cpu")
TWO_RUNS = ("table1", *SMALL, "--methods", "backprop", "--seeds", "2")
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")


SECOND = "digits-2x24-backprop-1"
# In the processes that train: the second run waits after three epochs, until it is stopped or a file is there.
WAITING = """
import os, time
from faustnet.reproduce import claims, worker
from faustnet.runs import session
def wait(self, epoch):
    waits = self.trainer.seed == 1 and epoch.epoch == 3
    while waits and not self.trainer.stopping and not os.path.exists({!r}):
        time.sleep(0.01)
worker.StoppableProgress.epoch, session.SAVE_EVERY, claims.BEAT = wait, 0.0, 0.1
"""


def started(*words: object) -> Program:
    return Program(COMMAND, "reproduce", *words, new_session=True)


def started_side_by_side(out: Path) -> tuple[Program, list[int]]:
    """A command that trains two runs at a time, as soon as the first is done, and the processes that train."""
    code = f"{WAITING.format(str(out / 'go on'))}\nimport forked_workers\nforked_workers.install()\n{COMMAND}"
    process = Program(code, "reproduce", *TWO_RUNS, "--jobs", 2, "--out", out, new_session=True)
    assert any("1/2 backprop" in line for line in process.stderr)
    return process, workers_of(process.pid)


def results(out: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in sorted(out.rglob("*-*-*.json"))}


def claims_in(out: Path) -> list[str]:
    return [path.name for path in (out / ".claims").iterdir() if path.suffix in (".lock", ".json")]


@linux
@pytest.mark.parametrize("how", ["Ctrl-C", "kill"])
def test_several_processes_stop_together_and_can_go_on(how: str, faustnet: Command, tmp_path: Path) -> None:
    process, children = started_side_by_side(tmp_path)
    assert len(children) == 2
    if how == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    _, said = process.communicate()  # which ends when all of them have
    assert process.returncode == (-signal.SIGKILL if how == "kill" else 130)
    assert "Traceback" not in said
    assert ("same command again" in said) == (how != "kill")
    assert not (tmp_path / f"table1/tuned/{SECOND}.json").exists()
    assert (tmp_path / f"table1/tuned/{SECOND}.run/checkpoint.safetensors").exists()
    again = faustnet("reproduce", *TWO_RUNS, "--out", tmp_path)
    assert again.code == 0, again.err
    assert len(results(tmp_path)) == 2
    assert claims_in(tmp_path) == []


@linux
def test_a_run_whose_process_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    process, (one, other) = started_side_by_side(tmp_path)
    for child in (one, other):  # of which one is idle
        os.kill(child, signal.SIGKILL)
    (tmp_path / "go on").touch()
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert "2/2 backprop" in said
    found = results(tmp_path)[f"{SECOND}.json"]
    assert len(found["environment"]["earlier"]) == 1, "it was continued"
    assert len(found["history"]) == found["recipe"]["training"]["epochs"]
    assert claims_in(tmp_path) == []


def test_two_commands_share_the_runs_of_one_folder(tmp_path: Path) -> None:
    words = ("new-classes", "--datasets", "digits", "--classes", "0,1,2", "--references", 1, "--device", "cpu")
    said = [process.communicate() for process in [started(*words, "--out", tmp_path) for _ in range(2)]]
    begun = [re.findall("(digits without class .*): training", err) for _, err in said]
    assert sorted(begun[0] + begun[1]) == [f"digits without class {n}, references 1, seed 0" for n in range(3)]
    assert len(results(tmp_path)) == 3
    assert said[0][0] == said[1][0], "both end with the whole table"
    assert claims_in(tmp_path) == []


# Trains two runs at a time, of which the first ends its process, and prints the error.
DEADLY = """
import sys
from pathlib import Path
import forked_workers
forked_workers.install()
from deadly_job import Deadly
from faustnet.errors import FaustnetError
from faustnet.reproduce import dispatch
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.workers import Workers
out, dispatch.ATTEMPTS = Path(sys.argv[1]), 1
jobs = [Deadly("tuned", "backprop", "digits", "2x24", 0, out / "notes"), Table1Job("tuned", "backprop", "digits", "2x24", 1)]
try:
    dispatch.Dispatcher(jobs, out, Workers("cpu", jobs=2)).run()
except FaustnetError as error:
    print(error)
"""


@linux
def test_a_run_that_ends_its_process_again_and_again_is_given_up_and_the_others_are_not(tmp_path: Path) -> None:
    process = Program(DEADLY, tmp_path)
    printed, said = process.communicate()
    assert process.returncode == 0, said
    assert "tuned, seed 0 could not be trained, but all other runs are finished: its process" in printed
    assert (tmp_path / "notes").read_text().count("tried") == 2, "beside the other, and alone"
    assert list(results(tmp_path)) == ["digits-2x24-backprop-1.json"]
    assert claims_in(tmp_path) == []


CLUSTER = """
import dask, signal, sys
from distributed import LocalCluster
from multiprocessing.forkserver import _forkserver
_forkserver.ensure_running = lambda: None  # workers are forks of the server that this process comes from
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, preload=sys.argv[1]) as cluster:
    print(cluster.scheduler_address, flush=True)
    signal.pause()
"""


def test_a_dask_cluster_trains_and_goes_on_when_it_loses_a_worker(faustnet: Command, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs dask: pip install 'faustnet[dask]'")
    out, go_on = tmp_path / "out", tmp_path / "go on"
    cluster = Program(CLUSTER, WAITING.format(str(go_on)))
    try:
        address = cluster.stdout.readline().strip()
        process = started(*TWO_RUNS, "--backend", "dask", "--address", address, "--out", out)
        assert any("1/2 backprop" in line for line in process.stderr)
        owner = claim_on(out, f"table1-tuned-{SECOND}").lease.owner
        assert owner is not None
        os.kill(owner.pid, signal.SIGKILL)
        go_on.touch()
        _, said = process.communicate()
    finally:
        cluster.kill()
        cluster.communicate()
    assert process.returncode == 0, said
    assert len(results(out)[f"{SECOND}.json"]["environment"]["earlier"]) == 1
    answered = faustnet("reproduce", *TWO_RUNS, "--backend", "dask", "--address", address, "--out", tmp_path / "new")
    assert f"No dask cluster responds at {address}" in answered.sentence


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nowhere.invalid:8786", "carrier-pigeon://coop", ""])
def test_an_address_where_nobody_can_be_is_said_to_be_one(address: str, faustnet: Command, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs dask: pip install 'faustnet[dask]'")
    answered = faustnet("reproduce", *TWO_RUNS, "--backend", "dask", "--address", address, "--out", tmp_path)
    assert answered.code == 2
    assert "--address" in answered.sentence


def test_a_ray_cluster_trains(faustnet: Command, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'faustnet[ray]'")
    context = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        address = context.address_info["gcs_address"]
        process = started(*TWO_RUNS, "--backend", "ray", "--address", address, "--out", tmp_path)
        _, said = process.communicate()
    finally:
        ray.shutdown()
    assert process.returncode == 0, said
    assert "2/2" in said
    assert len(results(tmp_path)) == 2


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_package_that_is_missing_is_named(
    name: str, faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, {"dask": "distributed"}.get(name, name), None)
    said = faustnet("reproduce", *TWO_RUNS, "--backend", name, "--address", "HOST:1", "--out", tmp_path).sentence
    assert f"pip install 'faustnet[{name}]'" in said


def test_a_claim_that_is_not_renewed_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "STALE", 0.2)
    monkeypatch.setattr(claims, "BEAT", 0.05)
    theirs, ours = Claim(tmp_path, "one"), Claim(tmp_path, "one")
    assert theirs.take()
    theirs.write_notes({"attempt": 1})
    assert ours.held
    assert not ours.take()
    theirs.lease._stop_heartbeat()
    until(ours.take)
    assert ours.notes == {"attempt": 1}, "what a dead holder has noted is known to the next"
    assert not ours.lost
    with ours:
        pass
    assert not list(tmp_path.iterdir())


def test_a_process_notices_that_its_claim_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.05)
    claim, other = Claim(tmp_path, "one"), Claim(tmp_path, "one")
    assert claim.take()
    claim.file.unlink()
    assert other.take()
    other.write_notes({"attempt": 2})
    until(lambda: claim.lost)
    with claim:
        pass
    assert other.held
    assert other.notes == {"attempt": 2}, "a lost claim is not removed"


def until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end


def test_a_claim_is_held_by_one_process_and_ends_with_it(tmp_path: Path) -> None:
    hold = "from faustnet.reproduce.claims import *; import sys, time; print(claim_on(Path(sys.argv[1]), 'one').take())"
    claim = claim_on(tmp_path, "one")
    process = Program(f"{hold}; sys.stdout.flush(); time.sleep(1000)", tmp_path)
    assert process.stdout.readline() == "True\n"
    assert claim.held
    assert not claim.take()
    assert claim.holder.startswith(f"process {process.pid} on ")
    process.kill()
    process.communicate()
    assert not claim.held, "at once on one machine"
    assert claims_in(tmp_path) == []
    assert claim.take()


def test_a_worker_whose_command_is_gone_ends_however_its_run_was_stopped(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.worker import JobSpec, answer
job = Table1Job("tuned", "backprop", "digits", "2x24", 0)
answer(JobSpec(Path({str(tmp_path)!r}), "cpu", None, "gone", 1, parent=1), job)
"""
    process = Program(code)
    process.communicate()
    assert process.returncode == 1


def test_a_worker_that_cannot_see_the_folder_says_so(tmp_path: Path) -> None:
    job = Table1Job("tuned", "backprop", "digits", "2x24", 0)
    dispatcher = Dispatcher([job], tmp_path, Workers("cpu"))
    outcome = answer(JobSpec(tmp_path / "other", "cpu", None, dispatcher.spec.command, 1), job)
    assert outcome.status is Status.NO_COMMAND
    assert dispatcher.spec.claim.take()
    with pytest.raises(
        FaustnetError, match=r"cannot find the files of this command in .*: use a folder as --out that all workers share"
    ):
        dispatcher._handle(outcome)


def test_a_mistake_of_one_worker_stops_the_others_and_is_told(tmp_path: Path) -> None:
    job = Table1Job("tuned", "backprop", "digits", "2x24", 0)
    job.folder(tmp_path).mkdir(parents=True)
    (job.folder(tmp_path) / "recipe.toml").write_text("dataset = 'digits'")
    spec = JobSpec(tmp_path, "cpu", None, "ours", 1)
    assert spec.claim.take()
    with spec.claim:
        outcome = answer(spec, job)
        assert outcome.status is Status.REFUSED
        assert "to resume" in str(outcome.error)
        assert not spec.claim.file.exists(), "the other workers stop"
        assert answer(spec, job).status is Status.NO_COMMAND
    dispatcher = Dispatcher([job], tmp_path, Workers("cpu"))
    with pytest.raises(FaustnetError, match="to resume"):
        dispatcher._handle(outcome)
    assert claims_in(tmp_path) == []


def test_a_run_whose_folder_is_held_is_left_to_its_holder(tmp_path: Path) -> None:
    job = Table1Job("tuned", "backprop", "digits", "2x24", 0)
    job.folder(tmp_path).mkdir(parents=True)
    spec = JobSpec(tmp_path, "cpu", None, "ours", 1)
    assert spec.claim.take()
    with spec.claim, folder_lock(job.folder(tmp_path)):
        assert answer(spec, job).status is Status.ELSEWHERE
        assert spec.claim.file.exists(), "the others go on"
