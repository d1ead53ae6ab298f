"""Layers: a body, whose output is passed on, and a head, which maps that output to the embedding of the layer's loss.

A layer contains no loss, and a forward pass trains nothing.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.errors import FaustnetError, require
from faustnet.nn.bodies import ConvBody
from faustnet.nn.heads import ConvHead, TokenHead
from faustnet.nn.modules import BatchNorm, Linear, unit_rows
from faustnet.nn.row_shard import RowShard, ShardedBatchNorm
from faustnet.nn.structure import Structure, activation, as_vectors, map_tensors, padding_mask
from faustnet.system.customised import is_customised
from faustnet.system.devices import has_triton

LENGTHS = ("free", "unit", "learned")
PROTOTYPE_SIZE = 3**-0.5  # standard deviation of each value: about that of an untrained embedding


class Layer(nn.Module):
    """One locally trained unit.

    The `length` of embeddings is "free", "unit", or "learned": one length for all, a parameter of the layer. A squared
    distance grows with the square of the length, so a learned length learns the scale of the distances.

    Prototypes are learned references of the classes. While training they are appended to the embeddings, so that the
    layer's loss reaches them.

    Args:
        body: Any module. It is called with one argument, what the layer before passes on, and returns the activation
            (R, …), or a tuple or dictionary of tensors whose first entry is the activation; see `faustnet.nn.structure`.
        head: Any module that maps the activation to the embedding, (R, …) → (R, e); None if the embedding
            is the activation, flattened.
        dropout: Dropout probability of the input.
        length: Norm of the embeddings: "free", "unit" or "learned".
        passes_embedding: Whether the embedding is passed on in place of the activation.
    """

    shard: RowShard | None = None  # the rows of a batch that this rank has, if other ranks have the rest
    autocast_dtype: torch.dtype | None = None  # for products while training, in layers with modules of other packages
    embedding_size: int = 0  # number of values of an embedding, which `Network` measures
    gain: nn.Parameter | None
    prototypes: nn.Parameter | None  # (C · K, e)

    def __init__(
        self,
        body: nn.Module,
        head: nn.Module | None = None,
        *,
        dropout: float = 0.0,
        length: str = "free",
        passes_embedding: bool = False,
    ):
        super().__init__()
        require(isinstance(body, nn.Module), f"body must be a torch.nn.Module, got {type(body).__name__}.")
        require(0 <= dropout < 1, f"dropout must be at least 0 and below 1, got {dropout}.")
        require(length in LENGTHS, f"length must be {' or '.join(LENGTHS)}, got {length!r}.")
        self.body, self.head = body, head
        self.dropout, self.passes_embedding = dropout, passes_embedding
        self.unit = length != "free"
        self.gain = nn.Parameter(torch.ones(1)) if length == "learned" else None
        self.register_parameter("prototypes", None)

    def forward(self, rows: Structure) -> tuple[Structure, Tensor]:
        """Return what is passed on, and the embedding. (R, …) → (R, …), (R, e)"""
        return self.transform(self.drop(rows))

    def transform(self, rows: Structure) -> tuple[Structure, Tensor]:
        """Compute what `forward` computes, without dropout."""
        if self.autocast_dtype is None or not self.training:
            return self._transform(rows)
        device = activation(rows).device.type
        with torch.autocast(device, self.autocast_dtype, cache_enabled=False):
            return self._transform(rows)

    def _transform(self, rows: Structure) -> tuple[Structure, Tensor]:
        passed: Structure
        if isinstance(rows, Tensor) and (pair := self._convolutions(rows)):
            body, head = pair
            passed, means = body.with_means(rows, head.side)
            embedding = head(means)
        else:
            passed = self.body(rows)
            embedding = self.embed(passed)
        embedding = self.scale_length(embedding)
        return embedding if self.passes_embedding else passed, self.append_prototypes(embedding)

    def _convolutions(self, rows: Tensor) -> tuple[ConvBody, ConvHead] | None:
        """Return body and head if kernels of a GPU compute the means that the head takes together with the feature maps. All
        modules that would not be called are this package's, without hooks."""
        body, head = self.body, self.head
        if not self.training or type(self) is not Layer or not has_triton(rows.device) or is_customised(self):
            return None
        if type(body) is not ConvBody or not body.is_plain or type(head) is not ConvHead or head.first is None:
            return None
        return None if is_customised(head) else (body, head)

    def embed(self, passed: Structure) -> Tensor:
        """Apply the head to what the body returned. (R, …) → (R, e)"""
        first = activation(passed)
        if self.head is None:
            return as_vectors(first)
        if isinstance(self.head, TokenHead):
            return self.head(first, padding_mask(passed))
        return self.head(first)

    def drop(self, rows: Structure) -> Structure:
        """Apply dropout to the activation while training. (R, …) → (R, …)"""
        if not self.dropout or not self.training:
            return rows
        first = activation(rows)
        return map_tensors(lambda part: self._drop(part) if part is first else part, rows)

    def _drop(self, rows: Tensor) -> Tensor:
        if self.shard is not None:
            return self.shard.dropout(rows, self.dropout)
        return functional.dropout(rows, self.dropout)

    def scale_length(self, embedding: Tensor) -> Tensor:
        return scaled(embedding, self.unit, self.gain)

    def append_prototypes(self, embedding: Tensor) -> Tensor:
        """Append the prototypes while training, if there are any. (R, e) → (R, e) or (R + C · K, e)"""
        if self.prototypes is None or not self.training:
            return embedding
        return torch.cat([embedding, self.scale_length(self.prototypes.to(embedding.dtype))], dim=-2)

    def add_prototypes(self, count: int) -> None:
        """Create prototypes with random directions and about the length of untrained embeddings."""
        self.prototypes = nn.Parameter(torch.randn(count, self.embedding_size) * PROTOTYPE_SIZE)

    @property
    def references(self) -> Tensor:
        """Prototypes at the length at which distances are measured. (C · K, e)"""
        assert self.prototypes is not None
        return self.scale_length(self.prototypes.detach())

    @property
    def body_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that what is passed on depends on."""
        yield from self.body.parameters()
        if self.passes_embedding and self.head is not None:
            yield from self.head.parameters()

    @property
    def projection(self) -> nn.Module | None:
        """The linear map to the embedding at the end of the head, if there is one."""
        return self.head if isinstance(self.head, Linear) else getattr(self.head, "projection", None)

    @property
    def head_weight(self) -> Tensor | None:
        """Weight of the head, (e, w), if embeddings are vectors times this weight and nothing else uses them while training:
        a loss may then be computed without them. Otherwise None."""
        head = self.head
        if type(self) is not Layer or type(head) is not Linear or head.bias is not None:
            return None
        changed = self.unit or self.passes_embedding or self.autocast_dtype is not None or head.compute_dtype is not None
        return None if changed or is_customised(self) or is_customised(head) else head.weight

    def set_shard(self, shard: RowShard | None) -> None:
        """Train on these rows of each batch; other ranks have the rest."""
        for module in self.modules():
            if isinstance(module, Layer | BatchNorm):
                module.shard = shard
            elif isinstance(module, nn.modules.batchnorm._BatchNorm):
                ShardedBatchNorm.install(module, shard)

    @torch.no_grad()
    def update_statistics(self, rows: Structure) -> Structure:
        """Set the statistics of all of this package's `BatchNorm` modules from these rows, and return what is passed on.
        (R, …) → (R, …)"""
        norms = [module for module in self.modules() if isinstance(module, BatchNorm)]
        hooks = [norm.register_forward_pre_hook(_set_statistics) for norm in norms]
        try:
            return self(rows)[0]
        finally:
            for hook in hooks:
                hook.remove()


def _set_statistics(norm: BatchNorm, arguments: tuple[Tensor, ...]) -> None:
    norm.set_statistics(arguments[0])


def scaled(embedding: Tensor, unit: bool, gain: Tensor | None) -> Tensor:
    """Normalise embeddings to length 1 if `unit`, then multiply by the layer's gain. (…, R, e), (…, 1) → (…, R, e)"""
    if unit:
        embedding = unit_rows(embedding)
    return embedding if gain is None else embedding * gain.unsqueeze(-1)


def check_embedding(embedding: Tensor, rows: int, where: str) -> None:
    """Refuse what a head returns if it is not one vector per row."""
    if not isinstance(embedding, Tensor) or embedding.dim() != 2 or len(embedding) != rows:
        found = tuple(embedding.shape) if isinstance(embedding, Tensor) else type(embedding).__name__
        raise FaustnetError(f"The head of {where} must return embeddings of shape (R, e), here ({rows}, e), got {found}.")
