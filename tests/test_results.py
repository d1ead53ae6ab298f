"""The stored results belong to the recipes that come with the package."""

import json
import runpy
from pathlib import Path

import best
import killing
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.results import is_done
from faustnet.reproduce.table1 import TABLE, summary
from faustnet.runs.recipes import shipped_recipes

ROOT = Path(__file__).parents[1]


def test_the_tables_files_are_those_of_its_runs() -> None:
    """If this fails: faustnet reproduce table1"""
    results = TABLE.read(ROOT / "results")
    assert json.loads((ROOT / "results" / "table1.json").read_text()) == summary(results)
    for run in results:
        job = Table1Job(run["family"], run["method"], run["dataset"], run["network"], run["seed"])
        assert is_done(job, ROOT / "results"), "the recipe that comes with the package is the one it was made with"


def test_the_tuned_recipes_are_the_best_trials() -> None:
    """If this fails: python benchmarks/tuning.py write results/study.json"""
    tuning = runpy.run_path(str(ROOT / "benchmarks" / "tuning.py"))
    study = tuning["read"](ROOT / "results" / "study.json")
    trials = [trial for trial in study if trial["validation_accuracy"] is not None]
    for method, dataset in {(trial["method"], trial["dataset"]) for trial in trials}:
        mine = [trial for trial in trials if (trial["method"], trial["dataset"]) == (method, dataset)]
        best = max(mine, key=lambda trial: trial["validation_accuracy"])
        text = (tuning["RECIPES"] / "tuned" / dataset / f"{method}.toml").read_text(encoding="utf-8")
        assert text == tuning["recipe_text"](best, len(mine))


def test_the_best_recipes_are_the_best_trials() -> None:
    """If this fails: python benchmarks/best.py write results/best-study.json"""
    found = best.chosen(best.read(ROOT / "results" / "best-study.json"))
    assert {f"best/{study}" for study in found} == {name for name in shipped_recipes() if name.startswith("best/")}
    for study, (trial, count) in found.items():
        text = (best.RECIPES / "best" / f"{study}.toml").read_text(encoding="utf-8")
        assert text == best.recipe_text(trial, count)


def test_every_killed_run_was_continued_without_loss() -> None:
    found = json.loads(killing.RESULTS.read_text())
    assert all(map(killing.is_good, [*found["runs"], *found["points"]]))
