"""Several layers as one, which does the work of all of them at once."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from faustnet.nn.layers import ENTRY, EntryLinear, Layer, Rows


@dataclass(frozen=True)
class Stack:
    """Layers as one. `layer` does the work of all of them; its rows are (n, R, inputs), or where the first has other
    inputs a tuple of its own, (1, R, inputs₀), and the others'. `parts` are the parameters, (n, …), in the order of those of
    `layer`, and say which layers' they hold and under which name."""

    layer: Layer
    parts: list[tuple[nn.Parameter, slice, str]]
    has_entry: bool


def stacked(layers: Sequence[Layer]) -> Stack:
    """Layers of one kind as one. From now on they share their parameters' memory with it."""
    if not layers[0].stackable:
        return _alone(*layers)
    has_entry = len(layers) > 1 and layers[0].inputs != layers[1].inputs
    together, found = copy.deepcopy(layers[-1]), {}
    for name, _ in layers[-1].named_parameters():
        spans = [slice(0, 1), slice(1, len(layers))] if has_entry and name == ENTRY else [slice(0, len(layers))]
        found[name] = [(_shared([layer.get_parameter(name) for layer in layers[span]]), span, name) for span in spans]
        room, _, last = name.rpartition(".")
        setattr(together.get_submodule(room), last, found[name][-1][0])
    if has_entry:
        entry, weight = (parameter for parameter, _, _ in found[ENTRY])
        together.linear = EntryLinear(entry, weight, found["linear.bias"][0][0])
    where = {part[0]: part for parts in found.values() for part in parts}
    return Stack(together, [where[parameter] for parameter in together.parameters()], has_entry)


def _alone(layer: Layer) -> Stack:
    together = Alone(copy.deepcopy(layer))
    parts = []
    for (name, parameter), own in zip(layer.named_parameters(), together.parameters(), strict=True):
        own.data = parameter.data
        parts.append((nn.Parameter(parameter.detach().unsqueeze(0)), slice(0, 1), name))
    return Stack(together, parts, has_entry=False)


class Alone(Layer):
    """A stack of one layer, of those that cannot work several at a time: rows (1, R, inputs)."""

    def __init__(self, layer: Layer):
        super().__init__(layer.inputs, layer.passed_on, layer.embedding_size, dropout=0.0)
        self.layer = layer

    def transform(self, rows: Rows) -> tuple[Tensor, Tensor]:
        activation, embedding = self.layer(rows[0])
        return activation.unsqueeze(0), embedding.unsqueeze(0)


def _shared(parts: list[nn.Parameter]) -> nn.Parameter:
    """Parameters as one (n, …), of which they become slices."""
    whole = nn.Parameter(torch.stack([part.detach() for part in parts]))
    for part, slot in zip(parts, whole.detach(), strict=True):
        part.data = slot
    return whole
