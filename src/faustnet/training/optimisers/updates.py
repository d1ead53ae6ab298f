"""Updates of the parameters that one process trains."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from faustnet.training.optimisers.base import Optimiser


class Trained(NamedTuple):
    """A parameter that takes a step."""

    weight: Tensor
    gradient: Tensor
    state: dict[str, Tensor]  # by torch's names


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


class JointUpdates(Updates):
    """Updates of parameters that take their steps together, by an optimiser of this package. The state and the learning rate
    are tensors that stay where they are, so that a recorded step can use them."""

    def __init__(self, optimiser: "Optimiser", method: nn.Module, parameters: Iterable[nn.Parameter]):
        names = {parameter: name for name, parameter in method.named_parameters()}
        self.optimiser = optimiser
        self.parameters = {names[parameter]: parameter for parameter in trainable(parameters)}
        device = next((parameter.device for parameter in self.parameters.values()), torch.device("cpu"))
        dtype = torch.float64 if device.type == "cpu" else None
        self.rate = torch.tensor(optimiser.settings.learning_rate, device=device, dtype=dtype)
        self.states = [optimiser.new_state(parameter) for parameter in self.parameters.values()]

    @property
    def names(self) -> set[str]:
        return set(self.parameters)

    def step(self, rate: Tensor) -> None:
        self.rate.copy_(rate)
        owned = zip(self.parameters.values(), self.states, strict=True)
        trained = [Trained(weight.detach(), weight.grad, state) for weight, state in owned if weight.grad is not None]
        if trained:
            with torch.no_grad():
                self.optimiser.step(trained, self.rate)
        for weight in self.parameters.values():
            weight.grad = None

    def changes(self) -> list[Tensor]:
        return [*self.state().values(), self.rate]

    def state(self) -> dict[str, Tensor]:
        owned = zip(self.parameters, self.states, strict=True)
        return {f"{name}/{word}": tensor for name, state in owned for word, tensor in state.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        own = self.state()
        if tensors.keys() != own.keys():
            raise ValueError("the optimiser state has other parameters than the network")
        for key, tensor in tensors.items():
            if tensor.shape != own[key].shape:
                name, word = key.split("/")
                raise ValueError(f"the shape of {word} of {name} in the optimiser state does not match the network")
        for key, tensor in tensors.items():
            own[key].copy_(tensor)


def trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]
