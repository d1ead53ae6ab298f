"""The contract of an optimiser."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError, require
from faustnet.system.devices import has_triton
from faustnet.training.optimisers.updates import JointUpdates, Trained, Updates

if TYPE_CHECKING:
    from faustnet.training.optimisers.settings import OptimiserSettings

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as in torch


class Optimiser(ABC):
    """One optimisation algorithm in two forms that compute the same: `update` updates several layers, each of which has its
    own step count and learning rate; `step` updates parameters that take their steps together. Where torch has a faster
    function for that, a subclass calls it in `step`. (torch's optimiser classes are not used, because making one imports
    torch's compiler, which takes seconds.)

    What differs between layers and steps is in a layer's four factors, which `factors` computes ahead of training.
    """

    name: ClassVar[str]
    decoupled: ClassVar[bool]  # whether weight decay acts on the weights directly, not through the gradient
    counts_steps: ClassVar[bool] = True  # whether the state has a step count
    has_kernel: ClassVar[bool] = False  # whether the kernel of `update` computes the same as `_change`
    recordable: ClassVar[bool] = True  # whether a step can be recorded as a CUDA graph
    updates_together: ClassVar[bool] = (
        False  # whether all layers are updated at once, which is faster but keeps all gradients
    )

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        require("_torch_optimiser" not in vars(cls), f"{cls.__name__} must define step in place of _torch_optimiser.")
        if {"_update_layer", "_change"} & vars(cls).keys():
            cls.has_kernel = vars(cls).get("has_kernel", False)  # a kernel that is inherited does not know the change
        changed = {"factors", "update", "_update_layer", "_bias_corrections", "_change"} & vars(cls).keys()
        if changed and "step" not in vars(cls) and cls.step is not Optimiser.step:
            raise FaustnetError(
                f"{cls.__name__} must define step, because the one that it inherits does not use its {min(changed)}: write "
                "step = Optimiser.step in the class."
            )

    def __init__(self, settings: "OptimiserSettings"):
        self.settings = settings

    def updates(self, method: nn.Module, units: Sequence[Iterable[nn.Parameter]]) -> Updates:
        """Return the updates of the parameters of all units, such as layers."""
        return JointUpdates(self, method, (parameter for unit in units for parameter in unit))

    def new_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter before the first step, by torch's names. The step count is on a GPU only if a step
        can be recorded there."""
        state = {word: torch.zeros_like(parameter.detach()) for word in self.slots(parameter.dim())}
        if not self.counts_steps:
            return state
        device = parameter.device if parameter.is_cuda else None
        return {"step": torch.zeros((), dtype=torch.float32, device=device), **state}

    def step(self, trained: Sequence[Trained], rate: Tensor) -> None:
        """Update parameters that take their steps together, with one learning rate (). Autograd is off."""
        for weight, gradient, state in trained:
            steps = state["step"].add_(1) if self.counts_steps else torch.ones(())
            steps = steps.to(rate.device)
            factors = self.factors(rate, steps, torch.ones_like(steps)).unsqueeze(0)
            slots, one = [state[word].unsqueeze(0) for word in self.slots(weight.dim())], weight.unsqueeze(0)
            self.update(one, gradient.unsqueeze(0), slots, factors, one)

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
        if self.has_kernel and weight.dtype == torch.float32 and has_triton(weight.device) and _without_gaps(weight):
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
