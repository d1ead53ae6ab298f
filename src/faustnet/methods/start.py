"""Start a method from the weights of a trained one."""

import os
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from faustnet.errors import FaustnetError, require
from faustnet.methods.base import Method
from faustnet.methods.state_file import stored_weights
from faustnet.nn.old_names import current_names


@torch.no_grad()
def start_from(method: Method, trained: Any, train_layers: Sequence[int] = (), *, anew: Collection[str] = ()) -> list[str]:
    """Copy the weights of a trained method into another method, and freeze the layers that are not to be trained.

    Tensors that have the same name and shape in both are copied. In a frozen layer, the parameters that were copied are
    frozen, and those that start anew are trained, for example prototypes of other classes.

    Args:
        method: The method to train, on any device.
        trained: The trained method, which need not be of the same class; a `Model`; or the path of a run folder, of a
            model file or of a file of `Method.save`.
        train_layers: Numbers of the layers to train, from 1; empty for all.
        anew: Names of tensors that are not copied.

    Returns the names of the tensors that were not copied.
    """
    count = len(method.network)
    require(
        len(set(train_layers)) == len(train_layers) and set(train_layers) <= set(range(1, count + 1)),
        f"train_layers must be different numbers from 1 to {count}, got {list(train_layers)}.",
    )
    state, (name_of_trained, other) = method.state_dict(), _weights(trained, method)
    fits = {name for name, own in state.items() if name in other and other[name].shape == own.shape and name not in anew}
    require(
        any(name.startswith("network.") for name in fits),
        f"None of the weights of the trained {name_of_trained} fit this {method.name}: use the same network and method.",
    )
    for name in fits:
        state[name].copy_(other[name])  # the tensors of a state_dict share memory with the method
    for number, layer in enumerate(method.network, start=1):
        if train_layers and number not in train_layers:
            own = dict(layer.named_parameters(prefix=f"network.layers.{number - 1}"))
            require(
                not own or not fits.isdisjoint(own),
                f"Layer {number} cannot be frozen, because no trained weight fits it: add {number} to train_layers.",
            )
            for name in fits & own.keys():
                own[name].requires_grad_(False)
    require(
        any(parameter.requires_grad for parameter in method.parameters()),
        f"train_layers must contain a layer with weights to train, got {list(train_layers)}.",
    )
    return [name for name in state if name not in fits]


def _weights(trained: Any, method: Method) -> tuple[str, dict[str, Tensor]]:
    """Return the name of a trained method and its tensors, by the names that `method` has for them."""
    if isinstance(trained, str | os.PathLike):
        name, found = stored_weights(trained)
        return name, current_names(found, method)
    inner = getattr(trained, "method", trained)  # of a `Model`
    if not isinstance(inner, Method):
        kind = type(trained).__name__
        raise FaustnetError(f"start must be a model, a method, a run folder or a model file, got {kind}.")
    return inner.name, inner.state_dict()
