"""What the Forward-Forward family shares: labels written into images, and layers that are to notice wrong ones."""

from abc import abstractmethod

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import goodness
from faustnet.methods.base import Method
from faustnet.methods.source import Source, join_rows
from faustnet.nn.network import Network, NetworkSettings, Shape, rms_network


class LabelMethod(Method):
    """Layers see images together with a label: the true one and a wrong one while they are trained, and each in turn to
    find the one that they are most active for."""

    @property
    def forward_passes(self) -> int:
        return self.classes

    def start(self, train: Source) -> None:
        require(self.classes > 1, "There is one class only, so there is no wrong label: give images of two classes or more.")

    @abstractmethod
    def written(self, x: Tensor, code: Tensor) -> Tensor:
        """Images with so much of every label. (B, …), (B, C) → (B, d)"""

    def labelled(self, x: Tensor, labels: Tensor) -> Tensor:
        """Images with these labels, (B, d); or, from the `variants` that a cache holds, (B, C, w), the ones that carry
        these labels, (B, w)."""
        if x.dim() == 3:
            return x[torch.arange(len(x), device=x.device), labels]
        code = labels.unsqueeze(1) == torch.arange(self.classes, device=x.device)  # one_hot would wait for the device
        return self.written(x, code)

    def unlabelled(self, x: Tensor) -> Tensor:
        """With a little of every label."""
        return self.written(x, x.new_full((x.shape[0], self.classes), 1 / self.classes))

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """The positive rows, then the negative ones. (B, …) → (2 · B, d)"""
        wrong = (y + torch.randint_like(y, 1, self.classes)) % self.classes
        return join_rows([self.labelled(x, y), self.labelled(x, wrong)])

    def variants(self, x: Tensor) -> Tensor:
        labels = torch.arange(self.classes, device=x.device).repeat(len(x))
        return self.labelled(x.repeat_interleave(self.classes, dim=0), labels)

    def goodness_by_label(self, x: Tensor) -> Tensor:
        """What each layer's goodness would be with each label, in as many passes. (B, …) → (layers, B, C)"""
        by_label = []
        for label in range(self.classes):
            labels = torch.full((x.shape[0],), label, device=x.device)  # len(x) would fix the batch size of an export
            by_label.append(torch.stack([goodness(f) for f in self.network.embeddings(self.labelled(x, labels))]))
        return torch.stack(by_label, dim=2)


class GoodnessMethod(LabelMethod):
    """Section III. Positive rows carry the true label in their first C values, negative rows a wrong one.

    The paper writes 1 for the label among pixels from 0 to 1. Here images have mean 0 and variance 1, and a 1 among
    thousands of such values goes unheard: `label_length` is the length of what is written, next to an image's.
    """

    def __init__(self, network: Network, classes: int, *, label_length: float):
        super().__init__(network, classes)
        inputs = network[0].inputs
        require(inputs > classes, f"Images of {inputs} values have no room for {classes} labels: use larger images.")
        require(label_length > 0, f"The label's length must be positive, not {label_length}.")
        self.label_value = label_length * inputs**0.5

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        return rms_network(shape, settings)

    def written(self, x: Tensor, code: Tensor) -> Tensor:
        """In place of their first C values, as long as a label."""
        flat = x.flatten(1)
        return torch.cat([self.label_value * code.to(flat.dtype), flat[:, self.classes :]], dim=1)
