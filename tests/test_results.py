"""The stored results belong to the recipes that come with the package."""

import json
import runpy
from pathlib import Path

import best
import killing
import results
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.results import is_done
from faustnet.reproduce.table1 import TABLE, summary
from faustnet.runs.recipes import shipped_recipes

ROOT = Path(__file__).parents[1]


def test_the_tables_files_are_those_of_its_runs() -> None:
    """If this fails: faustnet reproduce table1"""
    found = TABLE.read(ROOT / "results")
    assert json.loads((ROOT / "results" / "table1.json").read_text()) == summary(found)
    for run in found:
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


def test_the_introduction_has_the_accuracies_of_the_convolutional_recipes() -> None:
    """If this fails: correct the numbers in README.md."""
    found = {cell["name"]: cell["mean"] for cell in json.loads((ROOT / "results/best.json").read_text())}
    small, large = (f"{found[name]:.0f} %" for name in ("cifar10/cnn", "cifar10/cnn-large"))
    introduction = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("## ")[0].split())
    assert f"about {small} on CIFAR-10 with a convolutional network, {large} with a larger one." in introduction


def test_the_commands_of_table1_say_how_many_runs_there_are() -> None:
    families = [run for run in TABLE.read(ROOT / "results") if run["family"] == "tuned"]
    page = results.pages()[ROOT / "RESULTS.md"]
    (line,) = (line for line in page.splitlines() if "--recipes tuned --jobs 8" in line)
    assert line.endswith(results.unfinished(families, "tuned"))
    assert results.unfinished(families[1:], "tuned").startswith(f"    # {len(families) - 1} of ")


def test_the_readme_has_the_number_of_seeds_of_its_table() -> None:
    about = {"recipe": "tuned", "network": "4x800"}
    cells = [{**about, "seeds": 5}, {**about, "seeds": 4}, {**about, "network": "3x500", "seeds": 1}]
    assert "60 epochs, 5 seeds." in results.methods_in_short(cells[:1])
    assert "60 epochs, 4 to 5 seeds." in results.methods_in_short(cells)


def test_every_killed_run_was_continued_without_loss() -> None:
    found = json.loads(killing.RESULTS.read_text())
    assert all(map(killing.is_good, [*found["runs"], *found["points"]]))
