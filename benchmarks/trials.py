"""Train and store trials of recipes, evaluated on validation images. Shared by benchmarks/tuning.py, benchmarks/best.py and
benchmarks/few_shot.py."""

import json
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from faustnet.reproduce.results import write_lines
from faustnet.reproduce.worker import cached_data
from faustnet.runs.recipes import Recipe
from faustnet.runs.session import set_up
from faustnet.system.environment import environment
from faustnet.training.loop import Diverged

EQUAL, LEARNING_RATE = "equal", "learning-rate"  # tuning: the same draws for all arms; only the learning rate of twins
RECIPES = Path(__file__).parents[1] / "src/faustnet/runs/recipes"

Trial = dict[str, Any]  # its result is "validation_accuracy", None if it was not trained yet


def read(path: Path) -> list[Trial]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def save(path: Path, trials: list[Trial]) -> None:
    write_lines(path, trials)


def run(
    path: Path,
    recipe_of: Callable[[Trial], Recipe],
    shown: Callable[[Trial], str],
    jobs: int,
    device: str,
    seconds: float,
    measured: Callable[[Recipe, str], dict[str, Any]] | None = None,
) -> None:
    """Train the trials without a result, starting with the first of every study. The file is written after each trial. No
    trial is started after the given seconds. `measured` is used in place of `measure`."""
    trials = read(path)
    waiting = [number for number, trial in enumerate(trials) if trial["validation_accuracy"] is None]
    waiting.sort(key=lambda number: trials[number]["number"])
    end = time.monotonic() + seconds
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(measured or measure, recipe_of(trials[number]), device): number for number in waiting}
        while futures:
            for future in wait(futures, return_when=FIRST_COMPLETED).done:
                number = futures.pop(future)
                trials[number] |= future.result()
                save(path, trials)
                print(shown(trials[number]), flush=True)
            if time.monotonic() > end:
                futures = {future: number for future, number in futures.items() if not future.cancel()}


def measure(recipe: Recipe, device: str) -> dict[str, Any]:
    """Return the result of a trial. A trial that diverged has an accuracy of 0."""
    begin = time.perf_counter()
    where = torch.device(device)
    _, trainer = set_up(recipe, cached_data(recipe.dataset, None), where)
    try:
        trainer.run(lambda: None, lambda epoch: None)
        accuracy = trainer.history[-1].accuracy
    except Diverged:
        accuracy = 0.0
    seconds = round(time.perf_counter() - begin, 2)
    return {"validation_accuracy": accuracy, "seconds": seconds, "environment": environment(where, recipe.seed)}


def best_of(trials: list[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial["validation_accuracy"])


def write_recipe(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
