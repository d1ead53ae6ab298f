"""Files of a method's weights."""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from faustnet.errors import FaustnetError, require
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from faustnet.methods.base import Method

MODEL = "model.safetensors"  # in a run folder
STATE_KEYS = {"method", "classes"}  # of the description in a file of `write_state`


def write_state(method: "Method", path: str | PathLike[str]) -> None:
    """Write a safetensors file with the state of a method."""
    method.check_ready()
    tensors = storable(method.state_dict())
    about = {"method": method.name, "classes": method.classes}
    try:
        write_whole(Path(path), save(tensors, {"faustnet": json.dumps(about)}))
    except OSError as error:
        raise FaustnetError(f"path must be a file that can be written, got {path} ({error.strerror or error}).") from None


def storable(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a state on the CPU, each with memory of its own, as safetensors files need them: tied weights
    are copied."""
    found: dict[str, Tensor] = {}
    places = set[int]()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise FaustnetError(
                f"{name} must be a tensor to be saved, got {type(value).__name__}: return a tensor from get_extra_state, or "
                "use a buffer."
            )
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in places else tensor
        places.add(place)
    return found


def read_state(method: "Method", path: str | PathLike[str]) -> None:
    """Load a file that `write_state` wrote."""
    about, tensors = _read(path, "path must be a file of Method.save")
    for key, own in (("method", method.name), ("classes", method.classes)):
        require(about.get(key) == own, f"{path} must contain a method with {key} {own}, got {about.get(key)}.")
    expected = method.state_dict()
    if odd := sorted(set(expected) ^ set(tensors)):
        where = "not in the file" if odd[0] in expected else "only in the file"
        raise FaustnetError(f"{path} has other parameters than this method: {odd[0]} is {where}.")
    for name, tensor in tensors.items():
        require(
            tensor.shape == expected[name].shape,
            f"{path} has other shapes than this method: {name} is {tuple(tensor.shape)} in the file and "
            f"{tuple(expected[name].shape)} in the method.",
        )
    method.load_state_dict(tensors)


def stored_weights(path: str | PathLike[str]) -> tuple[str, dict[str, Tensor]]:
    """Return the name of a trained method and its tensors: of a run folder, a model file or a file of `write_state`."""
    given, rule = Path(path), "start must be a model, a method, a run folder or a model file"
    require(given.exists(), f"{rule}, but there is no {path}.")
    file = given / MODEL if given.is_dir() else given
    require(file.exists(), f"{path} has no {MODEL}: choose the folder of a finished run, or a model file.")
    about, tensors = _read(file, rule)
    try:
        if "recipe" not in about:
            return str(about["method"]), tensors
        named = {name.removeprefix("method."): tensor for name, tensor in tensors.items() if name.startswith("method.")}
        return str(about["recipe"]["method"]), named
    except (LookupError, TypeError) as error:
        raise FaustnetError(f"{rule}, but {file} is not one, or is damaged ({error!r}).") from None


def _read(path: str | PathLike[str], rule: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors in a safetensors file. `rule` begins the error about another file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["faustnet"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FaustnetError(f"There is no file {path}: check the path.") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise FaustnetError(f"{rule}, but {path} is not one, or is damaged ({error}).") from None
    require(isinstance(about, dict), f"{rule}, but {path} is not one.")
    return about, tensors
