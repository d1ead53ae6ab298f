"""Runs that start from the weights of a trained model."""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from faustnet.data import TextSettings
from faustnet.data.images import described
from faustnet.data.tokens import LARGEST_VOCABULARY, Tokeniser
from faustnet.errors import FaustnetError, require
from faustnet.methods import Method
from faustnet.methods.start import start_from
from faustnet.runs.folder import MODEL, START, Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, StartSettings, as_table, check_effects, recipe_from


def complete_recipe(
    table: Mapping[str, Any], begun: Recipe | None = None, stated: Mapping[str, Any] | None = None
) -> Recipe:
    """Return the recipe that a table describes. If it names a model to start from, the data set, the method, its options,
    the network and the prediction settings of that model are the defaults, and with the same data set also how it is read.
    The network must not be another one.

    `begun` is the recipe of the run that is continued, if any. Its model to start from need not exist any more. In a new
    run, keys without effect are refused in `stated`, the part of the table that the user has set; by default all of it.
    """
    recipe = _completed(table, begun)
    if begun is None:
        check_effects(recipe, table if stated is None else stated)
    return recipe


def _completed(table: Mapping[str, Any], begun: Recipe | None) -> Recipe:
    start = table.get("start") if isinstance(table, Mapping) else None
    name = start.get("model") if isinstance(start, Mapping) else None
    if not start or not name:
        return recipe_from(table)
    table = {**table, "start": {**start, "model": _absolute(name)}}
    tokeniser = None
    if begun is not None:
        known, digest = begun, begun.start.digest
    else:
        file = model_file(Path(name))
        model = Model.load(file)
        known, digest, tokeniser = model.recipe, _digest(file.read_bytes()), model.tokeniser
    network = as_table(known)["network"]
    asked = as_table(recipe_from({"network": table.get("network", {})}, known))["network"]
    for key, value in asked.items():
        require(
            value == network[key],
            f"network.{key} must be {network[key]}, as in the model to start from, {name}, got {value}: leave it out.",
        )
    data = known.data if table.get("dataset", known.dataset) == known.dataset else Recipe().data
    if tokeniser is not None:
        _check_stated(table.get("data", {}), tokeniser)
        data = replace(data, tokens=tokeniser.length, vocabulary=max(data.vocabulary, tokeniser.vocabulary - 1))
    defaults = Recipe(
        dataset=known.dataset,
        data=data,
        method=known.method,
        options=known.options,
        network=known.network,
        prediction=known.prediction,
        start=StartSettings(_absolute(name), digest),
    )
    return recipe_from(table, defaults)


def _check_stated(stated: Any, tokeniser: Tokeniser) -> None:
    """Refuse settings of texts that would have no effect, because they get the tokeniser of the model to start from. The
    default values are accepted: they are in the recipes of earlier versions."""
    if not isinstance(stated, Mapping):
        return  # `recipe_from` refuses it
    usual = Recipe().data
    kept = {
        key: stated[key] for key in ("tokens", "vocabulary") if stated.get(key, getattr(usual, key)) != getattr(usual, key)
    }
    data = recipe_from({"data": kept}).data if kept else usual
    text = TextSettings(tokens=data.tokens, vocabulary=kept.get("vocabulary", LARGEST_VOCABULARY))
    text.check_tokeniser(tokeniser, "the model to start from")


def model_file(path: Path) -> Path:
    """Return the model file of a run folder, or the path itself if it is a file."""
    if path.is_file():
        return path
    require(path.exists(), f"start.model must be a run folder or a model file, but there is no {path}.")
    run = Run.open(path)
    file = run.folder / MODEL
    require(file.exists(), f"{path} has no model yet: finish its training with 'faustnet train --resume --out {path}'.")
    return file


def starting_model(run: Run, recipe: Recipe) -> tuple[Model, bytes] | None:
    """Return the model from which a run starts and the contents of its file, or None if it starts with random weights. The
    run folder has a copy of the file once the run has begun."""
    if not recipe.start.model:
        return None
    copy = run.folder / START
    file = copy if copy.exists() else model_file(Path(recipe.start.model))
    model, content = Model.load(file), file.read_bytes()
    if recipe.start.digest not in ("", digest := _digest(content)):
        raise FaustnetError(
            f"start.digest must be {digest}, the SHA-256 of {file}, got {recipe.start.digest}: restore the file, which has "
            "changed, or leave out start.digest."
        )
    return model, content


def started(model: Model, start: Model) -> Model:
    """Return an untrained model with the weights and the scaling of a trained one, and with frozen layers if its recipe
    says so."""
    require(
        model.shape == start.shape,
        f"The data must be {_samples_of(start)}, like those of the model to start from, got {_samples_of(model)}.",
    )
    kinds = {True: "pixels from 0 to 255 (uint8)", False: "floats"}
    require(
        model.of_bytes == start.of_bytes,
        f"Images must be {kinds[start.of_bytes]}, like those of the model to start from, got {kinds[model.of_bytes]}: "
        f"convert them{', for example with (255 * x).round().astype(numpy.uint8)' if start.of_bytes else ' likewise'}.",
    )
    require(
        model.vocabulary == start.vocabulary,
        f"Texts must have the tokens of the model to start from, {start.vocabulary} ids, got {model.vocabulary}.",
    )
    anew = set[str]() if model.class_names == start.class_names else _class_tensors(model)
    if model.own is not None:
        _check_same_network(model.method, start.method)
    start_from(model.method, start.method, model.recipe.start.train_layers, anew=anew)
    return replace(model, scaling=start.scaling)


def _samples_of(model: Model) -> str:
    return f"texts of {model.shape[0]} tokens" if model.vocabulary else described(model.shape)


def _class_tensors(model: Model) -> set[str]:
    """Return the names of the tensors whose shape depends on the number of classes."""
    classes = 2 if len(model.class_names) == 1 else 1
    with torch.device("meta") if model.own is None else nullcontext():
        other = model.untrained(classes).state_dict()
    return {
        name for name, tensor in model.method.state_dict().items() if name not in other or other[name].shape != tensor.shape
    }


def _check_same_network(method: Method, trained: Method) -> None:
    """Refuse a network of the user's own that has other weights than before. Prototypes depend on the options."""
    shapes, known = (
        {name: tuple(tensor.shape) for name, tensor in one.network.state_dict().items() if not name.endswith(".prototypes")}
        for one in (method, trained)
    )
    for name in {**known, **shapes}:
        if shapes.get(name) != known.get(name):
            raise FaustnetError(
                f"network must return the network of the model to start from, but {name} has the shape "
                f"{shapes.get(name)} in place of {known.get(name)}: return the same blocks, or train from new weights."
            )


def _absolute(name: Any) -> Any:
    return str(Path(name).resolve()) if isinstance(name, str | Path) else name


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
