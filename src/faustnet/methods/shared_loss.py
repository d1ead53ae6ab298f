"""The loss of local methods whose anchors share their references."""

from abc import abstractmethod

from torch import Tensor

from faustnet.losses import Objective
from faustnet.losses.projected import projection_saves
from faustnet.methods.local import LocalMethod
from faustnet.methods.mixup import MixUp
from faustnet.nn.structure import Structure, activation


class SharedReferenceLoss(LocalMethod):
    """Base class of local methods whose loss is an objective of the embeddings of the anchors and of shared references.

    If the head of a layer is only a linear map, and the objective only the tuplet loss, a CPU computes the loss of a large
    layer without the anchors' embeddings (`projected_tuplet_loss`).
    """

    objective: Objective
    mixing: MixUp

    @property
    @abstractmethod
    def references_per_step(self) -> int:
        """Number of references that each anchor is compared with in a step."""

    @property
    def blends_images(self) -> bool:
        return self.mixing.on

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return self.objective(embedding, y, self.mixing.own(y.shape[-1]))

    @property
    def has_layer_loss(self) -> bool:
        return self._overrides("layer_loss", SharedReferenceLoss)

    def loss_groups(self, batch: int) -> list[range]:
        numbers = range(len(self.network))
        if any(self._projection(number, batch) is not None for number in numbers):
            return [range(number, number + 1) for number in numbers]
        return super().loss_groups(batch)

    def layer_loss(self, number: int, rows: Structure, y: Tensor) -> tuple[Structure, Tensor]:
        projection = self._projection(number, len(y))
        if projection is None:
            return super().layer_loss(number, rows, y)
        layer, own = self.network[number], self.mixing.own(len(y))
        passed = layer.body(layer.drop(rows))
        vectors = activation(passed).to(projection.dtype)
        return passed, self.objective.projected(vectors, projection, y, own, layer.prototypes)

    def _projection(self, number: int, batch: int) -> Tensor | None:
        """Return the weight of a layer's head, (e, w), if its loss is to be computed without the embeddings of a batch."""
        if any(self._overrides(name, SharedReferenceLoss) for name in ("batched_loss", "local_loss", "embedding_loss")):
            return None
        own = not isinstance(self.objective, Objective)  # a module of the user's
        weight = None if own or not self.objective.takes_projection else self.network[number].head_weight
        if weight is None or weight.device.type != "cpu":
            return None
        return weight if projection_saves(batch, self.references_per_step, weight) else None
