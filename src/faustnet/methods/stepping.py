"""Parts of one's own training loop: optimisers of the layers, and files of a method's weights."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from faustnet.errors import FaustnetError, require
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from faustnet.methods.base import Method

MODEL = "model.safetensors"  # in a run folder

MakeOptimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def layer_optimisers(method: "Method", make: MakeOptimiser, *, local: bool) -> list[torch.optim.Optimizer]:
    """Return an optimiser of the trainable parameters of each layer, or of all of them together."""
    units: Sequence[nn.Module] = list(method.network) if local else [method]
    found = [[parameter for parameter in unit.parameters() if parameter.requires_grad] for unit in units]
    return [make(parameters) for parameters in found if parameters]


def check_optimisers(method: "Method", optimisers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse optimisers that would leave a parameter untrained."""
    if isinstance(optimisers, torch.optim.Optimizer):
        raise FaustnetError("optimisers must be a list, got one optimiser: use method.optimisers(…), or put it in a list.")
    updated = {id(parameter) for one in optimisers for group in one.param_groups for parameter in group["params"]}
    for name, parameter in method.named_parameters():
        require(
            not parameter.requires_grad or id(parameter) in updated,
            f"optimisers must have all trainable parameters, but {name} is missing: use method.optimisers(…), or freeze it "
            "with requires_grad_(False).",
        )


def step_all(optimisers: Sequence[torch.optim.Optimizer]) -> None:
    """Take a step with those optimisers whose parameters have gradients, and clear the gradients."""
    for optimiser in optimisers:
        if any(parameter.grad is not None for group in optimiser.param_groups for parameter in group["params"]):
            optimiser.step()
            optimiser.zero_grad()


def write_state(method: "Method", path: Path) -> None:
    """Write a safetensors file with the state of a method."""
    method.check_ready()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in method.state_dict().items()}
    about = {"method": method.name, "classes": method.classes}
    write_whole(path, save(tensors, {"faustnet": json.dumps(about)}))


def read_state(method: "Method", path: Path) -> None:
    """Load a file that `write_state` wrote."""
    about, tensors = _read(path, "a file of Method.save")
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


def stored_weights(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the name of a trained method and its tensors: of a run folder, a model file or a file of `write_state`."""
    require(path.exists(), f"start must be a model, a method, a run folder or a model file, but there is no {path}.")
    file = path / MODEL if path.is_dir() else path
    require(file.exists(), f"{path} has no {MODEL}: choose the folder of a finished run, or a model file.")
    about, tensors = _read(file, "a model file")
    try:
        if "recipe" not in about:
            return str(about["method"]), tensors
        named = {name.removeprefix("method."): tensor for name, tensor in tensors.items() if name.startswith("method.")}
        return str(about["recipe"]["method"]), named
    except (LookupError, TypeError) as error:
        raise FaustnetError(f"{file} is not a model file, or is damaged ({error!r}): copy it again.") from None


def _read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors in a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["faustnet"])
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FaustnetError(f"There is no file {path}: check the path.") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise FaustnetError(f"{path} is not {kind}, or is damaged ({error}).") from None
