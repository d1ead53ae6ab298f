"""The parameters of `FaustClassifier` as the settings of a training."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from faustnet.data import Images
from faustnet.errors import FaustnetError, about_arguments
from faustnet.methods import METHODS, Faust, Method, method_named, some_positions
from faustnet.methods.faust import FaustRepresentative
from faustnet.nn.architectures import NetworkSettings
from faustnet.runs.model import Model
from faustnet.runs.own import OwnMethod
from faustnet.runs.recipes import Recipe, changed, recipe_from
from faustnet.runs.recipes.values import convert_values
from faustnet.training.evaluation import all_scores

LARGEST_BATCH = 256  # for batch_size "auto"
OPTIONS = ("representatives", "scale", "label_smoothing")  # parameters that are options of the method
NETWORK = ("widths", "embedding", "dropout")  # parameters that are settings of the network
FREE_TO_CHANGE = ("dropout", "input_dropout")  # settings of a network that a warm start may change
MEASURED = 2000  # training samples from which the sharpness of probabilities is computed


class BadInput(FaustnetError, ValueError):
    """Invalid input, as the ValueError that scikit-learn expects."""


@contextmanager
def speaking_of_arguments() -> Iterator[None]:
    """Raise errors about a recipe as errors about arguments."""
    try:
        yield
    except FaustnetError as error:
        raise BadInput(about_arguments(str(error))) from None


@dataclass(frozen=True)
class Plan:
    """Settings of a training: a recipe, and how the method is built if the recipe cannot describe it."""

    recipe: Recipe
    own: OwnMethod | None
    kind: type[Method]

    @property
    def takes_rows(self) -> bool:
        """Whether a table is the network's input as it is, (n, d), and not as one-pixel images, (n, d, 1, 1)."""
        return self.own is not None and not isinstance(self.own.network, NetworkSettings)


def plan(parameters: Mapping[str, Any], defaults: Mapping[str, Any], samples: int, smallest: int | None) -> Plan:
    """Return the settings of a training with this number of samples, and with at most `smallest` representatives.

    Args:
        parameters: Parameters of the estimator, with a `seed` in place of `random_state`.
        defaults: Their defaults. A parameter with another value is an error if it has no effect.
    """
    is_default = {name: _plain(parameters[name]) == _plain(defaults[name]) for name in (*OPTIONS, *NETWORK)}
    with speaking_of_arguments():
        kind = _method_class(parameters["method"])
        options = _options(parameters, kind, is_default)
        network = _network(parameters, is_default)
        table = _training_table(parameters, samples)
        if METHODS.get(kind.name) is kind:
            table |= {"method": kind.name, "options": options}
        if isinstance(network, Mapping):
            table |= {"network": network}
        asked = recipe_from(table)
        changes = {"training.batch_size": min(asked.training.batch_size, samples)}
        options = convert_values(options, kind.option_types(), "options")
        if "representatives" in options and smallest is not None:
            options["representatives"] = min(options["representatives"], smallest)
        if METHODS.get(kind.name) is kind:
            changes |= {f"options.{name}": value for name, value in options.items()}
        recipe = changed(asked, changes)
    if METHODS.get(kind.name) is kind and isinstance(network, Mapping):
        return Plan(recipe, None, kind)
    if isinstance(network, Mapping):
        return Plan(recipe, OwnMethod(kind, options, recipe.network), kind)
    chosen = tuple(name for name in ("embedding", "dropout") if not is_default[name])
    return Plan(recipe, OwnMethod(kind, options, network, parameters["embedding"], parameters["dropout"], chosen), kind)


def _training_table(parameters: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Return the parts of a recipe that do not depend on the method and the network."""
    batch_size = parameters["batch_size"]
    return {
        "dataset": "arrays",
        "seed": parameters["seed"],
        "optimiser": {"name": "adamw", **{key: parameters[key] for key in ("learning_rate", "weight_decay")}},
        "training": {
            "epochs": parameters["epochs"],
            "batch_size": _batch_size(samples) if batch_size == "auto" else batch_size,
            "evaluate_every": parameters["epochs"],
        },
    }


def _method_class(given: Any) -> type[Method]:
    if isinstance(given, str):
        return method_named(given)
    if isinstance(given, type) and issubclass(given, Method):
        return given
    raise BadInput(f"method must be the name or the class of a method, got {given!r}.")


def has_representatives(estimator: Any) -> bool:
    """Return whether `partial_fit` is available. It keeps the representatives of the classes, and no other samples."""
    kind = _method_class(estimator.method)
    if not issubclass(kind, FaustRepresentative):
        raise AttributeError(
            f"partial_fit needs a method with representatives, such as faust-representative, got {kind.name}: use fit, with "
            "warm_start=True to train further."
        )
    return True


def _options(parameters: Mapping[str, Any], kind: type[Method], is_default: Mapping[str, bool]) -> dict[str, Any]:
    """Return the options of the method: `method_options`, and the parameters that are options."""
    given, known = parameters["method_options"], kind.options()
    if given is not None and not isinstance(given, Mapping):
        raise BadInput(f"method_options must be a dictionary such as {{'scale': 0.1}}, or None, got {given!r}.")
    found: dict[str, Any] = dict(given or {})
    for name, value in found.items():
        if name in OPTIONS:
            raise BadInput(f"method_options must not contain {name!r}: set the parameter {name}={value!r} instead.")
        if name not in known:
            listed = ", ".join(option for option in known if option not in OPTIONS) or "none"
            raise BadInput(f"method_options must contain options of {kind.name}, which are {listed}, got {name!r}.")
    for name in OPTIONS:
        if name in known:
            found[name] = parameters[name]
        elif not is_default[name]:
            raise BadInput(f"{name} has no effect with method {kind.name}, got {parameters[name]!r}: leave it out.")
    if issubclass(kind, FaustRepresentative):
        found.setdefault("choice", "k-means")
    return found


def _network(parameters: Mapping[str, Any], is_default: Mapping[str, bool]) -> dict[str, Any] | Callable[..., Any]:
    """Return the settings of a network, or the function that returns its blocks."""
    given = parameters["network"]
    own = {name: parameters[name] for name in NETWORK}
    if given is None:
        return own
    if isinstance(given, NetworkSettings):
        given = asdict(given)
    if isinstance(given, Mapping):
        for name in NETWORK:
            if name in given and not is_default[name]:
                raise BadInput(f"{name} is set in network already, got {name}={own[name]!r}: leave one of them out.")
        return own | dict(given)
    if isinstance(given, nn.Module) or not callable(given):
        raise BadInput(
            "network must be None, a NetworkSettings, a dictionary of such settings, or a function that gets an example "
            f"batch and returns new blocks, got {type(given).__name__}."
        )
    if not is_default["widths"]:
        raise BadInput(f"widths has no effect with a function as network, got {own['widths']!r}: leave it out.")
    return given


def _plain(value: Any) -> Any:
    """Return a sequence as a tuple of plain values, so that it can be compared."""
    return tuple(value) if hasattr(value, "__len__") and not isinstance(value, str) else value


def _batch_size(samples: int) -> int:
    """Return about twice the square root of the number of samples, such that few samples are left over."""
    batches = max(1, round(samples / min(LARGEST_BATCH, 2 * samples**0.5)))
    return samples // batches


def check_embedding(model: Model, parameters: Mapping[str, Any], default: int) -> None:
    """Refuse a size of embeddings that no layer has."""
    size, network = parameters["embedding"], parameters["network"]
    is_used = size in (0, default) or isinstance(network, Mapping | NetworkSettings)
    if not is_used and size not in model.method.network.embedding_sizes:
        raise BadInput(f"embedding has no effect with this method and network, got {size}: leave it out.")


def check_same_network(start: Model | None, asked: Plan, *, is_table: bool) -> None:
    """Refuse to train a fitted model further with another method or network."""
    if start is None:
        return
    if type(start.method) is not asked.kind:
        known = start.method.name
        raise BadInput(f"method must be {known} to train the fitted network further, got {asked.kind.name}.")
    if (start.own is None) != (asked.own is None) or len(start.shape) != (1 if is_table and asked.takes_rows else 3):
        raise BadInput("network must be that of the first fit to train it further: fit anew with warm_start=False.")
    for field in fields(NetworkSettings):
        before, now = (getattr(recipe.network, field.name) for recipe in (start.recipe, asked.recipe))
        if before != now and field.name not in FREE_TO_CHANGE:
            raise BadInput(f"{field.name} must be {before} to train the fitted network further, got {now}.")


def kept(model: Model) -> Model:
    """Return a model on the CPU and without training state; in double precision like scikit-learn's estimators, unless it
    has modules of the user's, which may not support that."""
    if model.own is None:
        return Model.from_bytes(model.to_bytes(), torch.float64)
    return replace(model, method=model.own.copied(model.method)).to(torch.device("cpu"))


def sharpness(model: Model, images: Images) -> float:
    """Return the factor that turns summed scores into log-odds; `FaustClassifier.predict_proba` explains it."""
    if len(model.class_names) == 1:
        return 1.0
    if not isinstance(model.method, Faust):
        return 1.0 / len(model.method.voters)
    source = model.source(images)
    some = model.source(images.take(some_positions(source, MEASURED)))
    nearest = -all_scores(model.method, some).topk(2, dim=2).values  # (layers, n, 2)
    return float(model.method.scale * nearest.sum(dim=2).mean() / len(nearest))
