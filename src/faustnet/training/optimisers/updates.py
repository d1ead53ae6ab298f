"""Updates of parameters by torch's optimisers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn


class Updates(ABC):
    """Updates of the parameters that one process trains."""

    @property
    @abstractmethod
    def names(self) -> set[str]:
        """Names of the parameters in the method."""

    @abstractmethod
    def step(self, rate: Tensor) -> None:
        """Update all parameters that have a gradient, and clear the gradients."""

    @abstractmethod
    def changes(self) -> list[Tensor]:
        """Return all tensors that a step changes, beside the parameters."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the state as {parameter/word: tensor}."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a state; one without tensors is of a training that had taken no step."""


class TorchUpdates(Updates):
    """Updates by one of torch's optimisers, whose learning rate is a tensor that is set in each step."""

    def __init__(self, optimiser: torch.optim.Optimizer, method: nn.Module):
        self.optimiser = optimiser
        names = {parameter: name for name, parameter in method.named_parameters()}
        updated = (parameter for group in self.optimiser.param_groups for parameter in group["params"])
        self.parameters = {names[parameter]: parameter for parameter in updated if parameter in names}  # in its order

    @property
    def names(self) -> set[str]:
        return set(self.parameters)

    def step(self, rate: Tensor) -> None:
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def changes(self) -> list[Tensor]:
        rates = [group["lr"] for group in self.optimiser.param_groups if isinstance(group["lr"], Tensor)]
        return [*state_tensors(self.optimiser), *rates]

    def state(self) -> dict[str, Tensor]:
        names, state = list(self.parameters), self.optimiser.state_dict()["state"]
        return {
            f"{names[n]}/{word}": torch.as_tensor(value)
            for n, values in state.items()
            for word, value in values.items()
            if value is not None
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        numbers = {name: number for number, name in enumerate(self.parameters)}
        whole = self.optimiser.state_dict()
        whole["state"] = {}
        for key, tensor in tensors.items():
            name, word = key.split("/")
            parameter = self.parameters[name].detach()
            if tensor.shape not in ((), parameter.shape):
                raise ValueError(f"the shape of {word} of {name} in the optimiser state does not match the network")
            if tensor.shape == parameter.shape:  # in the same order of memory too
                tensor = torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)
            whole["state"].setdefault(numbers[name], {})[word] = tensor
        if len(whole["state"]) != len(numbers):
            raise ValueError("the optimiser state has other parameters than the network")
        self.optimiser.load_state_dict(whole)


class LayerUpdates(Updates):
    """Updates of several layers, each by its own `Updates`."""

    def __init__(self, layers: Sequence["TorchUpdates"]):
        self.layers = layers

    @property
    def names(self) -> set[str]:
        return set().union(*(layer.names for layer in self.layers))

    def step(self, rate: Tensor) -> None:
        for layer in self.layers:
            groups = layer.optimiser.param_groups
            if any(parameter.grad is not None for group in groups for parameter in group["params"]):
                layer.step(rate)

    def changes(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in layer.changes()]

    def state(self) -> dict[str, Tensor]:
        return {key: tensor for layer in self.layers for key, tensor in layer.state().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for layer in self.layers:
            layer.restore({key: tensor for key, tensor in tensors.items() if key.split("/")[0] in layer.names})


def state_tensors(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """Return all tensors that torch's optimiser keeps from step to step."""
    values = (value for state in optimiser.state.values() for value in state.values())
    return [value for value in values if isinstance(value, Tensor)]


def trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]
