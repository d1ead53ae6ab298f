"""Networks: sequences of layers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError, require
from faustnet.nn.batched import batch_key
from faustnet.nn.counting import count_multiplications, plain_operations
from faustnet.nn.heads import ConvHead, TokenHead, head_for
from faustnet.nn.layers import Layer, check_embedding
from faustnet.nn.modules import BatchNorm, Linear
from faustnet.nn.structure import Structure, activation, detached, tensors
from faustnet.system.randomness import unchanged_generators

LOSSES_AT_ONCE = 4  # layers, at most, whose losses are computed together
CPU_ROWS, GPU_ROWS = 2000, 10_000  # computed at once in evaluation mode, at most
MAX_VALUES = 2**28  # values of these rows in one module, at most
CPU_VALUES = 2**21  # the same on a CPU, where larger tensors, which its caches do not hold, take up to twice as long
CPU_LEAST = 16  # rows computed at once on a CPU, if MAX_VALUES allows it: with fewer, products are slow


class Network(nn.Module):
    """A sequence of layers, each of which is trained by a loss of its own.

    >>> network = Network([Patches(64), Block(64), Block(64)], embedding=32, example=images[:2])

    Args:
        blocks: The bodies of the layers in order, any modules: a list, a `torch.nn.Sequential`, a `torch.nn.ModuleList`.
            Each is called with one argument, what the one before returns. A block may also be a `Layer` with a head of
            its own; the other blocks get a head that fits their output.
        embedding: Size of the embeddings; 0 for no projection.
        example: Input of the first block, one row or more. Shapes are found by a forward pass.
        dropout: Dropout probability of the output of each layer. Each block but the first applies it to its input; a method
            that uses the output of the last layer applies it itself.
        length: Norm of the embeddings: "free" (not normalised), "unit" (1) or "learned" (one learned value per layer).
    """

    example: Tensor  # (1, …), one input of the first layer

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        embedding: int = 0,
        *,
        example: Tensor,
        dropout: float = 0.0,
        length: str = "free",
    ):
        super().__init__()
        require(
            isinstance(example, Tensor) and example.dim() > 0 and len(example) > 0,
            f"example must be a tensor of one or more inputs, (R, …), got {_describe(example)}.",
        )
        require(
            example.dim() > 1 or not example.is_floating_point(),
            f"example must be one or more inputs, (R, …), got one of shape {tuple(example.shape)}: use x[:1], not x[0].",
        )
        is_size = isinstance(embedding, int) and not isinstance(embedding, bool) and embedding >= 0
        require(is_size, f"embedding must be 0 (no projection) or a size of at least 1, got {embedding!r}.")
        require(
            isinstance(blocks, Iterable),
            "blocks must be a list of modules, a torch.nn.Sequential or a torch.nn.ModuleList, got "
            f"{type(blocks).__name__}: list the parts that become layers, or write [module] for a network of one layer.",
        )
        found = list(blocks)
        require(len(found) > 0, "blocks must contain at least one module, got none.")
        self.dropout = dropout
        self.register_buffer("example", example[:1].detach().clone(), persistent=False)
        self.layers = nn.ModuleList()
        rows: Structure = torch.cat([example, example])[:2].detach()
        for number, block in enumerate(found, start=1):
            layer, rows = _fitted(block, number, rows, embedding, dropout if number > 1 else 0.0, length)
            self.layers.append(layer)
        require(
            not self.takes_ids or self[0].dropout == 0,
            "The dropout of the first layer (network.input_dropout) must be 0 for token ids and other whole numbers, got "
            f"{self[0].dropout}: use the dropout of the other layers (network.dropout).",
        )
        self.outputs = activation(rows).flatten(1).shape[1]  # number of values of the last activation

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return (cast(Layer, layer) for layer in self.layers)

    def __getitem__(self, number: int) -> Layer:
        return cast(Layer, self.layers[number])

    @property
    def takes_ids(self) -> bool:
        """Whether inputs are whole numbers, such as token ids, which cannot be scaled or averaged."""
        return not self.example.is_floating_point()

    @property
    def embedding_sizes(self) -> list[int]:
        return [layer.embedding_size for layer in self]

    @property
    def embedding_dtypes(self) -> list[torch.dtype]:
        """Type of the embeddings of each layer in evaluation mode."""
        kinds = {parameter.dtype for parameter in self.parameters()}
        if len(kinds) == 1:
            return [*kinds] * len(self)
        with self._one_row() as row:
            return [embedding.dtype for embedding in self.embeddings(row)]

    @cached_property
    def loss_groups(self) -> list[range]:
        """Consecutive layers whose losses are computed together. A loss consists of small operations, which take as long for
        four layers as for one. But the activations of a group are in memory at once, so layers that are not dense are
        grouped only if their activations need no more memory than those of the largest layer."""
        if all(batch_key(layer) is not None for layer in self):
            return [range(n, min(n + LOSSES_AT_ONCE, len(self))) for n in range(0, len(self), LOSSES_AT_ONCE)]
        sizes = [sum(values) for values in self._output_values]
        groups = [range(1)]
        for number in range(1, len(self)):
            longer = range(groups[-1].start, number + 1)
            if len(longer) <= LOSSES_AT_ONCE and sum(sizes[longer.start : longer.stop]) <= max(sizes):
                groups[-1] = longer
            else:
                groups.append(range(number, number + 1))
        return groups

    @property
    def has_batch_norm(self) -> bool:
        """Whether `update_statistics` has anything to do."""
        return any(isinstance(module, BatchNorm) for module in self.modules())

    @cached_property
    def multiplications(self) -> list[int]:
        """Number of multiplications in matrix products and convolutions of each layer for one row, in evaluation mode."""
        found = []
        with self._one_row() as rows:
            for layer in self:
                (rows, _), count = count_multiplications(layer, rows)
                found.append(count)
        return found

    @property
    def peak_values(self) -> int:
        """Largest number of values that one row takes up in any module."""
        return max(1, *(max(values) for values in self._output_values))

    def rows_at_once(self, device: torch.device) -> int:
        """Return the number of rows that are computed at once in evaluation mode on this device."""
        usual, values = GPU_ROWS if device.type == "cuda" else CPU_ROWS, self.peak_values
        if device.type == "cpu":
            usual = min(usual, max(CPU_LEAST, CPU_VALUES // values))
        return max(1, min(usual, MAX_VALUES // values))

    @cached_property
    def _output_values(self) -> list[list[int]]:
        """Numbers of values that the modules of each layer return for one row, in evaluation mode."""
        found: list[list[int]] = []

        def note(module: nn.Module, arguments: Any, output: Structure) -> None:
            found[-1] += [tensor.numel() for tensor in tensors(output)]

        hooks = [module.register_forward_hook(note) for module in self.layers.modules()]
        try:
            with self._one_row() as rows:
                for layer in self:
                    found.append([0])
                    rows, _ = layer(rows)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    @contextmanager
    def _one_row(self) -> Iterator[Tensor]:
        """Provide an example row, in evaluation mode."""
        training = self.training
        self.eval()
        try:
            with _measuring(self.example):
                yield self.example
        finally:
            self.train(training)

    def remove_projections(self) -> None:
        """Remove the heads of all layers but the last, and the linear map at the end of the last head, for methods with one
        loss at the output."""
        for layer in list(self)[:-1]:
            layer.head = None
        last = self[-1]
        if isinstance(last.head, Linear):
            last.head = None
        elif isinstance(last.head, ConvHead | TokenHead):
            last.head.projection = None
        with self._one_row() as row:
            for layer, embedding in zip(self, self.embeddings(row), strict=True):
                layer.embedding_size = embedding.shape[1]

    def update_statistics(self, rows: Tensor) -> None:
        """Set the statistics of all `BatchNorm` modules from these rows. (R, …)"""
        for layer in self:
            rows = layer.update_statistics(rows)

    def embeddings(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield the embedding of each layer in turn. (R, …) → (R, e_i)

        What is passed to the next layer is detached, so the autograd graph of an embedding contains one layer. The caller
        may update the layer before it requests the next embedding: the activation was computed before (Algorithm 1).
        """
        for layer in self:
            passed, embedding = layer(rows)
            rows = detached(passed)
            del passed
            yield embedding

    def joint_embeddings(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield the embedding of each layer in turn, with a graph through all layers up to it. (R, …) → (R, e_i)"""
        for layer in self:
            rows, embedding = layer(rows)
            yield embedding

    def forward(self, rows: Tensor) -> Tensor:
        """Return the activation of the last layer, with a graph through all layers. (R, …) → (R, …)"""
        return activation(self._through(rows)[0])

    def embed(self, rows: Tensor) -> Tensor:
        """Return the embedding of the last layer, with a graph through all layers. (R, …) → (R, e)"""
        return self._through(rows)[1]

    def _through(self, rows: Tensor) -> tuple[Structure, Tensor]:
        embedding = rows
        for layer in self:
            rows, embedding = layer(rows)
        return rows, embedding


def _fitted(
    block: nn.Module, number: int, rows: Structure, embedding: int, dropout: float, length: str
) -> tuple[Layer, Structure]:
    """Return a block as a layer with a head that fits, and what it passes on for these rows."""
    where = f"block {number} ({type(block).__name__})"
    require(isinstance(block, nn.Module), f"blocks must be torch.nn.Modules, got {where}.")
    layer = block if isinstance(block, Layer) else Layer(block, dropout=dropout, length=length)
    training = layer.training
    layer.eval()
    before = "the example" if number == 1 else f"the output of block {number - 1}"
    with _measuring(rows):
        passed = _tried(layer.body, rows, f"B{where[1:]} does not accept {before}", "Make their shapes and types fit.")
    count = len(activation(rows))
    for tensor in tensors(passed):
        require(
            tensor.dim() > 0 and len(tensor) == count,
            f"All tensors that {where} returns must have the rows of the batch first, here {count}, got "
            f"{tuple(tensor.shape)}: return the others in that form, or not at all.",
        )
    if layer is not block and (head := head_for(passed, embedding)) is not None:
        layer.head = head.to(activation(passed))
    with _measuring(rows):
        found = _tried(layer.embed, passed, f"The head of {where} does not accept its activation", "Change its size.")
        check_embedding(found, count, where)
        layer.embedding_size = found.shape[1]
        if layer.passes_embedding:
            passed = found
    layer.train(training)
    return layer, passed


def _tried(module: Callable[[Structure], Any], rows: Structure, mistake: str, remedy: str) -> Any:
    """Call a module of the user's, and say in a sentence what does not fit."""
    try:
        return module(rows)
    except FaustnetError:
        raise
    except Exception as error:  # any, because the module is any
        raise FaustnetError(f"{mistake}, {_describe(rows)}: {_first_line(error)} {remedy}") from error


@contextmanager
def _measuring(rows: Structure) -> Iterator[None]:
    """Compute without gradients, without a change of the random numbers, and by plain operations."""
    device = activation(rows).device
    generators = unchanged_generators(device if device.type != "meta" else torch.device("cpu"))
    with torch.no_grad(), generators, plain_operations():
        yield


def _describe(value: Any) -> str:
    """Return the shapes of a structure as text."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(value))
    return f"{type(value).__name__} of tensors {found}" if found else f"{type(value).__name__}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if text.endswith(".") else text + "."
