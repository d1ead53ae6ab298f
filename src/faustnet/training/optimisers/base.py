"""The contract of an optimiser."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from faustnet.system.devices import has_triton
from faustnet.training.optimisers.updates import TorchUpdates, Updates, state_tensors, trainable

if TYPE_CHECKING:
    from faustnet.training.optimisers.settings import OptimiserSettings

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as in torch


class Optimiser(ABC):
    """One optimisation algorithm in two forms that compute the same: `torch_optimiser` updates parameters that take their
    steps together; `update` updates several layers of which each has its own step count and learning rate.

    What differs between layers and steps is in a layer's four factors, which `factors` computes ahead of training.
    """

    name: ClassVar[str]
    decoupled: ClassVar[bool]  # whether weight decay acts on the weights directly, not through the gradient
    counts_steps: ClassVar[bool] = True  # whether the state has a step count
    recordable: ClassVar[bool] = True  # whether a step can be recorded as a CUDA graph
    updates_together: ClassVar[bool] = (
        False  # whether all layers are updated at once, which is faster but keeps all gradients
    )

    def __init__(self, settings: "OptimiserSettings"):
        self.settings = settings

    def torch_optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's optimiser of the trainable ones among these parameters. Its learning rate is a tensor on their
        device, so that a recorded step can change it. On a GPU, where steps are recorded, its state is allocated at once."""
        found = trainable(parameters)
        device = found[0].device if found else torch.device("cpu")
        dtype = torch.float64 if device.type == "cpu" else None
        rate = torch.tensor(self.settings.learning_rate, device=device, dtype=dtype)
        optimiser = self._torch_optimiser(found or [nn.Parameter(torch.zeros(0))], rate)
        if device.type == "cuda":
            _allocate_state(optimiser, rate)
        return optimiser

    def updates(self, method: nn.Module, units: Sequence[Iterable[nn.Parameter]]) -> Updates:
        """Return the updates of the parameters of all units, such as layers."""
        return TorchUpdates(self.torch_optimiser(parameter for unit in units for parameter in unit), method)

    @abstractmethod
    def _torch_optimiser(self, parameters: list[nn.Parameter], rate: Tensor) -> torch.optim.Optimizer:
        """Return torch's optimiser with this learning rate."""

    @abstractmethod
    def slots(self, dimensions: int) -> tuple[str, ...]:
        """Return torch's names of the state of a parameter with this number of dimensions, without the step count."""

    def factors(self, rates: Tensor, steps: Tensor, active: Tensor) -> Tensor:
        """Compute the factors of layers from their learning rates, their step counts including this step, and whether they
        take it: the factor of the update, the root of the second moment's bias correction, the factor of decayed weights,
        and the learning rate, which is 0 for layers that are not active. (…) each → (…, 4)"""
        size, root = self._bias_corrections(rates, steps.to(rates.dtype))
        return torch.stack([size, root, 1 - rates * self.settings.weight_decay, rates * active], dim=-1)

    def _bias_corrections(self, rates: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return Adam's, for which the learning rate is divided by the first moment's."""
        return rates / (1 - BETAS[0] ** steps), (1 - BETAS[1] ** steps).sqrt()

    @torch.no_grad()
    def update(self, weight: Tensor, gradient: Tensor, state: Sequence[Tensor], factors: Tensor, copy: Tensor) -> None:
        """Update the weights of n layers, (n, …) each, with factors (n, 4). Layers that are not active do not change. The
        new weights are also written to `copy`, which may be the weights themselves."""
        if weight.dtype == torch.float32 and has_triton(weight.device) and _without_gaps(weight):
            from faustnet.nn import kernels

            settings = self.settings
            rule = kernels.Rule(settings.weight_decay, self.decoupled, settings.momentum, BETAS, EPSILON)
            kernels.update(weight, gradient, state, factors, copy, rule)
            return
        for layer in zip(weight, gradient.to(weight.dtype), factors.to(weight.dtype), *state, strict=True):
            self._update_layer(*layer)  # one by one, so that a layer stays in the cache
        if copy is not weight:
            copy.copy_(weight)

    def _update_layer(self, weight: Tensor, gradient: Tensor, factors: Tensor, *state: Tensor) -> None:
        """Update one layer in place. Where it is not active, every change is multiplied by zero."""
        size, root, kept, rate = factors
        active = (rate > 0).to(rate.dtype)
        if self.decoupled:
            weight.mul_(1 - active * (1 - kept))
        elif self.settings.weight_decay:
            gradient = gradient + self.settings.weight_decay * weight
        weight.sub_(self._change(gradient, active, root, *state).mul_(active * size))

    @abstractmethod
    def _change(self, gradient: Tensor, active: Tensor, root: Tensor, *state: Tensor) -> Tensor:
        """Update the state where active, and return the change of the weights before it is multiplied by its factor."""


def _without_gaps(tensor: Tensor) -> bool:
    """Return whether the values of a tensor fill its memory, in any order."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def adam_change(gradient: Tensor, active: Tensor, root: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    mean.lerp_(gradient, active * (1 - BETAS[0]))
    square.lerp_(gradient.square(), active * (1 - BETAS[1]))
    return square.sqrt().div_(root).add_(EPSILON).reciprocal_().mul_(mean)


def _allocate_state(optimiser: torch.optim.Optimizer, rate: Tensor) -> None:
    """Take a step of length zero for each parameter, so that the state exists, and set the state to zero."""
    usual = rate.clone()
    rate.zero_()
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
            optimiser.step()
            parameter.grad = None
    for value in state_tensors(optimiser):
        value.zero_()
    rate.copy_(usual)
