"""The contract of a method whose layers are trained separately."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor

from faustnet.errors import require
from faustnet.methods.base import Method
from faustnet.methods.source import Source
from faustnet.nn.structure import Structure, detached


class LocalMethod(Method):
    """Base class of methods whose layers need only the activation of the previous layer, so that all schedules can train
    them.

    A subclass implements `rows` and either `local_loss`, for one layer, or `batched_loss`, for several layers at once. If it
    inherits the other one, its own counts; if one class implements both, `batched_loss` counts.
    All trainable parameters must belong to layers, and a step must not change buffers of the method.
    """

    is_local: ClassVar[bool] = True
    draws: ClassVar[bool] = False  # whether rows contain further training images, drawn anew in each step

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        require(
            cls.losses is LocalMethod.losses,
            f"{cls.__name__} must not override losses, which schedules do not call: override layer_loss, the loss of one "
            "layer, or derive the class from Method.",
        )

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
        """Whether the losses of several layers are computed at once, by `batched_loss`."""
        of_layers = self.has_layer_loss or self._overrides("embedding_loss", LocalMethod)
        return self._prefers_batched_loss and not of_layers

    @property
    def _prefers_batched_loss(self) -> bool:
        """Whether `batched_loss` counts, and not `local_loss`: the one that is defined closer to this object's class."""
        for names in (vars(self), *map(vars, type(self).__mro__)):
            if "batched_loss" in names or "local_loss" in names:
                return "batched_loss" in names
        return True

    @property
    def has_layer_loss(self) -> bool:
        """Whether a subclass computes the loss of a layer from its rows: then every layer is computed by itself."""
        return self._overrides("layer_loss", LocalMethod)

    def _overrides(self, name: str, base: type) -> bool:
        """Return whether a subclass of a base class, or this object itself, has another method of this name."""
        return name in vars(self) or getattr(type(self), name) is not getattr(base, name)

    def loss_groups(self, batch: int) -> list[range]:
        """Return consecutive layers whose losses the sequential schedule computes together, by `batched_loss`. A layer by
        itself has the loss of `layer_loss`. `batch` is the number of images in a batch."""
        if self.has_batched_loss:
            return self.network.loss_groups
        return [range(number, number + 1) for number in range(len(self.network))]

    def layer_loss(self, number: int, rows: Structure, y: Tensor) -> tuple[Structure, Tensor]:
        """Pass rows through one layer, numbered from 0, and return what it passes on and its loss. (R, …), (B,) → (R, …),
        () or (1,)

        A loss that needs more than the embedding may override this method. Batches are then not divided among ranks. A loss
        that is reshaped costs some time, because its gradient is then multiplied by 1.
        """
        passed, embedding = self.network[number](rows)
        return passed, self.embedding_loss(embedding, y, number)

    def embedding_loss(self, embedding: Tensor, y: Tensor, number: int) -> Tensor:
        """Return the loss of one layer by `batched_loss` or `local_loss`, whichever counts. (R, e), (B,) → (1,) or ()"""
        if self._prefers_batched_loss:
            losses = self.batched_loss(embedding.unsqueeze(0), y.unsqueeze(0), slice(number, number + 1))
            return self.checked_losses(losses, 1)
        loss = self.local_loss(embedding, y, number)
        require(
            loss.dim() == 0,
            f"{type(self).__name__}.local_loss must return one value, (), got {tuple(loss.shape)}: average over the batch.",
        )
        return loss

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
            require(
                loss.shape in ((), (1,)),
                f"{type(self).__name__}.layer_loss must return one value as the loss, () or (1,), got {tuple(loss.shape)}: "
                "average over the batch.",
            )
            rows = detached(passed)
            del passed
            yield loss.reshape(1)
