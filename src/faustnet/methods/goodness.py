"""Base classes of the Forward-Forward methods, whose layers receive images together with a label."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from faustnet.errors import require
from faustnet.losses import goodness
from faustnet.methods.base import Method
from faustnet.methods.source import Source, join_rows
from faustnet.nn.architectures import NetworkSettings, Shape, rms_network
from faustnet.nn.modules import one_hot
from faustnet.nn.network import Network


class LabelMethod(Method):
    """Base class of methods whose layers receive images together with a label: the correct label and a wrong one while
    training, and every label in turn for prediction."""

    cached_variants = False  # whether `rows` receives activations of each image with every label, in place of images

    @property
    def forward_passes(self) -> int:
        return self.classes

    def start(self, train: Source) -> None:
        require(
            self.classes > 1, f"{self.name} needs data with at least 2 classes, because it trains with wrong labels, got 1."
        )

    def feed_from(self, train: Source) -> None:
        self.cached_variants = getattr(train, "variants", 1) > 1

    @abstractmethod
    def add_code(self, x: Tensor, code: Tensor) -> Tensor:
        """Return the rows of images with a label code, which is one-hot for a label. (B, …), (B, C) → (B, …)"""

    def with_labels(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the rows of images with these labels. (B, …) → (B, …)"""
        return self.add_code(x, one_hot(labels, self.classes))

    def unlabelled(self, x: Tensor) -> Tensor:
        """Return the rows of images with a neutral label. (B, …) → (B, …)"""
        return self.add_code(x, x.new_full((x.shape[0], self.classes), 1 / self.classes))

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the rows with the correct labels, then with random wrong labels. (B, …), (B,) → (2 · B, …)"""
        wrong = (y + torch.randint_like(y, 1, self.classes)) % self.classes
        if not self.cached_variants:
            return join_rows(self.with_labels(x, y), self.with_labels(x, wrong))
        positions = torch.arange(len(x), device=x.device)
        return join_rows(x[positions, y], x[positions, wrong])  # of (B, C, w)

    def variants(self, x: Tensor) -> Tensor:
        labels = torch.arange(self.classes, device=x.device).repeat(len(x))
        return self.with_labels(x.repeat_interleave(self.classes, dim=0), labels)

    def goodness_by_label(self, x: Tensor, measure: Callable[[Tensor], Tensor] = goodness) -> Tensor:
        """Return the goodness of each layer with each label, by C forward passes. (B, …) → (layers, B, C)

        `measure` returns the goodness of the rows of a layer's activation, (B, units) → (B,).
        """
        by_label = []
        for label in range(self.classes):
            labels = torch.full((x.shape[0],), label, device=x.device)  # len(x) would fix the batch size of an export
            by_label.append(torch.stack([measure(f) for f in self.network.embeddings(self.with_labels(x, labels))]))
        return torch.stack(by_label, dim=2)


class GoodnessMethod(LabelMethod):
    """Base class of methods with dense layers, where the label replaces the first C values of an image.

    The paper writes a 1 for the label into images with values from 0 to 1. Here images have mean 0 and variance 1, and
    a 1 among thousands of such values would have little effect. `label_length` is the length of the label vector, relative
    to that of the image.
    """

    def __init__(self, network: Network, classes: int, *, label_length: float):
        super().__init__(network, classes)
        require(
            not network.takes_ids,
            f"{self.name} replaces the first values of an image by a label, so its network needs inputs of a floating-point "
            f"type, got {network.example.dtype}: use another method for token ids.",
        )
        inputs = network.example.numel()
        require(
            inputs > classes,
            f"Images must have more than {classes} values, because the label replaces the first {classes}, got {inputs}.",
        )
        require(label_length > 0, f"label_length must be positive, got {label_length}.")
        self.label_value = label_length * inputs**0.5

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        return rms_network(shape, settings)

    def add_code(self, x: Tensor, code: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.cat([self.label_value * code.to(flat.dtype), flat[:, self.classes :]], dim=1).view_as(x)
