"""Checks of a method before it is trained: what a schedule would silently not train is refused."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.methods import LocalMethod, Method, Source
from faustnet.methods.stepping import check_owners, with_gradients
from faustnet.system.randomness import unchanged_generators

MOST_IMAGES = 32  # of the batch that the checks use
MORE_DRAWS = 40  # at most, of other images and random numbers, for parameters that the first images did not reach
MOST_FURTHER = 64  # images in each of them


def check_trainable(method: Method, train: Source, batch_size: int) -> list[float]:
    """Refuse a method that a schedule would train wrongly without an error, and return its losses before the training.

    A copy of the method computes its losses on a few images. Every trainable parameter must get a gradient, if not from
    these images then from others and with other weights: blocks may be skipped at random, or chosen by the image. In a
    `LocalMethod` it must belong to one layer and get the gradient from that layer's loss, and the buffers of the method
    must not change.
    """
    if isinstance(method, LocalMethod):
        check_owners(method)
    device, count = train.labels.device, len(train.labels)
    with unchanged_generators(device), with_gradients():
        twin = copy.deepcopy(method, {id(train): train}).train()
        for module in twin.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # a copy has them in several pieces of memory, about which cuDNN warns
        index = torch.arange(min(batch_size, count, MOST_IMAGES), device=device)
        _check_rows(twin, train.plain(index), train.labels[index])
        losses, reached = _checked_draw(twin, train, index)
        missed = {name for name, parameter in twin.named_parameters() if parameter.requires_grad} - reached
        for _ in range(MORE_DRAWS if missed else 0):
            index = torch.randperm(count, device=device)[: min(batch_size, count, MOST_FURTHER)]
            _permute_weights(twin)
            missed -= _checked_draw(twin, train, index)[1]
            if not missed:
                break
    for name, _ in twin.named_parameters():
        if name in missed:
            raise FaustnetError(
                f"The parameter {name} gets no gradient from any loss: use it in the layer or in its loss, or freeze it "
                "with requires_grad_(False)."
            )
    return losses


def _checked_draw(method: Method, train: Source, index: Tensor) -> tuple[list[float], set[str]]:
    """Return the losses of some images, and the names of the parameters that they reach. (b,)"""
    buffers = {name: buffer.clone() for name, buffer in method.named_buffers() if not name.startswith("network.layers.")}
    values, reached = list[float](), set[str]()
    for number, losses in enumerate(method.losses(train.plain(index), train.labels[index])):
        names = _reached(method, losses.sum())
        if isinstance(method, LocalMethod):
            _check_locality(number, names)
        values += losses.tolist()
        reached |= names
    if isinstance(method, LocalMethod):
        _check_buffers(method, buffers)
    return values, reached


@torch.no_grad()
def _permute_weights(method: Method) -> None:
    """Permute the rows of all parameters at random, so that a block that chooses among others chooses other ones."""
    for parameter in method.parameters():
        if parameter.dim():
            parameter.copy_(parameter[torch.randperm(len(parameter), device=parameter.device)])


def _check_rows(method: Method, x: Tensor, y: Tensor) -> None:
    found, expected = method.typical(x, y).shape[1:], method.network.example.shape[1:]
    if found != expected and expected.numel() != found.numel():
        raise FaustnetError(
            f"The network must take what {method.name} makes of its samples, {tuple(found)}, got a network for "
            f"{tuple(expected)}: use another method, or a network of {type(method).__name__}.make_network."
        )


def _reached(method: Method, loss: Tensor) -> set[str]:
    """Return the names of the trainable parameters that a loss depends on. Its graph is freed, because that of a compiled
    block can be used only once."""
    named = [(name, parameter) for name, parameter in method.named_parameters() if parameter.requires_grad]
    if not named or not loss.requires_grad:
        return set()
    try:
        gradients = torch.autograd.grad(loss, [parameter for _, parameter in named], allow_unused=True)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        return _in_graph(method, loss)  # it contains a part of the graph of an earlier loss
    return {name for (name, _), gradient in zip(named, gradients, strict=True) if gradient is not None}


def _in_graph(method: Method, loss: Tensor) -> set[str]:
    """Return the names of the parameters in the graph of a loss."""
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    found, seen, waiting = set[str](), set[Any](), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        name = names.get(id(getattr(node, "variable", None)))  # of the nodes that accumulate a gradient
        found |= {name} if name else set()
    return found


def _check_buffers(method: Method, before: dict[str, Tensor]) -> None:
    for name, buffer in method.named_buffers():
        if name in before and not torch.equal(buffer, before[name]):
            raise FaustnetError(
                f"{method.name} changes its buffer {name} in a step, which a LocalMethod must not do: derive the class "
                "from Method instead, or move the buffer into the layers."
            )


def _check_locality(number: int, names: set[str]) -> None:
    """Refuse a loss of a layer, numbered from 0, that depends on parameters with these names in other layers."""
    if others := sorted(name for name in names if not name.startswith(f"network.layers.{number}.")):
        raise FaustnetError(
            f"The loss of layer {number + 1} must not depend on {others[0]}: detach the tensors of other layers."
        )
