"""Checks of a method before it is trained: what a schedule would silently not train is refused."""

import copy

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.methods import LocalMethod, Method, Source
from faustnet.methods.stepping import check_owners
from faustnet.system.randomness import unchanged_generators

MOST_IMAGES = 32  # of the batch that the checks use


def check_trainable(method: Method, train: Source, batch_size: int) -> list[float]:
    """Refuse a method that a schedule would train wrongly without an error, and return its losses before the training.

    A copy of the method computes its losses on a few images. Every trainable parameter must get a gradient. In a
    `LocalMethod` it must belong to one layer and get the gradient from that layer's loss, and the buffers of the method
    must not change.
    """
    if isinstance(method, LocalMethod):
        check_owners(method)
    device = train.labels.device
    with unchanged_generators(device), torch.enable_grad():
        twin = copy.deepcopy(method, {id(train): train}).train()
        for module in twin.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # a copy has them in several pieces of memory, about which cuDNN warns
        index = torch.arange(min(batch_size, len(train.labels), MOST_IMAGES), device=device)
        _check_rows(twin, train.plain(index), train.labels[index])
        buffers = {name: buffer.clone() for name, buffer in twin.named_buffers() if not name.startswith("network.layers.")}
        found = [
            (loss.detach(), _reached(twin, loss))
            for losses in twin.losses(train.plain(index), train.labels[index])
            for loss in losses
        ]
    reached = [names for _, names in found]
    if isinstance(method, LocalMethod):
        _check_buffers(twin, buffers)
        _check_locality(reached)
    for name, parameter in twin.named_parameters():
        if parameter.requires_grad and not any(name in names for names in reached):
            raise FaustnetError(
                f"The parameter {name} gets no gradient from any loss: use it in the layer or in its loss, or freeze it "
                "with requires_grad_(False)."
            )
    return [float(loss) for loss, _ in found]


def _check_rows(method: Method, x: Tensor, y: Tensor) -> None:
    found, expected = method.typical(x, y).shape[1:], method.network.example.shape[1:]
    if found != expected and expected.numel() != found.numel():
        raise FaustnetError(
            f"The network must take what {method.name} makes of its samples, {tuple(found)}, got a network for "
            f"{tuple(expected)}: use another method, or a network of {type(method).__name__}.make_network."
        )


def _reached(method: Method, loss: Tensor) -> set[str]:
    """Return the names of the trainable parameters that a loss depends on."""
    named = [(name, parameter) for name, parameter in method.named_parameters() if parameter.requires_grad]
    if not named or not loss.requires_grad:
        return set()
    parameters = [parameter for _, parameter in named]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return {name for (name, _), gradient in zip(named, gradients, strict=True) if gradient is not None}


def _check_buffers(method: Method, before: dict[str, Tensor]) -> None:
    for name, buffer in method.named_buffers():
        if name in before and not torch.equal(buffer, before[name]):
            raise FaustnetError(
                f"{method.name} changes its buffer {name} in a step, which a LocalMethod must not do: derive the class "
                "from Method instead, or move the buffer into the layers."
            )


def _check_locality(reached: list[set[str]]) -> None:
    for number, names in enumerate(reached):
        if others := sorted(name for name in names if not name.startswith(f"network.layers.{number}.")):
            raise FaustnetError(
                f"The loss of layer {number + 1} must not depend on {others[0]}: detach the tensors of other layers."
            )
