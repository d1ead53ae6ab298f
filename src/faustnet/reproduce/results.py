"""Results of jobs, one small file each, and the tables made from them."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.errors import FaustnetError
from faustnet.methods import METHODS
from faustnet.report.tables import markdown
from faustnet.reproduce.jobs import Job
from faustnet.runs.folder import ENVIRONMENT, Run
from faustnet.runs.recipes import as_table, differences, recipe_from
from faustnet.system.files import write_whole
from faustnet.system.locks import folder_lock

KEPT = (
    "test_accuracy", "validation_accuracy", "layer_accuracy", "first_layers_accuracy", "voters", "forward_passes",
    "schedule", "epochs", "train_seconds", "parameters", "trunk_parameters",
)  # fmt: skip
DIGITS = 6  # significant digits of a stored number
NAMED = 10  # stale results in a message

Cells = list[dict[str, Any]]


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Make the folder and lock it, so that one process at a time writes its tables."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FaustnetError(f"{out} could not be written to ({error.strerror}): choose another --out.") from None
    with folder_lock(out, wait=math.inf):
        yield


@dataclass(frozen=True)
class ResultTable:
    """A table of all results of one kind of job: OUT/NAME.json with its cells, and OUT/NAME.md.

    `cells` summarises results, `rows` formats cells for `columns`, and a command shows the cells that have the same values
    of `keys` as its own jobs.
    `texts` replaces OUT/NAME.md by other texts, by suffix.
    """

    job: type[Job]
    cells: Callable[[list[dict[str, Any]]], Cells]
    keys: tuple[str, ...]
    columns: Sequence[str] = ()
    rows: Callable[[Cells], list[list[str]]] = lambda cells: []
    texts: Callable[[Cells], dict[str, str]] | None = None
    folders: str = ""  # between OUT/NAME and the results

    @property
    def name(self) -> str:
        return self.job.table

    @property
    def pattern(self) -> str:
        """Pattern of the paths of results, relative to --out."""
        return f"{self.name}/{self.folders}*.json"

    def key(self, cell: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(cell[key] for key in self.keys)

    def read(self, out: Path) -> list[dict[str, Any]]:
        """Return all results in the folder. Files that were renamed are ignored. An error names all results that were made
        with other settings."""
        found, stale = [], {}
        for path in sorted(out.glob(self.pattern)):
            result = read_result(path)
            try:
                job = self.job.of_result(result)
            except (LookupError, TypeError, FaustnetError) as error:
                raise FaustnetError(
                    f"{path} is not a result of 'faustnet reproduce {self.name}' ({error}): move or delete it."
                ) from None
            if job.file(out) == path:
                found.append(result)
                if what := _other_setting(result, job):
                    stale[path] = what
        _refuse(stale)
        return found

    def write(self, out: Path) -> Cells:
        """Write the table, if there is any result, and return its cells."""
        with writing_to(out):
            cells = self.cells(self.read(out))
            if cells:
                write_lines(out / f"{self.name}.json", cells)
                texts = self.texts or (lambda cells: {"md": f"{markdown(self.columns, self.rows(cells))}\n"})
                for suffix, text in texts(cells).items():
                    write_whole(out / f"{self.name}.{suffix}", text.encode())
        return cells


def write_result(job: Job, run: Run, seconds: float, out: Path, more: dict[str, Any]) -> None:
    """Write the result of a finished run, with further measurements.

    `seconds` is the total time, with set-up and evaluations; for a resumed run the training time is stored instead.
    """
    metrics, environment = run.metrics, run.read(ENVIRONMENT)
    result = {
        **job.facts,
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
    write_whole(job.file(out), text.encode())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return {key: _rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


def read_result(path: Path) -> dict[str, Any]:
    method = None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        method = result["recipe"].get("method")
        if not 0 <= result["test_accuracy"] <= 1 or not isinstance(result["history"], list):
            raise ValueError("it has no accuracy or no history")
        if recipe_from(result["recipe"]).training.validation and not 0 <= result["validation_accuracy"] <= 1:
            raise ValueError("it has no validation accuracy")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, FaustnetError) as error:
        if isinstance(method, str) and method not in METHODS:  # only the program that trained it has registered it
            raise FaustnetError(
                f"{path} is a result of {method!r}, which is not in METHODS: register it, or move the file."
            ) from None
        raise FaustnetError(f"{path} is not a result of a run ({error}): delete it to train the run again.") from None
    return result


def is_done(job: Job, out: Path) -> bool:
    """Return whether a job has a result. A result of another recipe is an error, and is not overwritten."""
    path = job.file(out)
    if not path.exists():
        return False
    if what := _other_setting(read_result(path), job):
        _refuse({path: what})
    return True


def _other_setting(result: dict[str, Any], job: Job) -> str:
    """Return the first setting in which the recipe of a result differs from that of its job, or nothing."""
    found = differences(recipe_from(result["recipe"]), job.recipe)
    return next((f"{key} = {before!r} instead of {now!r}" for key, (before, now) in found.items()), "")


def _refuse(stale: dict[Path, str]) -> None:
    """Raise an error about results of other recipes, with a setting of each. It names the first ones."""
    if len(stale) == 1:
        ((path, what),) = stale.items()
        raise FaustnetError(f"{path} was made with {what}: move or delete it, or choose another --out.")
    if stale:
        names = list(map(str, stale))
        *most, last = names if len(names) <= NAMED else [*names[:NAMED], f"{len(names) - NAMED} others"]
        raise FaustnetError(
            f"{', '.join(most)} and {last} were made with other settings than the recipes have now: move or delete them, or "
            "choose another --out."
        )


def accuracy(result: dict[str, Any]) -> float:
    """Return the accuracy on the validation images, if the recipe holds some out, else on the test images."""
    held_out = result.get("validation_accuracy")
    return result["test_accuracy"] if held_out is None else held_out


def write_lines(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Write a JSON list with one entry per line."""
    write_whole(path, ("[\n" + ",\n".join(f" {json.dumps(entry)}" for entry in entries) + "\n]\n").encode())


def grouped(entries: Iterable[dict[str, Any]], *keys: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the values of some keys, and the entries that have these values, in the order of the first entries."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry[key] for key in keys), []).append(entry)
    return [(dict(zip(keys, values, strict=True)), found) for values, found in groups.items()]


def mean_and_std(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the standard deviation, which is None for a single value."""
    std = round(statistics.stdev(values), 3) if len(values) > 1 else None
    return {"mean": round(statistics.mean(values), 3), "std": std}


def percent(results: Iterable[dict[str, Any]], key: str = "test_accuracy") -> dict[str, float | None]:
    """Return the mean and the standard deviation of a share, in %."""
    return mean_and_std([100 * result[key] for result in results])


def method_titles() -> dict[str, str]:
    """Return the titles of all methods by name, in the order of the tables."""
    return {name: method.title for name, method in METHODS.items()}
