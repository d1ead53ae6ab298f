"""Count how often each recipe was measured on test images, for RESULTS.md.

    python benchmarks/measurements.py results/replaced-runs.json    list replaced runs from the history of the repository

The runs in results/ are counted from their files. A run whose recipe was changed later is no longer there: run this command
before you commit other results of a recipe, and commit the file that it writes.
"""

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from faustnet.report.paper import TITLES
from faustnet.report.tables import markdown
from faustnet.reproduce.jobs import recipe_name
from faustnet.reproduce.rejection import RejectionJob
from faustnet.reproduce.results import method_titles, write_lines
from faustnet.runs.recipes import read_recipe, shipped_recipe
from time_to_accuracy import ARMS, COPIES

ROOT = Path(__file__).parents[1]
REPLACED = "replaced-runs.json"
GRIDS = ("tuned", "paper")  # families of recipes that are shown by method
Result = dict[str, Any]

# The recipe of a run, by the folder of its file. OTHER folders have runs with other settings or fewer classes.
OWN: dict[str, Callable[[Result], str]] = {
    "best": lambda run: f"best/{run['name']}",
    "table1": lambda run: recipe_name(run["family"], run["method"], run["dataset"]),
    "few-shot": lambda run: f"few-shot/omniglot/{run['method']}",
}
OTHER: dict[str, Callable[[Result], str]] = {
    "ablation": lambda run: f"best/{run['base']}",
    "class-counts": lambda run: f"best/{run['name']}",
    "incremental": lambda run: f"best/{run['name']}",
    "representatives": lambda run: recipe_name("tuned", "faust-representative", run["dataset"]),
    "new-classes": lambda run: recipe_name("tuned", "faust-representative", "mnist"),
    "rejection": lambda run: RejectionJob(run["dataset"], run["method"], run["seed"]).recipe_name,
}

SECTION = """## How often test images were used

Settings were chosen on validation images. Still, each look at the test images is a chance to keep what happens to suit
them. These tables count the looks: all runs in `results/` were measured on the test images after their last epoch. Runs
without validation images also store the accuracy on test images at some earlier epochs, from which nothing was chosen.

*Runs* are those of the recipe as it is, one for each seed. *Earlier versions* are runs of a recipe that was replaced under
the same name after it had been measured (`results/{replaced}`, from the history of the repository). *Other settings* are
runs of studies that change some settings of the recipe or its classes, with those that were replaced: {studies}.

{alone}

For the recipes of Table I, each cell has the number of runs, with both networks and all seeds, and after the + the number
of runs with other settings.

{families}"""


def section(folder: Path) -> str:
    """Return the section of RESULTS.md about the results in a folder, or nothing without results."""
    own, other = counted(folder)
    if not own:
        return ""
    before = _read(folder / REPLACED)
    replaced = Counter(run["recipe"] for run in before if run.get("study") not in OTHER)
    other.update((run["study"], run["recipe"]) for run in before if run.get("study") in OTHER)
    studies = sorted({study for study, _ in other})
    changed: Counter[str] = Counter()
    for (_, recipe), count in other.items():
        changed[recipe] += count
    alone = [
        [name, *(str(counts[name] or "–") for counts in (own, replaced, changed))]
        for name in sorted({*own, *replaced, *changed})
        if name.split("/")[0] not in GRIDS
    ]
    families = [grid(family, own, changed) for family in GRIDS if any(name.startswith(f"{family}/") for name in own)]
    return SECTION.format(
        replaced=REPLACED,
        studies=", ".join(studies) or "none",
        alone=markdown(["recipe", "runs", "earlier versions", "other settings"], alone),
        families="\n\n".join(families),
    )


def counted(folder: Path) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Return the number of runs of each recipe as it is, and of each study and recipe with other settings. A copy of a run
    of the recipe as it is, which the study of numbers of classes makes, does not count."""
    mine = list(runs(folder, OWN))
    own, same = Counter(OWN[study](run) for study, run in mine), {_identity(run) for _, run in mine}
    other = Counter((study, OTHER[study](run)) for study, run in runs(folder, OTHER) if _identity(run) not in same)
    for path in sorted(folder.glob("time-to-accuracy*.json")):
        other.update(("time to accuracy", counted_as(ARMS[run["arm"]][0])) for run in json.loads(path.read_text())["runs"])
    own.update("benchmarks/predsim" for _ in _read(folder / "predsim.json"))
    if (folder / "figure2.json").exists():
        other["figure 2", recipe_name("tuned", "faust-representative", "fashion-mnist")] += 1
    return own, other


def counted_as(name: str) -> str:
    """Return the included recipe that a file is a copy of, as long as they are equal, and otherwise the name itself."""
    original = COPIES.get(name)
    return original if original and read_recipe(ROOT / name) == shipped_recipe(original) else name


def runs(folder: Path, studies: Iterable[str]) -> Iterator[tuple[str, Result]]:
    """Yield the study and the result of each stored run."""
    for study in studies:
        for path in sorted((folder / study).rglob("*.json")):
            yield study, json.loads(path.read_text(encoding="utf-8"))


def grid(family: str, own: Counter[str], changed: Counter[str]) -> str:
    """Return the counts of a family of recipes by method and data set. The recipes of the paper are for all data sets."""
    tuned = family == "tuned"
    datasets = [name for name in TITLES if any(key.startswith(f"tuned/{name}/") for key in own)] if tuned else ["all"]
    rows = []
    for method, title in method_titles().items():
        names = [recipe_name(family, method, dataset) for dataset in datasets]
        if any(own[name] for name in names):
            rows.append([title, *(_cell(own[name], changed[name]) for name in names)])
    return markdown([family, *(TITLES[name] for name in datasets)] if tuned else [family, "all data sets"], rows)


def _cell(own: int, changed: int) -> str:
    return f"{own or '–'}{f' + {changed}' if changed else ''}"


def replaced_runs(root: Path) -> list[dict[str, Any]]:
    """Return the runs that are in git's history, but not in results/ any more."""
    recipes = OWN | OTHER
    there = {_identity(run) for _, run in runs(root / "results", recipes)}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for commit, path in (version for some in (OWN, OTHER) for version in _versions(root, some)):
        run, study = json.loads(_git(root, "show", f"{commit}:{path}")), path.split("/")[1]
        if _identity(run) in there or _identity(run) in found:
            continue
        found[_identity(run)] = {
            "recipe": recipes[study](run),
            **({"study": study} if study in OTHER else {}),
            "seed": run["seed"],
            "epochs": run["epochs"],
            "test_accuracy": run["test_accuracy"],
            "started": run["environment"]["started"],
            "commit": commit,
        }
    return sorted(found.values(), key=lambda run: (run["recipe"], run.get("study", ""), run["started"], run["seed"]))


def _identity(run: Result) -> tuple[Any, ...]:
    """Return what tells a run from all others, even if its recipe or its file was renamed."""
    return run["environment"]["started"], run["seed"], run["test_accuracy"]


def _versions(root: Path, studies: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the commit and the path of every version of every run of these studies."""
    commit, folders = "", [f"results/{study}" for study in studies]
    for line in _git(root, "log", "--format=commit %H", "--name-only", "--diff-filter=AMR", "--", *folders).splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        elif line.endswith(".json"):
            yield commit, line


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    found = replaced_runs(ROOT)
    write_lines(given.file, found)
    print(f"{len(found)} replaced runs")


if __name__ == "__main__":
    main()
