"""The result of a run as one small file, and many of them as a table."""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.errors import FaustnetError
from faustnet.report.paper import reported
from faustnet.reproduce.wanted import Job, Wanted
from faustnet.runs.folder import ENVIRONMENT, Run
from faustnet.runs.recipes import as_table, differences, recipe_from
from faustnet.system.files import write_whole
from faustnet.system.locks import folder_lock

KEPT = (
    "test_accuracy", "validation_accuracy", "layer_accuracy", "first_layers_accuracy", "voters", "forward_passes",
    "schedule", "epochs", "train_seconds", "parameters", "trunk_parameters",
)  # fmt: skip
DIGITS = 6  # of a number that are kept
RESULTS = "table1/*/*-*x*-*-*.json"  # of table 1


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Make the folder, and let nobody else write its tables meanwhile."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FaustnetError(f"{out} cannot be written to ({error.strerror}): choose another --out.") from None
    with folder_lock(out, wait=True):
        yield


@dataclass(frozen=True)
class ResultTable:
    """What is made of all results of one kind: OUT/NAME.json with the cells, and texts of them beside it. `job` says whose
    a result is, `what` what it is of."""

    name: str
    pattern: str  # of the results' paths
    what: str
    job: Callable[[dict[str, Any]], Job]
    cells: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
    texts: Callable[[list[dict[str, Any]]], dict[str, str]] = lambda cells: {}  # by ending

    def read(self, out: Path) -> list[dict[str, Any]]:
        """All results that are there."""
        return read_all(out, self.pattern, self.job, self.what)

    def write(self, out: Path) -> list[dict[str, Any]]:
        """If there is any result. → the cells"""
        with writing_to(out):
            cells = self.cells(self.read(out))
            if not cells:
                return []
            write_lines(out / f"{self.name}.json", cells)
            for ending, text in self.texts(cells).items():
                write_whole(out / f"{self.name}.{ending}", text.encode())
        return cells


def write_result(wanted: Job, run: Run, seconds: float, out: Path, more: dict[str, Any]) -> None:
    """What is worth keeping of a finished run, and what more was measured. `seconds` is all that it took, with set-up and
    evaluations, or if that was interrupted the training alone."""
    metrics, environment = run.metrics, run.read(ENVIRONMENT)
    result = {
        **wanted.facts,
        **_rounded({key: metrics[key] for key in KEPT if key in metrics}),
        **_rounded(more),
        "seconds": _rounded(
            metrics["train_seconds"] if "earlier" in environment else max(seconds, metrics["train_seconds"])
        ),
        "recipe": as_table(run.recipe),
        "environment": environment,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
    history = ",\n".join(f"  {json.dumps(_rounded(epoch))}" for epoch in run.history)
    text = "{\n" + ",\n".join(lines) + f',\n "history": [\n{history}\n ]\n}}\n'
    write_whole(wanted.file(out), text.encode())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return {key: _rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


def read_result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not 0 <= result["test_accuracy"] <= 1 or not isinstance(result["history"], list):
            raise ValueError("it has no accuracy or no history")
        if recipe_from(result["recipe"]).training.validation and not 0 <= result["validation_accuracy"] <= 1:
            raise ValueError("it has no accuracy of the images that were held out")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, FaustnetError) as error:
        raise FaustnetError(f"{path} is not a result of a run ({error}): delete it, and it will be made again.") from None
    return result


def is_done(wanted: Job, out: Path) -> bool:
    """Whether its result is there. A result that was made by another recipe is not taken for it, and not thrown away."""
    path = wanted.file(out)
    if not path.exists():
        return False
    for key, (before, now) in differences(recipe_from(read_result(path)["recipe"]), wanted.recipe).items():
        raise FaustnetError(
            f"{path} was made with another {key}, {before!r} and not {now!r}: move it away, or choose another --out."
        )
    return True


def wanted_of(result: dict[str, Any]) -> Wanted:
    """The run of table 1 that a result is of."""
    return Wanted(*(result[key] for key in ("family", "method", "dataset", "network", "seed")))


def read_results(out: Path) -> list[dict[str, Any]]:
    """All that there are of table 1."""
    return read_all(out, RESULTS, wanted_of, "table 1")


def read_all(out: Path, pattern: str, job: Callable[[dict[str, Any]], Job], what: str) -> list[dict[str, Any]]:
    """All results that are there under their own names; `job` says whose one is. A file of another recipe than the
    package's is a mistake."""
    found = []
    for path in sorted(out.glob(pattern)):
        result = read_result(path)
        try:
            wanted = job(result)
        except (LookupError, TypeError, FaustnetError) as error:
            raise FaustnetError(f"{path} is not a result of {what} ({error}): delete it.") from None
        if wanted.file(out) == path and is_done(wanted, out):
            found.append(result)
    return found


def accuracy(result: dict[str, Any]) -> float:
    """Of the validation images, where some were held out, or else of the test images."""
    held_out = result.get("validation_accuracy")
    return result["test_accuracy"] if held_out is None else held_out


def write_lines(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """A JSON file with a line for each."""
    write_whole(path, ("[\n" + ",\n".join(f" {json.dumps(entry)}" for entry in entries) + "\n]\n").encode())


def mean_and_std(values: Sequence[float]) -> dict[str, float | None]:
    """Over seeds; a single one has no deviation."""
    std = round(statistics.stdev(values), 3) if len(values) > 1 else None
    return {"mean": round(statistics.mean(values), 3), "std": std}


def summary(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table's cells: accuracies in %, mean and standard deviation over the seeds (none of a single one)."""
    cells: dict[tuple[str, str, str, str], list[float]] = {}
    for result in results:
        key = (result["method"], result["dataset"], result["network"], result["family"])
        cells.setdefault(key, []).append(100 * result["test_accuracy"])
    return [
        {
            "method": method,
            "dataset": dataset,
            "network": network,
            "recipe": family,
            **mean_and_std(found),
            "seeds": len(found),
            "paper": reported(method, dataset, network),
        }
        for (method, dataset, network, family), found in sorted(cells.items(), key=lambda cell: cell[0])
    ]
