"""The pages of results show what the result files hold, and nothing else."""

import json
import runpy
from pathlib import Path

import best
import killing
import ranks
import ranks_page
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.results import is_done
from faustnet.reproduce.table1 import TABLE, summary
from faustnet.runs.recipes import shipped_recipes

ROOT = Path(__file__).parents[1]


def test_the_pages_show_what_the_results_say() -> None:
    """If this fails: python benchmarks/results.py"""
    for path, text in runpy.run_path(str(ROOT / "benchmarks" / "results.py"))["pages"]().items():
        assert path.read_text(encoding="utf-8") == text


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
    trials = tuning["read"](ROOT / "results" / "study.json")
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


def test_the_costs_are_those_that_were_measured() -> None:
    """If this fails: python benchmarks/performance.py"""
    performance = runpy.run_path(str(ROOT / "benchmarks" / "performance.py"))
    page = performance["PAGE"].read_text(encoding="utf-8")
    assert page == performance["with_tables"](page, performance["results"]())


def test_the_tables_of_several_ranks_are_those_of_their_file() -> None:
    """If this fails: python benchmarks/ranks_page.py"""
    page = ranks_page.PAGE.read_text(encoding="utf-8")
    assert page == ranks_page.with_tables(page, ranks.read(ranks.RESULTS))


def test_runs_that_were_killed_came_to_what_the_page_says() -> None:
    """If this fails: python benchmarks/killing.py page"""
    found = json.loads(killing.RESULTS.read_text())
    page = killing.PAGE.read_text(encoding="utf-8")
    assert page == killing.with_table(page, found)
    assert all(map(killing.is_good, [*found["runs"], *found["points"]]))
