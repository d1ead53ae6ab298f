"""Kill and resume trainings, and compare the results with those of uninterrupted trainings.

    python benchmarks/killing.py results/killing.json --runs 50    one hour on two CPU cores (needs FAUSTNET_DATA)
    python benchmarks/killing.py page                              write the table of docs/interruptions.md

Each run is a `faustnet train` process that is killed several times and continued with --resume. The moments are drawn
uniformly from the duration of the uninterrupted run, including start-up. In a second test, runs are killed before each
of their file operations in turn. After every kill, every file in the run folder must be complete. The result file is
written after each run; run the command again to continue.
"""

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from faustnet.data import DataSet, load_data
from faustnet.errors import FaustnetError
from faustnet.report.tables import markdown
from faustnet.reproduce.worker import StoppableProgress
from faustnet.runs import session
from faustnet.runs.checkpoints import Checkpoints
from faustnet.runs.folder import METRICS, MODEL, RECIPE, Run
from faustnet.runs.recipes import Recipe, changed, write_recipe
from faustnet.runs.tensor_file import ABOUT, CHECKSUM, is_intact, read_tensors
from faustnet.system.environment import environment
from faustnet.system.files import is_partial, write_whole
from faustnet.system.locks import LOCK

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "killing.json"
PAGE = ROOT / "docs" / "interruptions.md"
LEAST, KILLS = 2, 4  # lowest and highest number of kills per run
SMALL = {"network.widths": [64, 48], "training.batch_size": 64}
DIGITS = {"dataset": "digits", "training.epochs": 40, **SMALL}
FAUST = {**DIGITS, "network.embedding": 16}
KINDS: dict[str, dict[str, Any]] = {
    "digits, faust-tuplet, sequential": FAUST | {
        "method": "faust-tuplet", "training.schedule": "sequential", "network.dropout": 0.1, "data.crop": 1,
    },
    "digits, faust-representative, wavefront": FAUST | {
        "method": "faust-representative", "training.schedule": "wavefront", "network.dropout": 0.2, "data.rotation": 10.0,
    },
    "digits, faust-representative, greedy": FAUST | {
        "method": "faust-representative", "training.schedule": "greedy", "network.dropout": 0.1, "optimiser.name": "muon",
        "training.epochs": 12,
    },
    "digits, forward-forward, wavefront": DIGITS | {
        "method": "forward-forward", "training.schedule": "wavefront", "network.input_dropout": 0.1, "data.crop": 1,
    },
    "mnist, backprop, sequential": SMALL | {
        "dataset": "mnist", "method": "backprop", "training.schedule": "sequential", "network.dropout": 0.2,
        "data.crop": 2, "data.cutout": 4, "training.epochs": 10, "training.validation": 52_000.0,
        "training.evaluate_every": 10,
    },
}  # fmt: skip
POINTED = list(KINDS)[:4]  # kinds that are killed before each file operation
STATES = (
    "before the run began", "before the first checkpoint", "while training", "between model and figures", "at the end"
)  # fmt: skip
SHOWN = ("before start", "before the first checkpoint", "during training", "between model and metrics", "at the end")
CPU = torch.device("cpu")
EPOCHS = 3  # of the runs that are killed before each file operation
TIMES = ("seconds", "train_seconds", "seconds_per_image")  # metrics that differ between any two runs


def spoiled(folder: Path) -> list[str]:
    """Return the incomplete files of a folder, except temporary files."""
    found = []
    for path in folder.rglob("*") if folder.exists() else ():
        if path.is_file() and not is_partial(path) and path.name != LOCK and not _parses(path):
            found.append(path.name)
    return found


def _parses(path: Path) -> bool:
    try:
        return _is_read(path)
    except (ValueError, LookupError, FaustnetError):
        return False


def _is_read(path: Path) -> bool:
    if path.suffix == ".safetensors":
        notes, tensors = read_tensors(path)
        about = json.loads(notes[ABOUT])
        return CHECKSUM in about and is_intact(tensors, about)
    text = path.read_text()
    if path.suffix == ".toml":
        return bool(tomllib.loads(text))
    if path.suffix == ".csv":
        return len({len(row) for row in csv.reader(text.splitlines())}) == 1 and text.endswith("\n")
    return bool(json.loads(text)) and text.endswith("\n")


def state(folder: Path) -> str:
    """Return the state of a run when it was killed."""
    if not (folder / RECIPE).exists():
        return "before the run began"
    if (folder / METRICS).exists():
        return "at the end"
    if (folder / MODEL).exists():
        return "between model and figures"
    return "while training" if Checkpoints(folder).paths else "before the first checkpoint"


def outcome(folder: Path) -> dict[str, Any]:
    """Return all results of a run except times."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: timeless(entry) for key, entry in value.items() if key not in TIMES}
        return [timeless(entry) for entry in value] if isinstance(value, list) else value

    run = Run.open(folder)
    return {
        "model": (folder / MODEL).read_bytes(),
        "history": timeless(run.history),
        "metrics": timeless(run.metrics),
        "files": sorted(path.name for path in folder.iterdir()),
    }


def trained(folder: Path, recipe: Path, seconds: float | None) -> bool:
    """Train in a new process that is killed after the given seconds, and return whether it finished. The command is the
    one that a user would type: a new run, or --resume if the run exists."""
    how = ["--resume"] if (folder / RECIPE).exists() else ["--recipe", str(recipe)]
    command = [sys.executable, "-m", "faustnet", "train", *how, "--out", str(folder), "--device", "cpu"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=one_thread) as process:
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return False
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {errors.decode()}")
    return True


def killed_at_random(kind: str, seed: int) -> dict[str, Any]:
    """Train one run without interruption, then with kills."""
    begin = time.perf_counter()
    recipe = changed(Recipe(), KINDS[kind] | {"seed": seed})
    moments = random.Random(f"{kind}, {seed}")
    kills: list[dict[str, Any]] = []
    broken: list[str] = []
    ends: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        alone, folder, file = (Path(place) / name for name in ("alone", "killed", "recipe.toml"))
        file.write_text(write_recipe(recipe))
        trained(alone, file, None)
        life = time.perf_counter() - begin
        while True:
            after = moments.uniform(0, life) if len(kills) < KILLS else None
            if trained(folder, file, after):
                ends.append(outcome(folder))
                if len(kills) >= LEAST:
                    break
                shutil.rmtree(folder)  # it finished before the kill: try again
                continue
            writing = folder.exists() and any(map(is_partial, folder.iterdir()))
            kills.append({"after_s": round(after or 0.0, 3), "found": state(folder), "writing": writing})
            broken += spoiled(folder)
        wanted = outcome(alone)
    same = {f"same_{key}": all(end[key] == value for end in ends) for key, value in wanted.items()}
    seconds = {"life_s": round(life, 2), "seconds": round(time.perf_counter() - begin, 1)}
    return {"kind": kind, "seed": seed, **seconds, "kills": kills, "not_whole": broken, **same}


def die_before(operation: int, folder: Path) -> None:
    """Make this process kill itself before its n-th operation that changes a file or a folder."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")
        changes = changes or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))
        if changes and any(isinstance(one, str | os.PathLike) and str(one).startswith(str(folder)) for one in arguments):
            step()

    def synced(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        step()
        fsync(descriptor)

    sys.addaudithook(watch)
    os.fsync = synced


def forked(folder: Path, recipe: Recipe, data: DataSet, operation: int = 0) -> bool:
    """Train in a fork that kills itself before a file operation, and return whether it finished."""
    child = os.fork()
    if not child:
        try:
            die_before(operation, folder)
            session.SAVE_EVERY = 0.0
            begun = (folder / RECIPE).exists()
            session.train(
                recipe, folder, device=CPU, progress=StoppableProgress(), resume=begun, change_epochs=begun, data=data
            )
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"training into {folder} ended with {code}")
    return code == 0


def killed_at_every_point(recipe: Recipe, place: Path, finished: Recipe | None = None) -> dict[str, Any]:
    """Kill a short run before its first file operation and resume it, then before its second, and so on. With `finished`,
    the run that is killed continues a finished one, whose model must stay usable. This process must not have trained
    before, because it is forked."""
    begin = time.perf_counter()
    data = load_data(recipe.dataset)
    session.set_up(recipe, data, CPU)  # imports modules once, and not in every copy
    environment(CPU, recipe.seed)  # asks git for the commit once
    if finished:
        forked(place / "finished", finished, data)

    def new_folder(name: str) -> Path:
        return Path(shutil.copytree(place / "finished", place / name)) if finished else place / name

    forked(new_folder("alone"), recipe, data)
    wanted = outcome(place / "alone")
    points = 0
    found: Counter[str] = Counter()
    different: list[int] = []
    broken: list[str] = []
    while not forked(folder := new_folder(str(points + 1)), recipe, data, points + 1):
        points += 1
        if finished:
            Run.open(folder).model()
        found[state(folder)] += 1
        broken += spoiled(folder)
        forked(folder, recipe, data)
        if outcome(folder) != wanted:
            different.append(points)
    seconds = round(time.perf_counter() - begin, 1)
    return {"points": points, "found": dict(found), "not_whole": broken, "different_after": different, "seconds": seconds}


def study(path: Path, count: int, jobs: int) -> None:
    found = json.loads(path.read_text()) if path.exists() else {"environment": environment(CPU, 0), "kinds": KINDS}
    points, killed = found.setdefault("points", []), found.setdefault("runs", [])

    def keep(part: list[dict[str, Any]], one: dict[str, Any], said: str) -> None:
        part.append(one)
        part.sort(key=lambda entry: (entry.get("seed", 0), list(KINDS).index(entry["kind"])))
        write_whole(path, (json.dumps(found, indent=1) + "\n").encode())
        print(f"{said}: {'identical' if is_good(one) else 'DIFFERENT'}", flush=True)

    for kind in POINTED:
        if kind not in {one["kind"] for one in points}:
            with tempfile.TemporaryDirectory() as place:
                recipe = changed(Recipe(), KINDS[kind] | {"training.epochs": EPOCHS})
                one = {"kind": kind, "epochs": EPOCHS, **killed_at_every_point(recipe, Path(place))}
            keep(points, one, f"{kind}, killed before {one['points']} operations in turn")
    done = {(one["kind"], one["seed"]) for one in killed}
    wanted = [(list(KINDS)[number % len(KINDS)], number // len(KINDS)) for number in range(count)]
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(killed_at_random, *one) for one in wanted if one not in done]
        try:
            for future in as_completed(futures):
                one = future.result()
                keep(killed, one, f"{len(killed) + 1}/{count} {one['kind']}, seed {one['seed']}, {len(one['kills'])} kills")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def is_good(one: dict[str, Any]) -> bool:
    """Whether a run ended like the uninterrupted one and never left an incomplete file."""
    same = all(value for key, value in one.items() if key.startswith("same_"))
    return same and not one["not_whole"] and not one.get("different_after")


def table(found: dict[str, Any]) -> str:
    """Table of all runs, by kind."""
    rows = []
    for kind in KINDS:
        mine = [one for one in found["runs"] if one["kind"] == kind]
        states = Counter(kill["found"] for one in mine for kill in one["kills"])
        good = f"{sum(map(is_good, mine))} of {len(mine)}"
        points = [one for one in found["points"] if one["kind"] == kind]
        rows.append(
            [kind, str(sum(states.values())), *(str(states[name]) for name in STATES), good,
             ", ".join(f"{one['points'] - len(one['different_after'])} of {one['points']}" for one in points) or "–"]
        )  # fmt: skip
    broken = sum(len(one["not_whole"]) for one in [*found["runs"], *found["points"]])
    about, seconds = found["environment"], sum(one["seconds"] for one in [*found["runs"], *found["points"]])
    said = (
        f"Incomplete files: {broken}. Kills while a file was being written: "
        f"{sum(kill['writing'] for one in found['runs'] for kill in one['kills'])}. PyTorch {about['torch']}, "
        f"{about['processor']}; {seconds / 60:.0f} minutes of training, two runs at a time."
    )
    columns = ["runs", "kills", *SHOWN, "identical results", "identical after a kill before each file operation"]
    return markdown(columns, rows) + "\n\n" + said


def with_table(page: str, found: dict[str, Any]) -> str:
    """Return the page with the table between its marks replaced."""
    begin, end = "<!-- killing: benchmarks/killing.py -->\n", "\n<!-- end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert pattern.search(page), "the page has no marks for the table"
    return pattern.sub(lambda _: begin + table(found) + end, page, count=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="result file, or the word page")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs")
    arguments = parser.parse_args()
    if arguments.file == "page":
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), json.loads(RESULTS.read_text())), encoding="utf-8")
        return
    try:
        study(Path(arguments.file), arguments.runs, arguments.jobs)
    except KeyboardInterrupt:
        print(f"Stopped. {arguments.file} has the finished runs; the same command continues.")
        sys.exit(130)


if __name__ == "__main__":
    main()
