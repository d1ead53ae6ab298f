"""One optimiser for several layers, each at its own step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from faustnet.system.devices import has_triton
from faustnet.training.optimisers.muon import BETAS, EPSILON, muon_change
from faustnet.training.optimisers.settings import OptimiserSettings

DECOUPLED = ("adamw", "muon")  # weights decay by themselves, not by their gradient


class StackedOptimiser:
    """Torch's optimisers for layers that are stacked, parameters (n, …): every layer has a learning rate and a count of
    steps of its own, and a layer that is not active stays as it is.

    All that differs between layers and steps is in a layer's four `factors`, which `OptimiserSettings.factors` makes ahead.
    """

    def __init__(self, settings: OptimiserSettings, parameters: Sequence[nn.Parameter]):
        self.settings = settings
        self.words = {p: settings.words(matrix=p.dim() > 2) for p in parameters}
        self.memory = {p: [torch.zeros_like(p, requires_grad=False) for _ in self.words[p]] for p in parameters}

    @torch.no_grad()
    def update(self, parameter: nn.Parameter, gradient: Tensor, factors: Tensor, copy: Tensor) -> None:
        """(n, …), (n, …), (n, 4). The new weights go to the parameter and to its copy, which may be itself."""
        memory, settings = self.memory[parameter], self.settings
        if settings.name == "muon" and parameter.dim() > 2:
            self._orthogonal(parameter, gradient.to(parameter.dtype), factors.to(parameter.dtype), *memory)
            if copy is not parameter:
                copy.copy_(parameter)
            return
        if parameter.dtype == torch.float32 and has_triton(parameter.device):
            from faustnet.nn.kernels import update

            update(
                parameter,
                gradient,
                memory,
                factors,
                copy,
                decay=settings.weight_decay,
                decoupled=settings.name in DECOUPLED,
                momentum=settings.momentum,
                betas=BETAS,
                epsilon=EPSILON,
            )
            return
        for layer in zip(parameter, gradient.to(parameter.dtype), factors.to(parameter.dtype), *memory, strict=True):
            self._move(*layer)
        if copy is not parameter:
            copy.copy_(parameter)

    def _move(self, weight: Tensor, gradient: Tensor, factors: Tensor, *memory: Tensor) -> None:
        """One layer's step, in place: a layer stays in the cache while it is worked on. Where it is not active, all that
        would be added is multiplied by nought."""
        size, root, kept, rate = factors
        active = (rate > 0).to(rate.dtype)
        if self.settings.name in DECOUPLED:
            weight.mul_(1 - active * (1 - kept))
        elif self.settings.weight_decay:
            gradient = gradient + self.settings.weight_decay * weight
        if self.settings.name == "sgd":
            change = gradient
            if memory:
                (change,) = memory
                change.mul_(1 - active * (1 - self.settings.momentum)).add_(active * gradient)
            weight.sub_(active * size * change)
        else:
            mean, square = memory
            mean.lerp_(gradient, active * (1 - BETAS[0]))
            square.lerp_(gradient.square(), active * (1 - BETAS[1]))
            weight.sub_(square.sqrt().div_(root).add_(EPSILON).reciprocal_().mul_(mean).mul_(active * size))

    def _orthogonal(self, weight: Tensor, gradient: Tensor, factors: Tensor, momentum: Tensor) -> None:
        """Muon's step of n matrices at once, (n, outputs, …)."""
        _, _, kept, rate = (factor.view(-1, *[1] * (weight.dim() - 1)) for factor in factors.unbind(dim=1))
        active = (rate > 0).to(rate.dtype)
        share = self.settings.momentum
        momentum.lerp_(gradient, active * (1 - share))
        weight.mul_(1 - active * (1 - kept)).sub_(rate * muon_change(momentum, gradient, share))
