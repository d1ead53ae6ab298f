"""The format of model files: a safetensors file with the weights, and the recipe and the classes in its header."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from faustnet.data import Scaling, Tokeniser
from faustnet.errors import FaustnetError, require
from faustnet.methods import Method
from faustnet.methods.state_file import STATE_KEYS
from faustnet.nn.old_names import current_names
from faustnet.runs.class_file import OF_HISTORY, history_contents, read_history
from faustnet.runs.recipes import as_table, recipe_from
from faustnet.runs.tensor_file import ABOUT, Tensors, is_intact, pack
from faustnet.system.allocation import AllocationLimit, AllocationLimitError
from faustnet.system.randomness import seeded

if TYPE_CHECKING:
    from faustnet.runs.model import Model

FORMAT = 1
OTHERS = ("scaling.", *OF_HISTORY)  # prefixes of the tensors that are not of the method
SMALL = 10**7  # values of a model that is built even if its weights turn out not to match its recipe
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)


def file_contents(model: "Model") -> bytes:
    """Return the contents of a model file."""
    tensors = {f"method.{name}": tensor for name, tensor in model.method.state_dict().items()}
    if model.scaling is not None:
        tensors |= {"scaling.mean": model.scaling.mean, "scaling.deviation": model.scaling.deviation}
    about = {
        "format": FORMAT,
        "recipe": as_table(model.recipe),
        "class_names": model.class_names,
        "shape": model.shape,
        "of_bytes": model.of_bytes,
        "threshold": model.threshold,
        "tokeniser": model.tokeniser and model.tokeniser.to_json(),
    }
    if model.columns:
        about["columns"] = model.columns
    if model.history is not None:
        about["classes"], kept = history_contents(model.history)
        tensors |= kept
    return pack(tensors, about)


def model_fields(metadata: dict[str, str], tensors: Tensors, source: str | Path, dtype: torch.dtype) -> dict[str, Any]:
    """Return the fields of `Model`, on the CPU, from the metadata and the tensors of a model file. `source` names the file
    in error messages; `dtype` is that of the weights."""
    try:
        about: dict[str, Any] = json.loads(metadata[ABOUT])
        if about.keys() == STATE_KEYS:
            raise FaustnetError(
                f"{source} has the weights of a method alone, as Method.save writes them: load them in Python with "
                "method.load, or train from them with faustnet.Trainer(…, start=…)."
            )
        if about["format"] != FORMAT:
            raise FaustnetError(f"{source} was written by another version of faustnet: use that version, or train again.")
        recipe, names = recipe_from(about["recipe"]), tuple(map(str, about["class_names"]))
        tokeniser = Tokeniser.from_json(about["tokeniser"]) if about.get("tokeniser") else None
        shape, of_bytes = tuple(map(int, about["shape"])), bool(about["of_bytes"])
        if len(shape) != 3 if tokeniser is None else shape != (tokeniser.length,):
            raise ValueError("its shape is not that of images or of its tokens")
        threshold = about.get("threshold")  # the first files of version 0.1 have none
        threshold = None if threshold is None else float(threshold)
        columns = tuple(map(str, about.get("columns", ())))
        intact = is_intact(tensors, about)
        scaling = None if tokeniser else _scaling(tensors, shape[0])
        weights = {name.removeprefix("method."): tensor for name, tensor in tensors.items() if not name.startswith(OTHERS)}
        if len(recipe.network.widths) > len(weights):
            raise ValueError("it has fewer tensors than layers")
        vocabulary = tokeniser.vocabulary if tokeniser else 0
        most = 2 * sum(tensor.numel() for tensor in weights.values()) + SMALL
        with seeded(0), AllocationLimit(most):  # whatever the recipe says
            method = recipe.build_method(shape, len(names), vocabulary)
        weights = current_names(weights, method)
        check_weights(method, weights, source)
        history = read_history(about["classes"], tensors, names, method) if "classes" in about else None
    except AllocationLimitError:
        raise FaustnetError(
            f"{source} does not match its recipe: the recipe describes a much larger model. Train again."
        ) from None
    except MALFORMED as error:
        raise FaustnetError(
            f"{source} is not a faustnet model, or is damaged ({error!r}): copy it again, or train again."
        ) from None
    require(intact, f"{source} is damaged or was changed: delete it, and train the run again with --resume.")
    method.to(dtype).load_state_dict(weights)
    return {
        "recipe": recipe, "method": method.eval(), "class_names": names, "shape": shape, "scaling": scaling,
        "of_bytes": of_bytes, "threshold": threshold, "tokeniser": tokeniser, "history": history, "columns": columns,
    }  # fmt: skip


def check_weights(method: Method, tensors: Tensors, source: str | Path) -> None:
    """Refuse tensors that are not exactly those of a method: their names, shapes and types."""
    expected = method.state_dict()
    if odd := sorted(set(expected) ^ set(tensors)):
        how = "missing" if odd[0] in expected else "not part of the model"
        raise FaustnetError(f"{source} does not match its recipe: {odd[0]} is {how}. Train again.")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise FaustnetError(
                f"{source} does not match its recipe: the shape of {name} is {dimensions(tensor.shape)}, "
                f"but must be {dimensions(expected[name].shape)}. Train again."
            )
        is_double = tensor.dtype == torch.float64 and expected[name].is_floating_point()  # from FaustClassifier
        if tensor.dtype != expected[name].dtype and not is_double:
            raise FaustnetError(
                f"{source} does not match its recipe: the type of {name} is {tensor.dtype}, "
                f"but must be {expected[name].dtype}. Train again."
            )
        require(
            bool(tensor.isfinite().all()),
            f"{source} must contain only finite values, but {name} has NaN or infinity: train again.",
        )


def dimensions(shape: Sequence[int]) -> str:
    """Return a shape as text, such as 1×28×28."""
    return "×".join(map(str, shape))


def _scaling(tensors: Tensors, channels: int) -> Scaling:
    return Scaling(*(_scale(tensors[f"scaling.{name}"], channels) for name in ("mean", "deviation")))


def _scale(tensor: Tensor, channels: int) -> Tensor:
    """Return a mean or a deviation of each channel. → (channels, 1, 1)"""
    if tensor.dtype != torch.float32 or not tensor.isfinite().all():
        raise ValueError("its scaling is not finite float32")
    return tensor.view(channels, 1, 1)
