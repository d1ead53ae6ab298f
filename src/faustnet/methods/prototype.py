"""FAUST with learned references."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from faustnet.errors import require
from faustnet.methods.arguments import check_network
from faustnet.methods.faust import FaustSharedReferences
from faustnet.methods.mixup import MixUp
from faustnet.methods.shared_loss import SharedReferenceLoss
from faustnet.methods.source import Source
from faustnet.nn.network import Network
from faustnet.system.devices import check_memory


class FaustPrototype(FaustSharedReferences, SharedReferenceLoss):
    """The references of each class are prototypes: learned vectors in the embedding space of each layer.

    The other options are described under faust-representative.

    Options:
        prototypes: Number of prototypes per class.
    """

    name: ClassVar[str] = "faust-prototype"
    title: ClassVar[str] = "FAUST-prototype"
    summary: ClassVar[str] = "tuplet loss of the distances to K learned vectors of every class (K = 1 by default)"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        prototypes: int = 1,
        scale: float = 0.02,
        final_scale: float = 0.0,
        label_smoothing: float = 0.0,
        contrast: float = 0.0,
        temperature: float = 0.1,
        matching: float = 0.0,
        mixup: float = 0.0,
    ):
        require(prototypes >= 1, f"prototypes must be at least 1, got {prototypes}.")
        check_network(network, classes)
        check_memory(classes * prototypes * sum(network.embedding_sizes))
        super().__init__(
            network,
            classes,
            count=prototypes,
            scale=scale,
            final_scale=final_scale,
            label_smoothing=label_smoothing,
            contrast=contrast,
            temperature=temperature,
            matching=matching,
        )
        for layer in self.network:
            layer.add_prototypes(classes * prototypes)
        self.mixing = MixUp(mixup, network)  # last, so that it does not change the random prototypes

    @property
    def references_per_step(self) -> int:
        return self.classes * self.count

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mixing.blend(x)

    def finish(self, train: Source) -> None:
        self.references.set(layer.references for layer in self.network)

    def check_rejection(self) -> None:
        """Inputs that barely activate a layer are closest to every prototype, unless all embeddings have one length."""
        require(
            all(layer.unit for layer in self.network),
            "network.length must be unit or learned to reject images with faust-prototype, got free: train again.",
        )

    @property
    def new_lengths(self) -> list[float]:
        """Mean length of the prototypes in each layer, which may be much shorter than embeddings."""
        return [old.norm(dim=-1).mean().item() for old in self.references]

    def new_class(self, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        pairs = zip(references, self.new_lengths, strict=True)
        alike = [functional.normalize(own, dim=-1) * length for own, length in pairs]
        return {**super().new_class(examples, alike), **self._as_prototypes(alike)}

    def updated_class(self, number: int, present: int, examples: Tensor, references: Sequence[Tensor]) -> dict[str, Tensor]:
        """The references of the class keep their lengths."""
        pairs = zip(references, self.references, strict=True)
        alike = [functional.normalize(own, dim=-1) * old[number].norm(dim=-1, keepdim=True) for own, old in pairs]
        return {**super().updated_class(number, present, examples, alike), **self._as_prototypes(alike)}

    def blended(self, learned: Tensor, mean: Tensor, share: float) -> Tensor:
        """Blend the directions, because prototypes may be much shorter than embeddings."""
        return super().blended(functional.normalize(learned, dim=-1), functional.normalize(mean, dim=-1), share)

    def _as_prototypes(self, references: Sequence[Tensor]) -> dict[str, Tensor]:
        names = [name for name, _ in self.named_parameters() if name.endswith(".prototypes")]
        return dict(zip(names, references, strict=True))
