"""Write docs/commands.md, docs/recipes.md and docs/python.md from the code.

    python docs/tools/reference.py

A test fails if a page and the code disagree.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

import faustnet
from faustnet import data, losses, methods, testing
from faustnet.cli import app
from faustnet.data import DATASETS, DataSet, Images
from faustnet.methods import METHODS, LocalMethod, Method, Source
from faustnet.nn.layers import Layer
from faustnet.nn.network import Network
from faustnet.runs.class_history import ClassInfo
from faustnet.runs.folder import Run
from faustnet.runs.model import EarlyPrediction, Model, Prediction
from faustnet.runs.recipes import FAMILIES, Recipe, as_table, shipped_recipes
from faustnet.training.evaluation import EarlyExit, Evaluation
from faustnet.training.history import Epoch
from faustnet.training.optimisers import OptimiserSettings

DOCS = Path(__file__).parents[1]
WRITTEN = "<!-- written by `python docs/tools/reference.py` -->"
COMMANDS = f"""# Commands
{WRITTEN}

`faustnet COMMAND --help` prints the same information. Results go to standard output, progress and messages to standard
error. The exit status is 2 after a usage error, with a one-sentence message, and 130 after Ctrl-C.
"""
RECIPES = f"""# Recipes
{WRITTEN}

A recipe contains all settings that determine a run. It is a TOML file, or a dictionary of the same form in Python. It
lists only the settings that differ from the defaults on this page. Unknown keys are errors, and so are keys that have no
effect on the method, the network or the data, unless they have their default values.

```toml
dataset = "mnist"
method = "faust-representative"

[network]
widths = [500, 500, 500]

[training]
epochs = 5
```

<!-- not run: takes long -->
```sh
faustnet train --recipe my.toml --set network.dropout=0.2 --out runs/mine     # --set changes any key
faustnet train --recipe runs/mine/recipe.toml --seed 1 --out runs/again    # every run stores its recipe
```
"""
SHIPPED = """## Included recipes

`--recipe` accepts the path of a file or one of these names:

- {plain}: short examples.
- `{paper}`: settings of the paper.
- `{tuned}`: tuned on validation images, for [Table I](../RESULTS.md#table-i).
- `{best}`: the [strongest recipes](../RESULTS.md#stronger-recipes). Recipes for FAUST have a backprop twin, `…-backprop`.
  A twin with deep supervision, if there is one, is `…-deep-supervision`.
  All names: {names}.
- `{few_shot}`: tuned on characters of alphabets that were not used for training, for
  [few-shot classification](few-shot.md#accuracy-on-omniglot).
"""
PYTHON = f"""# Python
{WRITTEN}

The public Python API. Everything else in the package may change without notice. `faustnet` also contains the classes of
the methods, such as `faustnet.FaustRepresentative`; their options are in [recipes](recipes.md#options).

Shapes of tensors are given in brackets: B or n images, R rows, C classes, K references per class, embeddings of size e,
and (c, h, w) for the channels, height and width of an image. A *voter* is a part of a method that scores every class; in
most methods, each layer is one.
"""
SIGNATURE = 88  # longest signature or field on one line
LISTED = re.compile(r"(Args|Attributes|Options):\n    ")  # a section of a docstring
PUBLIC: dict[str, dict[Any, Sequence[str] | None]] = {  # with the methods to document; None: all
    "Train and predict": {
        faustnet.train: None,
        faustnet.load: None,
        faustnet.change_model: None,
        Run: ("open", "finished", "recipe", "metrics", "history", "model"),
        Model: (
            *("load", "predict", "predict_early", "scores", "measure", "classes", "add_class", "add_classes", "add_images"),
            *("rename_class", "remove_class", "undo_classes", "calibrate", "to_bytes"),
        ),
        ClassInfo: None,
        Prediction: None,
        EarlyPrediction: None,
        faustnet.FaustnetError: None,
        faustnet.FaustnetWarning: None,
    },
    "scikit-learn": {
        faustnet.FaustClassifier: (
            "fit",
            "partial_fit",
            "predict",
            "predict_proba",
            "decision_function",
            "transform",
            "add_class",
            "add_classes",
            "add_samples",
            "rename_class",
            "remove_class",
            "undo_classes",
        )
    },
    "Measurements": {Epoch: None, Evaluation: None, EarlyExit: None},
    "Data": {DataSet: None, Images: ("shape", "split"), data.check_data: None, data.Finding: None},
    "The contract of a method": {
        Method: None,
        LocalMethod: None,
        Source: None,
        Network: ("embeddings", "forward", "embed", "multiplications"),
        Layer: ("forward", "transform"),
    },
    "Checks of your own classes": {testing.check_layer: None, testing.check_method: None},
    "Your own models": {
        faustnet.Trainer: ("history", "fit", "evaluate", "stop"),
        faustnet.Callback: None,
        faustnet.join_ranks: None,
        OptimiserSettings: (),
    },
    "Losses": {getattr(losses, name): None for name in losses.__all__},
}


class Shortened:
    """Stands for a default value that is long to print."""

    def __repr__(self) -> str:
        return "…"


def pages() -> dict[Path, str]:
    """Return the text of every page, by its path."""
    made = {"commands.md": commands(), "recipes.md": recipes(), "python.md": python()}
    return {DOCS / name: "\n\n".join(part.strip() for part in parts if part) + "\n" for name, parts in made.items()}


def commands() -> Iterator[str]:
    yield COMMANDS
    for name, command in sorted(_leaves(typer.main.get_command(app), "faustnet")):
        needed = [p for p in command.params if p.param_type_name == "argument" or p.required]
        yield f"## {name}"
        yield inspect.cleandoc(command.help)
        yield "```text\n" + " ".join([name, *map(_usage, needed), "[OPTIONS]"]) + "\n```"
        rows = [[f"`{_names(p)}`", _cell(p.help), _default(p)] for p in command.params if p.name != "help"]
        yield table(["option", "description", "default"], rows)


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands with their full names."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, below in command.commands.items():
        yield from _leaves(below, f"{name} {word}")


def _usage(parameter: Any) -> str:
    several = parameter.nargs != 1 or getattr(parameter, "multiple", False)
    word = parameter.name.upper() + ("…" if several else "")
    if parameter.param_type_name == "option":
        word = f"{parameter.opts[0]} {word}"
    return word if parameter.required else f"[{word}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _usage(parameter).strip("[]")
    return " / ".join([*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return _cell(parameter.show_default)
    if isinstance(parameter.default, bool):
        return "yes" if parameter.default else "no"
    return "" if parameter.default is None else _cell(str(parameter.default))


def _cell(text: str) -> str:
    """Format options, variables and assignments as code."""
    return re.sub(r"(?<![\w-])(--[\w-]+|\$[A-Z_]+|[a-z_.]+=[\w.]*\w)", r"`\1`", text.replace("|", "\\|"))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def recipes() -> Iterator[str]:
    yield RECIPES
    base = as_table(Recipe())
    about = {
        "dataset": f"{', '.join(DATASETS)}, or the path of [your own data](own-data.md)",
        "method": "one of the [methods](#options)",
        "seed": "random seed",
    }
    yield "## Top-level keys"
    yield table(["key", "description", "default"], [[f"`{k}`", about[k], _value(base[k])] for k in about])
    for section, settings in vars(Recipe()).items():
        if is_dataclass(settings):
            yield f"## [{section}]"
            yield from _with_options(type(settings), base[section])
    yield "## [options]"
    yield "The options depend on the method."
    for method in METHODS.values():
        yield f"### {method.name}"
        yield f"{method.summary[0].upper()}{method.summary[1:]}."
        yield from _with_options(method, method.options())
    names = shipped_recipes()
    best, few_shot, paper, tuned = FAMILIES
    listed = ", ".join(f"`{name}`" for name in names if name.startswith("best/"))
    plain = ", ".join(f"`{name}`" for name in names if "/" not in name)
    yield SHIPPED.format(plain=plain, best=best, paper=paper, tuned=tuned, few_shot=few_shot, names=listed)


def _with_options(thing: Any, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the docstring of settings or of a method, with its list of arguments or options as a table."""
    *prose, last = _paragraphs(thing)
    listed = LISTED.match(last)
    yield "\n\n".join(prose if listed else [*prose, last])
    about = {**_inherited_options(), **(_entries(last) if listed else {})}
    rows = [[f"`{key}`", about[key], _value(value)] for key, value in defaults.items()]
    yield table(["key", "description", "default"], rows) if rows else "This method has no options."


def _inherited_options() -> dict[str, str]:
    """Return the options of faust-representative, which other methods have too without describing them again."""
    return _entries(_paragraphs(methods.FaustRepresentative)[-1])


def _value(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def python() -> Iterator[str]:
    yield PYTHON
    for title, things in PUBLIC.items():
        yield f"## {title}"
        for thing, names in things.items():
            yield from _described(thing, names)


def _described(thing: Any, names: Sequence[str] | None) -> Iterator[str]:
    yield f"### {thing.__name__}"
    where = f"{_public_module(thing)}.{thing.__name__}"
    if not inspect.isclass(thing):
        yield _text(_signature(where, thing))
        yield _prose(thing)
        return
    yield f"`{where}`"
    yield _prose(thing)
    if is_dataclass(thing):
        yield _fields(thing)
    for name, member in (vars(thing) if names is None else _members(thing)).items():
        if name in names if names is not None else _is_public(name, member):
            yield _text(_signature(name, member))
            yield _prose(_function(member))


def _members(kind: type) -> dict[str, Any]:
    """Return the members of a class, its own first, and those of its base classes."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        found.update((name, member) for name, member in vars(base).items() if name not in found)
    return found


def _public_module(thing: Any) -> str:
    """Return the module that users import a thing from: a package that lists it, or the module that defines it."""
    for package in (faustnet, losses, methods, data):
        if thing.__name__ in package.__all__:
            return package.__name__
    return thing.__module__


def _is_public(name: str, member: Any) -> bool:
    function = _function(member)
    return not name.startswith("_") and inspect.isfunction(function) and bool(function.__doc__)


def _function(member: Any) -> Any:
    """Return the function of a property, a class method or a method that is not always available."""
    for attribute in ("fget", "func", "__func__", "fn"):
        member = getattr(member, attribute, member)
    return member


def _signature(name: str, member: Any) -> str:
    signature = inspect.signature(_function(member))
    parameters = [p.replace(default=Shortened()) if is_dataclass(p.default) else p for p in signature.parameters.values()]
    signature = signature.replace(parameters=parameters)
    if isinstance(member, property | cached_property):
        return f"{name} → {_plain(inspect.formatannotation(signature.return_annotation))}"
    return _wrapped(name + re.sub(r"^\((self|cls)(, )?", "(", _plain(str(signature))))


def _wrapped(signature: str) -> str:
    """Return a signature with a line for each argument, if it is too long for one line."""
    if len(signature) <= SIGNATURE:
        return signature
    depth, ends = 0, []  # ends: the outer brackets and the commas between arguments
    for place in range(signature.index("("), len(signature)):
        letter = signature[place]
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 or (depth == 1 and letter in "(,"):
            ends.append(place)
        if depth == 0:
            break
    arguments = [signature[start + 1 : end].strip() for start, end in pairwise(ends)]
    return "\n".join([signature[: ends[0] + 1], *(f"    {argument}," for argument in arguments), signature[ends[-1] :]])


def _plain(annotation: str) -> str:
    """Remove the module names."""
    text = re.sub(r"<class '(.*?)'>", r"\1", annotation)
    text = re.sub(r"(= ?)?'(.*?)'", lambda found: found[0] if found[1] else found[2], text)  # keep defaults
    return re.sub(r"(?:\w+\.)+(?=[A-Za-z])", "", text).replace("->", "→")


def _fields(kind: type) -> str:
    """The fields of a dataclass, with their comments; a long comment is in the line above."""
    lines = [line.strip() for line in inspect.getsource(kind).splitlines() if re.match(r"    \w+: ", line)]
    return _text("\n".join(line if len(line) <= SIGNATURE else re.sub(r"(.*)  (# .*)", r"\2\n\1", line) for line in lines))


def _prose(thing: Any) -> str:
    return "\n\n".join(map(_paragraph, _paragraphs(thing)))


def _paragraphs(thing: Any) -> list[str]:
    """The paragraphs of the docstring, except the automatic one of a dataclass."""
    text = inspect.getdoc(thing) or ""
    return re.split(r"\n\s*\n", "" if text.startswith(f"{thing.__name__}(") else text)


def _entries(section: str) -> dict[str, str]:
    """The descriptions in a section such as "Args:", by name."""
    lines = re.sub(r"\n {8,}", " ", section).splitlines()[1:]
    return dict(line.strip().split(": ", 1) for line in lines)


def _paragraph(text: str) -> str:
    """Format examples as code, and sections with a title as lists."""
    if text.startswith(">>>"):
        return _text(text.replace(">>> ", ""))
    if LISTED.match(text):
        return "\n".join([text.splitlines()[0], "", *(f"- `{name}`: {about}" for name, about in _entries(text).items())])
    if found := re.match(r"(\w+)\n-+\n", text):
        listed = re.sub(r"^(\w[\w, ]*?) : ", r"- `\1`: ", text[found.end() :], flags=re.MULTILINE)
        return f"{found[1]}:\n\n{listed}"
    return text


def _text(lines: str) -> str:
    return f"```text\n{lines}\n```"


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content, encoding="utf-8")
        print(f"wrote docs/{path.name}")
