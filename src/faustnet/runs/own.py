"""Models with a method or a network of the user's own, which a recipe cannot describe."""

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from faustnet.errors import FaustnetError, require
from faustnet.methods import Method
from faustnet.nn.architectures import NetworkSettings, Shape
from faustnet.nn.network import Network
from faustnet.system.randomness import seeded

MakeNetwork = Callable[[Tensor], Any]
RETURNED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # what can learn in the blocks that functions returned


@dataclass(frozen=True)
class OwnMethod:
    """How a method is built, in place of the method, the options and the network of a recipe.

    Args:
        kind: Class of the method.
        options: Its options.
        network: Settings, or a function that gets an example batch and returns blocks or a `Network`.
        embedding: Size of the embeddings, if the function returns blocks.
        dropout: Dropout probability of the output of each layer, if the function returns blocks.
        chosen: Names of those of the last two that the user has set, so that it is an error if they have no effect.
    """

    kind: type[Method]
    options: Mapping[str, Any]
    network: NetworkSettings | MakeNetwork
    embedding: int = 0
    dropout: float = 0.0
    chosen: tuple[str, ...] = ()

    def build(self, example: Tensor, classes: int) -> Method:
        """Return an untrained method for inputs like the example. (n, …)"""
        if isinstance(self.network, NetworkSettings):
            shape = cast(Shape, tuple(example.shape[1:]))
            return self.kind(self.kind.make_network(shape, classes, self.network), classes, **self.options)
        return self.kind(self._own_network(self.network(example), example), classes, **self.options)

    def rebuilt(self, method: Method, classes: int) -> Method:
        """Return a method with a copy of a network, for this number of classes, without the state of a training."""
        with seeded(0):
            return self.kind(copy.deepcopy(method.network), classes, **self.options).to(next(method.parameters()).device)

    def copied(self, method: Method) -> Method:
        """Return a copy of a trained method, without the state of its training."""
        found = self.rebuilt(method, method.classes)
        found.load_state_dict(method.state_dict())
        return found.eval()

    def _own_network(self, found: Any, example: Tensor) -> Network:
        _check_new(found)
        if isinstance(found, Network):
            require(
                not self.chosen,
                f"{self.chosen[0] if self.chosen else ''} has no effect, because network returns a Network: set it there.",
            )
            wanted, got = tuple(example.shape[1:]), tuple(found.example.shape[1:])
            require(got == wanted, f"The Network that network returns must be for inputs of shape {wanted}, got {got}.")
            return found
        if isinstance(found, nn.Sequential | nn.ModuleList | list | tuple):
            return Network(found, self.embedding, example=example, dropout=self.dropout)
        raise FaustnetError(f"network must return a list of blocks or a Network, got {type(found).__name__}.")


def _check_new(found: Any) -> None:
    """Refuse modules that were returned before and can learn: they may be trained already, for example on another part of
    the data."""
    blocks = [one for one in (found if isinstance(found, list | tuple) else [found]) if isinstance(one, nn.Module)]
    parts = [part for block in blocks for part in block.modules()]
    modules = {part for part in parts if part._buffers or any(one.requires_grad for one in part.parameters(recurse=False))}
    require(
        RETURNED.isdisjoint(modules),
        "network must return new blocks in each call, got some that it has returned before: create or copy them in the "
        "function.",
    )
    RETURNED.update(modules)
