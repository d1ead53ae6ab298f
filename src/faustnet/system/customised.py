"""Detection of modules and optimisers with hooks or replaced methods."""

from inspect import getattr_static

import torch
from torch import nn
from torch.nn.modules import module as calls
from torch.optim import optimizer as optimisers


def is_customised(module: nn.Module) -> bool:
    """Return whether a call of this module runs hooks, its own or those of all modules, or whether a method was replaced on
    this module, such as `forward`. Also True while torch.compile traces the module, which cannot look for them."""
    if torch.compiler.is_compiling():
        return True
    own = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    of_all = (
        calls._global_forward_pre_hooks,
        calls._global_forward_hooks,
        calls._global_backward_pre_hooks,
        calls._global_backward_hooks,
    )
    kind = type(module)
    return any(own) or any(of_all) or any(callable(value) and hasattr(kind, name) for name, value in vars(module).items())


def is_customised_optimiser(optimiser: torch.optim.Optimizer) -> bool:
    """Return whether a step of this optimiser runs hooks, its own or those of all optimisers, or whether its `step` was
    replaced."""
    own = optimiser._optimizer_step_pre_hooks, optimiser._optimizer_step_post_hooks
    of_all = optimisers._global_optimizer_pre_hooks, optimisers._global_optimizer_post_hooks
    return any(own) or any(of_all) or "step" in vars(optimiser)


def has_gradient_hooks(module: nn.Module) -> bool:
    """Return whether hooks of one of the module's own parameters run when its gradient has been computed."""
    parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
    return any(parameter._backward_hooks or parameter._post_accumulate_grad_hooks for parameter in parameters)


def overrides_methods(module: nn.Module, base: type[nn.Module]) -> bool:
    """Return whether the module's class, derived from a base class, replaces a method or a property that the base class has
    or inherits. Of the special methods, only `__call__` counts."""
    derived = type(module).__mro__[: type(module).__mro__.index(base)]
    names = {name for kind in derived for name in vars(kind) if not name.startswith("__") or name == "__call__"}
    replaced = (getattr_static(base, name, None) for name in names)
    return any(callable(found) or isinstance(found, property) for found in replaced)
