"""One HTML page about one or several runs. It loads no other file, and its content security policy forbids it."""

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from faustnet.errors import FaustnetError
from faustnet.version import VERSION

TOGETHER = "all layers"

Facts = Mapping[str, Any]  # about one run, from `inspect_run`


def render_page(runs: list[dict[str, Any]]) -> str:
    """Return the page for runs that `inspect_run` describes. Invalid Unicode becomes question marks."""
    if not runs:
        raise FaustnetError("A report needs at least one folder of a finished run, got none.")
    names = _distinct(str(run["name"]) for run in runs)
    runs = [{**run, "name": name} for run, name in zip(runs, names, strict=True)]
    plotly, script, style = plotly_script(), _read("page.js"), _read("page.css")
    best: dict[str, float] = {}  # accuracy on each data set
    for run in runs:
        best[run["dataset"]] = max(best.get(run["dataset"], 0.0), run["metrics"]["test_accuracy"])
    page = _template().render(
        runs=runs, columns=_columns, best=best, json=json, data=_page_data(runs), version=VERSION,
        hashes=" ".join(map(_hash, (plotly, script))), plotly=plotly, script=script, style=style,
    )  # fmt: skip
    return page.encode(errors="replace").decode()


@cache
def _template() -> Template:
    templates = Environment(
        loader=PackageLoader("faustnet.report", ""), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return templates.get_template("page.html")


def plotly_script() -> str:
    """Return the script that draws the plots, or raise an error if plotly is missing."""
    try:
        return import_module("plotly.offline").get_plotlyjs()
    except ImportError:
        raise FaustnetError("A report needs plotly: install it with pip install 'faustnet[report]'.") from None


def _read(name: str) -> str:
    return (files("faustnet.report") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Return the hash of a script, for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names, with a number added to those that occur again."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _columns(run: Facts) -> list[tuple[str, str, object]]:
    """Return the columns of the results: heading, CSS class and the value for this run."""
    recipe, metrics = run["recipe"], run["metrics"]
    alone = " ".join(f"{value * 100:.1f}" for value in metrics["layer_accuracy"])
    return [
        ("method", "word firm", recipe["method"]),
        ("data set", "word", run["dataset"]),
        ("network", "word", run["network"]),
        ("seed", "number", recipe["seed"]),
        ("test accuracy", "number", f"{metrics['test_accuracy']:.2%}"),
        ("each layer alone, %", "number", alone if len(metrics["voters"]) > 1 else "–"),
        ("forward passes", "number", metrics["forward_passes"]),
        ("µs per image" if run["texts"] is None else "µs per text", "number", f"{metrics['seconds_per_image'] * 1e6:.1f}"),
        ("training time", "number", _duration(metrics["train_seconds"])),
    ]


def _page_data(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return curves, maps and pictures for the script; runs with the same pictures share them."""
    sheets = {run["sheet"]["source"]: run["sheet"] for run in runs if run["sheet"]}
    about = [
        {
            "name": run["name"],
            "classes": run["class_names"],
            "epochs": [epoch["epoch"] for epoch in run["history"]],
            "labels": run["labels"],
            "predicted": run["predicted"],
            "layers": run["layers"],
            "texts": run["texts"],
            "sheet": list(sheets).index(run["sheet"]["source"]) if run["sheet"] else None,
        }
        for run in runs
    ]
    curves = [{"run": number, **curve} for number, run in enumerate(runs) for curve in _curves(run)]
    return {"runs": about, "curves": curves, "sheets": list(sheets.values())}


def _curves(run: Facts) -> list[dict[str, Any]]:
    """Return accuracy in % and loss of each layer or output by epoch, with None where it was not measured."""
    history, learners, voters = run["history"], run["learners"], run["metrics"]["voters"]
    names = list(dict.fromkeys([*learners, *voters]))

    def over_epochs(key: str, known: list[str], name: str, factor: float) -> list[float | None]:
        rows = (dict(zip(known, epoch.get(key) or [], strict=False)) for epoch in history)
        return [_times(row.get(name), factor) for row in rows]

    found: list[dict[str, Any]] = []
    if len(voters) > 1:
        together = [_times(epoch.get("accuracy"), 100) for epoch in history]
        found.append({"name": TOGETHER, "together": True, "accuracy": together, "loss": [None] * len(history)})
    for place, name in enumerate(names):
        accuracy = over_epochs("layer_accuracy", voters, name, 100)
        loss = over_epochs("losses", learners, name, 1)
        found.append({"name": name, "place": place, "alone": len(names) == 1, "accuracy": accuracy, "loss": loss})
    return found


def _times(value: float | None, factor: float) -> float | None:
    """Multiply and round a value; values that are not finite become None."""
    return None if value is None or not math.isfinite(value * factor) else round(value * factor, 5)
