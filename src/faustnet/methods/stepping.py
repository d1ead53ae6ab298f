"""Parts of one's own training loop: optimisers of the layers, and files of a method's weights."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from faustnet.errors import FaustnetError, require
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from faustnet.methods.base import Method

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
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["faustnet"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FaustnetError(f"There is no file {path}: check the path.") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise FaustnetError(f"{path} is not a file of Method.save, or is damaged ({error}).") from None
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
