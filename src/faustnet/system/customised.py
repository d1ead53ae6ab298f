"""Modules that do something else than their class says."""

from torch import nn
from torch.nn.modules import module as calls


def is_customised(module: nn.Module) -> bool:
    """Return whether a call of this module runs hooks, its own or those of all modules, or whether a method was replaced on
    this module, such as `forward`."""
    own = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    of_all = (
        calls._global_forward_pre_hooks,
        calls._global_forward_hooks,
        calls._global_backward_pre_hooks,
        calls._global_backward_hooks,
    )
    kind = type(module)
    return any(own) or any(of_all) or any(callable(value) and hasattr(kind, name) for name, value in vars(module).items())
