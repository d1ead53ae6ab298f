"""Forward-Forward: the label is written into the image, and layers learn to be active for the right one only."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from faustnet.errors import require
from faustnet.layers import unit_rms
from faustnet.losses import goodness, goodness_loss
from faustnet.methods.base import LocalMethod, Source, join_rows
from faustnet.network import Network, NetworkSettings, rms_network

INFERENCES = ("multi-pass", "one-pass")
CHUNK = 1024  # images walked at once when the read-out is fitted


class ForwardForward(LocalMethod):
    """Section III. Positive rows carry the true label in their first C values, negative rows a wrong one.

    `inference` by "multi-pass" tries every label, C passes, and the goodness of each is that class's score. "one-pass"
    writes a neutral label and reads the class off the layers' normalised activity (all layers but the first, where
    there are more) with a linear softmax that is fitted to them. `threshold` is θ for each unit of a layer.

    The paper writes 1 for the label among pixels from 0 to 1. Here images have mean 0 and variance 1, and a 1 among
    thousands of such values goes unheard: `label_length` is the length of what is written, next to an image's.
    """

    name: ClassVar[str] = "forward-forward"
    summary: ClassVar[str] = "raise the goodness of images with the right label, lower it with a wrong one"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        threshold: float = 1.0,
        label_length: float = 0.5,
        inference: str = "multi-pass",
    ):
        super().__init__(network, classes)
        inputs = network[0].inputs
        require(inputs > classes, f"Images of {inputs} values have no room for {classes} labels: use larger images.")
        require(threshold > 0, f"The threshold must be positive, not {threshold}.")
        require(label_length > 0, f"The label's length must be positive, not {label_length}.")
        require(inference in INFERENCES, f"Inference is {' or '.join(INFERENCES)}, not {inference!r}.")
        self.threshold = threshold
        self.label_value = label_length * inputs**0.5
        self.one_pass = inference == "one-pass"
        if self.one_pass:
            self.register_buffer("read_out", torch.zeros(classes, sum(network.embedding_sizes[self._first_read :])))

    read_out: Tensor  # (C, Σ widths)

    @classmethod
    def make_network(cls, inputs: int, settings: NetworkSettings) -> Network:
        return rms_network(inputs, settings)

    @property
    def voters(self) -> list[str]:
        return ["read-out"] if self.one_pass else super().voters

    @property
    def forward_passes(self) -> int:
        return 1 if self.one_pass else self.classes

    @property
    def _first_read(self) -> int:
        return min(1, len(self.network) - 1)

    def start(self, train: Source) -> None:
        require(self.classes > 1, "There is one class only, so there is no wrong label: give images of two classes or more.")

    def labelled(self, x: Tensor, labels: Tensor) -> Tensor:
        """Images with these labels written over their first C values, (B, d); or, from the `variants` that a cache
        holds, (B, C, w), the ones that carry these labels, (B, w)."""
        if x.dim() == 3:
            return x[torch.arange(len(x), device=x.device), labels]
        code = labels.unsqueeze(1) == torch.arange(self.classes, device=x.device)  # one_hot would wait for the device
        return self._written(x, code)

    def _written(self, x: Tensor, code: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.cat([self.label_value * code.to(flat.dtype), flat[:, self.classes :]], dim=1)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        wrong = (y + torch.randint_like(y, 1, self.classes)) % self.classes
        return join_rows([self.labelled(x, y), self.labelled(x, wrong)])

    def local_loss(self, embedding: Tensor, y: Tensor) -> Tensor:
        positive, negative = goodness(embedding).chunk(2, dim=-1)
        return goodness_loss(positive, negative, self.threshold * embedding.shape[-1])

    def variants(self, x: Tensor) -> Tensor:
        labels = torch.arange(self.classes, device=x.device).repeat(len(x))
        return self.labelled(x.repeat_interleave(self.classes, dim=0), labels)

    def scores(self, x: Tensor) -> Tensor:
        if self.one_pass:
            return functional.linear(self._activity(x), self.read_out).unsqueeze(0)
        by_label = []
        for label in range(self.classes):
            labels = torch.full((len(x),), label, device=x.device)
            by_label.append(torch.stack([goodness(f) for f in self.network.walk(self.labelled(x, labels))]))
        return torch.stack(by_label, dim=2)

    def _activity(self, x: Tensor) -> Tensor:
        """What the read-out sees of images with a neutral label. (B, …) → (B, Σ widths)"""
        neutral = x.new_full((len(x), self.classes), 1 / self.classes)
        activity = list(self.network.walk(self._written(x, neutral)))[self._first_read :]
        return torch.cat([unit_rms(layer) for layer in activity], dim=1)

    def finish(self, train: Source) -> None:
        if self.one_pass:
            everything = torch.arange(len(train.labels), device=train.labels.device)
            activity = torch.cat([self._activity(train.plain(chunk)) for chunk in everything.split(CHUNK)])
            self.read_out.copy_(fit_read_out(activity, train.labels, self.classes))


@torch.enable_grad()
def fit_read_out(activity: Tensor, labels: Tensor, classes: int, *, steps: int = 1000, batch: int = 256) -> Tensor:
    """A linear softmax without bias, by stochastic gradient descent from zero. (n, d), (n,) → (C, d)"""
    weight = torch.zeros(classes, activity.shape[1], device=activity.device, dtype=activity.dtype, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=1e-2, momentum=0.9, weight_decay=3e-3)
    drawn = torch.randint(len(labels), (steps, batch), generator=torch.Generator().manual_seed(0)).to(labels.device)
    for index in drawn:
        optimiser.zero_grad()
        functional.cross_entropy(functional.linear(activity[index], weight), labels[index]).backward()
        optimiser.step()
    return weight.detach()
