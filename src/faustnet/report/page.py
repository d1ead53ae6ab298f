"""One HTML page about one or several runs. It loads no other file, and its content security policy forbids it."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from faustnet.errors import FaustnetError
from faustnet.report.citation import bibtex
from faustnet.report.curves import Facts, by_class, first_layers, training_curves
from faustnet.version import VERSION

SCRIPTS = ("page.js", "curves.js", "selected.js", "images.js")
# Facts that the script gets as they are
SAME = (
    "name", "labels", "predicted", "positions", "mapped", "votes", "first_votes", "scores", "layers", "texts", "weights",
    "early_exit",
)  # fmt: skip
DRAWN_LAYERS = 3  # in the figure of FAUST, at most


def render_page(runs: list[dict[str, Any]]) -> str:
    """Return the page for runs that `inspect_run` describes. Invalid Unicode becomes question marks."""
    if not runs:
        raise FaustnetError("A report needs at least one folder of a finished run, got none.")
    runs = named_apart(runs)
    plotly, script, style = plotly_script(), "\n".join(map(_read, SCRIPTS)), _read("page.css")
    best: dict[str, float] = {}  # accuracy on each data set
    for run in runs:
        best[run["dataset"]] = max(best.get(run["dataset"], 0.0), run["metrics"]["test_accuracy"])
    page = _template().render(
        runs=runs, columns=_columns, best=best, json=json, data=_page_data(runs), version=VERSION, by_class=by_class,
        first_layers=first_layers, drawn=_drawn_layers(runs), bibtex=bibtex(paper=any(run["is_faust"] for run in runs)),
        hashes=" ".join(map(_hash, (plotly, script))), plotly=plotly, script=script, style=style,
    )  # fmt: skip
    return page.encode(errors="replace").decode()


def named_apart(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs, with a number added to names that occur again."""
    names = _distinct(str(run["name"]) for run in runs)
    return [{**run, "name": name} for run, name in zip(runs, names, strict=True)]


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
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.2f} s"


def _columns(run: Facts) -> list[tuple[str, str, object]]:
    """Return the columns of the results: heading, CSS class and the value for this run."""
    recipe, metrics = run["recipe"], run["metrics"]
    alone = " ".join(f"{value * 100:.2f}" for value in metrics["layer_accuracy"])
    return [
        ("method", "word firm", recipe["method"]),
        ("data set", "word", run["dataset"]),
        ("network", "word", run["network"]),
        ("seed", "number", recipe["seed"]),
        ("test accuracy", "number", f"{metrics['test_accuracy']:.2%}"),
        ("each layer alone, %", "number", alone if len(metrics["voters"]) > 1 else "–"),
        ("forward passes", "number", metrics["forward_passes"]),
        ("µs per image" if run["texts"] is None else "µs per text", "number", f"{metrics['seconds_per_image'] * 1e6:.2f}"),
        ("training time", "number", _duration(metrics["train_seconds"])),
    ]


def _drawn_layers(runs: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the layers in the figure of FAUST: the first ones and the last one of the first FAUST run."""
    count = next((len(run["layers"]) for run in runs if run["is_faust"]), 0)
    return list(range(1, min(count, DRAWN_LAYERS))) + [count] * (count > 0)


def _page_data(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return curves, maps and pictures for the script; runs with the same pictures share them."""
    sheets = {run["sheet"]["source"]: run["sheet"] for run in runs if run["sheet"]}
    about = [
        {
            **{key: run[key] for key in SAME},
            "classes": run["class_names"],
            "voters": run["metrics"]["voters"],
            "epochs": [epoch["epoch"] for epoch in run["history"]],
            "confusion": run["evaluation"]["confusion"],
            "alone": [100 * value for value in run["evaluation"]["layer_accuracy"]],
            "together": [100 * value for value in run["evaluation"]["first_layers_accuracy"]],
            "sheet": list(sheets).index(run["sheet"]["source"]) if run["sheet"] else None,
        }
        for run in runs
    ]
    curves = [{"run": number, **curve} for number, run in enumerate(runs) for curve in training_curves(run)]
    return {"runs": about, "curves": curves, "sheets": list(sheets.values())}
