"""Backpropagation with deep supervision: FAUST's loss in every layer, with its gradient through all layers before it."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from faustnet.methods.faust import RepresentativeMethod


class DeepSupervision(RepresentativeMethod):
    """The twin of faust-representative that is trained by backpropagation: the same layers with the same heads, the same
    representatives, loss and prediction. The losses of all layers are summed, and the gradient of the sum flows through all
    layers. So the two methods differ in one thing only: in faust-representative, no gradient crosses a layer boundary.

    Losses at hidden layers in addition to the one at the output are known as deep supervision (Lee et al., 2015). The
    options are described under faust-representative.
    """

    name: ClassVar[str] = "deep-supervision"
    title: ClassVar[str] = "Deep supervision"
    summary: ClassVar[str] = "the losses of faust-representative in all layers, with their gradients through all layers"

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Yield the losses of all layers at once, (layers,). Their graph spans all layers."""
        own = self.mixing.own(len(y))
        embeddings = self.network.joint_embeddings(self.rows(x, y))
        yield torch.stack([self.objective(embedding, y, own) for embedding in embeddings])
