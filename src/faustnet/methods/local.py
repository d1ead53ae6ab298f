"""The contract of a method whose layers are trained separately."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor

from faustnet.errors import require
from faustnet.methods.base import Method
from faustnet.methods.source import Source
from faustnet.nn.structure import Structure, detached


class LocalMethod(Method):
    """Base class of methods whose layers need only the activation of the previous layer, so that all schedules can train
    them.

    A subclass implements `rows` and either `local_loss`, for one layer, or `batched_loss`, for several layers at once.
    All trainable parameters must belong to layers, and a step must not change buffers of the method.
    """

    is_local: ClassVar[bool] = True
    draws: ClassVar[bool] = False  # whether rows contain further training images, drawn anew in each step

    @property
    def blends_images(self) -> bool:
        """Whether rows mix several images, so that their activations cannot be cached."""
        return False

    def feed_from(self, train: Source) -> None:
        """Set where the images that anchors are compared with come from: the training set, or cached activations."""

    @abstractmethod
    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what passes through the layers: the anchors first, then what they are compared with. (B, …) → (R, …)"""

    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        """Return the loss of one layer, numbered from 0, from its embedding of the rows. (R, e), (B,) → ()

        It may use parameters of that layer, `self.network[layer]`.
        """
        return self.batched_loss(embedding.unsqueeze(0), y.unsqueeze(0), slice(layer, layer + 1))[0]

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        """Return the losses of n layers at once. (n, R, e), (n, B) → (n,)

        Implementing it is optional. It lets schedules compute layers of the same shape together. It may use only the
        embeddings of the layers, not their parameters.
        """
        raise NotImplementedError(
            f"{type(self).__name__} implements neither local_loss nor batched_loss: implement one of them."
        )

    @property
    def has_batched_loss(self) -> bool:
        return type(self).batched_loss is not LocalMethod.batched_loss and not self.has_layer_loss

    @property
    def has_layer_loss(self) -> bool:
        """Whether a subclass computes the loss of a layer from its rows: then every layer is computed by itself."""
        return type(self).layer_loss is not LocalMethod.layer_loss

    def loss_groups(self, batch: int) -> list[range]:
        """Return consecutive layers whose losses the sequential schedule computes together, by `batched_loss`. A layer by
        itself has the loss of `layer_loss`. `batch` is the number of images in a batch."""
        if self.has_batched_loss:
            return self.network.loss_groups
        return [range(number, number + 1) for number in range(len(self.network))]

    def layer_loss(self, number: int, rows: Structure, y: Tensor) -> tuple[Structure, Tensor]:
        """Pass rows through one layer, numbered from 0, and return what it passes on and its loss. The loss is one value, as
        the method computes it: the gradient of a view would be multiplied by 1. (R, …), (B,) → (R, …), () or (1,)

        Overriding it is optional, too, for a loss that needs more than the embedding; batches are then not divided among
        ranks.
        """
        passed, embedding = self.network[number](rows)
        if type(self).local_loss is LocalMethod.local_loss:
            losses = self.batched_loss(embedding.unsqueeze(0), y.unsqueeze(0), slice(number, number + 1))
            return passed, self.checked_losses(losses, 1)
        loss = self.local_loss(embedding, y, number)
        require(
            loss.dim() == 0,
            f"{type(self).__name__}.local_loss must return one value, (), got {tuple(loss.shape)}: average over the batch.",
        )
        return passed, loss

    def checked_losses(self, losses: Tensor, count: int) -> Tensor:
        """Return what `batched_loss` has returned for n layers, or raise an error if its shape is not (n,)."""
        require(
            losses.shape == (count,),
            f"{type(self).__name__}.batched_loss must return one value per layer, ({count},), got "
            f"{tuple(losses.shape)}: average over the batch.",
        )
        return losses

    def variants(self, x: Tensor) -> Tensor:
        """Return all V rows that each image can become, so that activations can be cached. (B, …) → (B · V, …)"""
        return x

    def losses(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Yield the loss of each layer, (1,). Its autograd graph contains that layer only."""
        rows: Structure = self.rows(x, y)
        for number in range(len(self.network)):
            passed, loss = self.layer_loss(number, rows, y)
            rows = detached(passed)
            del passed
            yield loss.reshape(1)
