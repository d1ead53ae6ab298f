"""One HTML page about one or several runs. It loads no other file, and its content security policy forbids it."""

import base64
import hashlib
import html
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.resources import files
from string import Template
from typing import Any

from faustnet.errors import FaustnetError
from faustnet.version import VERSION

LONG_NAME = 3  # letters; longer names of columns are rotated
MANY_PORTRAITS = 4  # representatives of a class; more are shown smaller
ACCURACY, TOGETHER = "test accuracy", "all layers"

Facts = Mapping[str, Any]  # about one run, from `inspect_run`


def render_page(runs: list[dict[str, Any]]) -> str:
    """Return the page for runs that `inspect_run` describes."""
    if not runs:
        raise FaustnetError("A report needs at least one folder of a finished run, got none.")
    names = _distinct([str(run["name"]) for run in runs])
    runs = [{**run, "name": name} for run, name in zip(runs, names, strict=True)]
    plotly, script = plotly_script(), _read("page.js")
    return Template(_read("page.html")).substitute(
        title=_text(f"faustnet: {names[0] if len(runs) == 1 else f'{len(runs)} runs'}"),
        lead=_lead(runs),
        hashes=" ".join(map(_hash, (plotly, script))),
        style=_read("page.css"),
        measured=_measured(runs),
        examples=" and ".join(dict.fromkeys(f"{_noun(run)}s" for run in runs)),
        results=_results(runs),
        confusion=_cards(runs, _confusion),
        representatives=_representatives(runs),
        recipes=_cards(runs, _recipe),
        environment=_cards(runs, lambda run: _environment(run["environment"])),
        version=_text(VERSION),
        data=_json(_page_data(runs)),
        plotly=plotly,
        script=script,
    )


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


def _text(value: object) -> str:
    """Return a value as text in HTML or in an attribute; invalid Unicode becomes question marks."""
    return html.escape(str(value).encode(errors="replace").decode())


def _json(content: Any) -> str:
    """Return JSON that is safe inside a script element."""
    written = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names, with a number added to those that occur again."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


# Data for the script


def _page_data(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return curves, maps and pictures for the script; runs with the same pictures share them."""
    sheets: dict[str, Facts] = {}
    about = []
    for run in runs:
        sheet = run["sheet"]
        if sheet is not None:
            sheets.setdefault(sheet["source"], sheet)
        about.append(
            {
                "name": run["name"],
                "classes": run["class_names"],
                "epochs": [epoch["epoch"] for epoch in run["history"]],
                "labels": run["labels"],
                "predicted": run["predicted"],
                "layers": run["layers"],
                "texts": run.get("texts"),
                "sheet": None if sheet is None else list(sheets).index(sheet["source"]),
            }
        )
    curves = [{"run": number, **curve} for number, run in enumerate(runs) for curve in _curves(run)]
    return {"runs": about, "curves": curves, "sheets": list(sheets.values())}


def _curves(run: Facts) -> list[dict[str, Any]]:
    """Return accuracy in % and loss of each layer or output by epoch, with None where it was not measured."""
    history, learners, voters = run["history"], run["learners"], run["metrics"]["voters"]
    names = list(dict.fromkeys([*learners, *voters]))

    def over_epochs(key: str, known: list[str], name: str, factor: float) -> list[float | None]:
        if name not in known:
            return [None] * len(history)
        place = known.index(name)
        rows = (epoch.get(key) or [] for epoch in history)
        return [_times(row[place] if place < len(row) else None, factor) for row in rows]

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


# Static parts of the page


def _lead(runs: list[dict[str, Any]]) -> str:
    sets = " and ".join(dict.fromkeys(_text(run["dataset"]) for run in runs))
    if len(runs) > 1:
        return f"{len(runs)} runs on {sets}."
    metrics = runs[0]["metrics"]
    right = f"{metrics['test_accuracy']:.2%} test accuracy"
    return f"{_text(runs[0]['recipe']['method'])} on {sets}: {right}, in {_passes(metrics['forward_passes'])}."


def _noun(run: Facts) -> str:
    return "image" if run.get("texts") is None else "text"


def _passes(count: int) -> str:
    return f"{count} forward pass{'es' if count > 1 else ''}"


def _measured(runs: list[dict[str, Any]]) -> str:
    """Return which images the accuracy was measured on during training."""
    held_out = {bool(run["recipe"]["training"]["validation"]) for run in runs}
    return "Test or validation" if len(held_out) > 1 else "Validation" if held_out == {True} else "Test"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _results(runs: list[dict[str, Any]]) -> str:
    """Return one row per run; the best run on each data set is bold."""
    best: dict[str, float] = {}
    for run in runs:
        best[run["dataset"]] = max(best.get(run["dataset"], 0.0), run["metrics"]["test_accuracy"])
    lines = []
    for run in runs:
        name, *others = _columns(run)
        cells = [f'<th scope="row" data-label="{name[0]}">{_text(name[2])}</th>']
        for label, kind, value in others:
            if label == ACCURACY and run["metrics"]["test_accuracy"] == best[run["dataset"]]:
                kind += " best"
            cells.append(f'<td class="{kind}" data-label="{label}">{_text(value)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col" class="{kind}">{label}</th>' for label, kind, _ in _columns(runs[0]))
    body = "\n".join(lines)
    return f'<table class="results"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'


def _columns(run: Facts) -> list[tuple[str, str, object]]:
    """Return the columns of the results: heading, CSS class and the value for this run."""
    recipe, metrics = run["recipe"], run["metrics"]
    alone = " ".join(f"{value * 100:.1f}" for value in metrics["layer_accuracy"])
    return [
        ("run", "word", run["name"]),
        ("method", "word firm", recipe["method"]),
        ("data set", "word", run["dataset"]),
        ("network", "word", run["network"]),
        ("seed", "number", recipe["seed"]),
        (ACCURACY, "number", f"{metrics['test_accuracy']:.2%}"),
        ("each layer alone, %", "number", alone if len(metrics["voters"]) > 1 else "–"),
        ("forward passes", "number", metrics["forward_passes"]),
        (f"µs per {_noun(run)}", "number", f"{metrics['seconds_per_image'] * 1e6:.1f}"),
        ("training time", "number", _duration(metrics["train_seconds"])),
    ]


def _cards(runs: list[dict[str, Any]], content: Callable[[Facts], str]) -> str:
    """The same about every run, side by side, each under its name where there are several; nothing of one that has none."""
    cards = []
    for run in runs:
        head = f"<h3>{_text(run['name'])}</h3>" if len(runs) > 1 else ""
        if body := content(run):
            cards.append(f"<article>{head}{body}</article>")
    return "\n".join(cards)


def _confusion(run: Facts) -> str:
    """A table, true class by row. Mistakes are shaded by the root of their share, so that rare ones are seen too."""
    names = [_text(name) for name in run["class_names"]]
    turned = ' class="long"' if max(map(len, run["class_names"])) > LONG_NAME else ""
    lines = []
    for true, (name, counts) in enumerate(zip(names, run["metrics"]["confusion"], strict=True)):
        total = max(sum(counts), 1)
        cells = []
        for predicted, count in enumerate(counts):
            kind, share = ("right", count / total) if true == predicted else ("wrong", math.sqrt(count / total))
            cells.append(f'<td class="{kind}" style="--share:{share:.2f}">{count}' if count else "<td>")
        lines.append(f'<tr><th scope="row" title="{name}">{name}</th>{"".join(cells)}')
    head = "".join(f'<th scope="col"{turned} title="{name}">{name}</th>' for name in names)
    table = f'<table class="confusion"><thead><tr><td style="background:none">{head}<tbody>{"".join(lines)}</table>'
    return f'<div class="wide" tabindex="0" role="group" aria-label="Confusion of {_text(run["name"])}">{table}</div>'


def _representatives(runs: list[dict[str, Any]]) -> str:
    """Return the section on representatives, or nothing if no run has any."""
    cards = _cards(runs, _portraits)
    about = "The training examples that represent each class. An example is assigned to the class of the closest ones."
    section = f'\n<section>\n<h2>Representatives</h2>\n<p>{about}</p>\n<div class="cards">\n{cards}\n</div>\n</section>\n'
    return section if cards else ""


def _portraits(run: Facts) -> str:
    if not run["representatives"]:
        return ""
    shown, count = len(run["representatives"][0]), run["recipe"]["options"]["representatives"]
    note = f'<p class="note">{shown} of {count} per class are shown.</p>' if shown < count else ""
    if run.get("texts") is not None:
        return f'{note}<ul class="portraits texts">{"".join(_text_items(run))}</ul>'
    many = ' class="many"' if shown > MANY_PORTRAITS else ""
    items = []
    for name, sources in zip(map(_text, run["class_names"]), run["representatives"], strict=True):
        images = "".join(f'<img alt="representative of {name}" src="{_text(source)}">' for source in sources)
        items.append(f"<li><div{many}>{images}</div>{name}</li>")
    return f'{note}<ul class="portraits">{"".join(items)}</ul>'


def _text_items(run: Facts) -> Iterable[str]:
    for name, texts in zip(map(_text, run["class_names"]), run["representatives"], strict=True):
        yield f"<li><strong>{name}</strong>{''.join(f'<p>{_text(text)}</p>' for text in texts)}</li>"


def _recipe(run: Facts) -> str:
    """Return the settings that differ from the defaults, and the complete recipe as TOML."""
    changed = _list({key: json.dumps(value, ensure_ascii=False) for key, value in run["changed"].items()})
    lines = "\n".join(_toml(run["recipe"]))
    whole = f"<details><summary>Complete recipe</summary><pre>{_text(lines)}</pre></details>"
    return (
        f'{changed}<p class="note">All other settings are defaults.</p>' if changed else "<p>All settings are defaults.</p>"
    ) + whole


def _toml(table: Facts, prefix: str = "") -> Iterable[str]:
    """Yield lines of dotted keys, as accepted by --recipe."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key} = {json.dumps(value, ensure_ascii=False)}"


def _environment(facts: Facts) -> str:
    """Return the environment of a run, and the earlier ones of a run that was resumed."""
    here = _list({key: value for key, value in facts.items() if key != "earlier" and value is not None})
    earlier = facts.get("earlier") or []
    before = "".join(f"<details><summary>before it was resumed</summary>{_environment(one)}</details>" for one in earlier)
    return here + before


def _list(facts: Facts) -> str:
    items = "".join(f"<dt>{_text(key)}<dd><code>{_text(value)}</code>" for key, value in facts.items())
    return f"<dl>{items}</dl>" if facts else ""
