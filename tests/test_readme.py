"""The README shows what the result files hold, and nothing else."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_one_that_the_results_give() -> None:
    core = runpy.run_path(str(ROOT / "benchmarks" / "core.py"))
    runs = json.loads((ROOT / "results" / "core.json").read_text())
    assert {(run["recipe_name"], run["method"], run["seed"]) for run in runs} == set(core["WANTED"])
    shown = README.split("--table` -->\n")[1].split("\n<!-- end of core -->")[0]
    assert shown == core["table"](runs)


def test_the_costs_are_those_that_were_measured() -> None:
    performance = runpy.run_path(str(ROOT / "benchmarks" / "performance.py"))
    shown = README.split("<!-- costs: written by `python benchmarks/performance.py` -->\n")[1]
    assert shown.split("\n<!-- end of costs -->")[0] == performance["costs"](performance["results"]())
