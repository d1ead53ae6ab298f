"""Training and evaluation mode of methods."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(method: nn.Module) -> Iterator[None]:
    """Use evaluation mode and no gradients in this block."""
    training = method.training
    _set_mode(method, training=False)
    try:
        with torch.no_grad():
            yield
    finally:
        _set_mode(method, training=training)


def _set_mode(method: nn.Module, *, training: bool) -> None:
    """Set the mode of all modules, unless they have it: setting it takes longer than a small prediction."""
    if any(module.training is not training for module in method.modules()):
        method.train(training)
