"""Names of version 0.1, where a layer was not yet a body and a head: of parameters in files, and of a class in pickles."""

import re
from collections.abc import Mapping

from torch import Tensor, nn

BODY = re.compile(r"(network\.layers\.\d+\.)((?:linear|norm|entrance|inner|outer|convolution)\.)")
PROJECTION = re.compile(r"(network\.layers\.\d+\.)projection\.")


class DenseLayer(nn.Module):
    """A layer in a pickle of version 0.1, of which only the tensors are used."""


def current_names(tensors: Mapping[str, Tensor], method: nn.Module) -> dict[str, Tensor]:
    """Return tensors, by the names of a method's parameters and buffers, under the names that they have now. The images of
    representatives, which were stored as rows, get their shape."""
    known = dict(method.state_dict())
    found = {}
    for name, tensor in tensors.items():
        if BODY.match(name):
            name = BODY.sub(r"\1body.\2", name)
        elif PROJECTION.match(name):
            dense = PROJECTION.sub(r"\1head.", name)
            name = dense if dense.split("/")[0] in known else PROJECTION.sub(r"\1head.projection.", name)
        if name == "images" and name in known and tensor.dim() == 2:
            tensor = tensor.view(len(tensor), *known[name].shape[1:])
        found[name] = tensor
    return found
