"""The part of a network and of a batch's rows that one process trains."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from faustnet.errors import FaustnetError, require
from faustnet.methods import LocalMethod, Method
from faustnet.nn.layers import Layer
from faustnet.nn.row_shard import RowShard
from faustnet.nn.structure import Structure, activation, select_rows
from faustnet.system.randomness import generator_states, unchanged_generators
from faustnet.training.distributed.communicator import RankGrid, balanced_stages, gather_tensors
from faustnet.training.distributed.link import Link, RowShapes
from faustnet.training.optimisers import Updates

AHEAD = 2  # batches that a stage may be sent before it starts on them


class NetworkPart(ABC):
    """The layers and rows that this process trains, and how it gets its input and passes on its output."""

    layers: range  # their numbers
    learners: slice  # the losses that are theirs
    alone: bool  # whether this is the only process
    about: str = ""  # description for the user
    shard: RowShard | None = None  # the rows of this process, if not all
    state: dict[str, Tensor]  # of the optimiser, for layers of other processes

    @abstractmethod
    def begin(self, rows: Callable[[], Structure], left: int) -> None:
        """Prepare for an epoch with this number of batches left; `rows()` returns those of an example batch. (R, …)"""

    @abstractmethod
    def receive(self, rows: Callable[[], Structure]) -> Structure:
        """Return the input of the first of the layers: own rows from `rows()`, or from the stage before."""

    @abstractmethod
    def send(self, rows: Structure) -> None:
        """Pass on the activation of the last of the layers."""

    @abstractmethod
    def finish(self, updates: Updates, totals: Tensor) -> None:
        """End an epoch: the first rank gets all that the others have learned."""


class WholeNetwork(NetworkPart):
    """All layers and all rows in one process."""

    alone = True

    def __init__(self, method: Method):
        self.layers, self.learners = range(len(method.network)), slice(None)
        self.state = {}

    def begin(self, rows: Callable[[], Structure], left: int) -> None:
        pass

    def receive(self, rows: Callable[[], Structure]) -> Structure:
        return rows()

    def send(self, rows: Structure) -> None:
        pass

    def finish(self, updates: Updates, totals: Tensor) -> None:
        pass


class RankPart(NetworkPart):
    """One rank's part. All ranks together compute what one process computes, up to rounding.

    Rows: every rank draws the whole batch, and all random numbers, from the same generators, and works on its shard of the
    rows; see `RowParallel`.

    Layers: a stage has consecutive layers. It passes the activation of its last layer on to the next stage and goes on.
    Where later stages use dropout, the state of the generator is sent along; the first stage draws what they draw after
    them, and so its generator stays that of one process.
    """

    alone = False

    def __init__(self, method: Method, grid: RankGrid):
        if not isinstance(method, LocalMethod):
            raise FaustnetError(f"{method.name} trains its layers together, in one process: start it without torchrun.")
        require(
            not method.has_layer_loss or grid.row_ranks == 1,
            f"{type(method).__name__} has a layer_loss of its own, so batches cannot be divided among ranks: divide the "
            "layers (--parallel layers), or implement local_loss.",
        )
        self.method, self.grid = method, grid
        costs = method.network.multiplications
        self.stages = balanced_stages(costs, grid.stages)
        self.layers = self.stages[grid.stage]
        self.learners = slice(self.layers.start, self.layers.stop)
        self.drops = any(layer.dropout for layer in list(method.network)[self.stages[0].stop :])
        self.state = {}
        self.shapes: RowShapes | None = None

    @property
    def about(self) -> str:  # type: ignore[override]
        rows, stages = self.grid.row_ranks, self.grid.stages
        parts = [f"each batch divided among {rows} ranks"] if rows > 1 else []
        if stages > 1:
            spans = [f"{s.start + 1}–{s.stop}" if len(s) > 1 else f"{s.stop}" for s in self.stages]
            parts.append(f"layers {' | '.join(spans)} on {stages}{' groups of ranks' if rows > 1 else ' ranks'}")
        return ", ".join(parts)

    def begin(self, rows: Callable[[], Structure], left: int) -> None:
        self.left = left
        if self.shapes is None:
            self.shapes = self._measure(rows)
            for number in self.layers:
                self.method.network[number].set_shard(self.shard)
        self.link = Link(self.grid, self.shapes, self.layers, with_generator=self.drops)
        self.link.expect(min(AHEAD, left))

    @torch.no_grad()
    def _measure(self, rows: Callable[[], Structure]) -> RowShapes:
        """Find the shapes of the batches' rows, and refuse layers that other ranks' rows or generators would change."""
        grid = self.grid
        with unchanged_generators(grid.device):
            whole = rows()
            total = len(activation(whole))
            if grid.row_ranks > 1:
                self.shard = RowShard(grid.row_group, grid.row_rank, grid.row_ranks, total)
            received, some = [], select_rows(whole, slice(0, 2))
            for number, layer in enumerate(copy.deepcopy(self.method.network)):  # a forward pass may change buffers
                received.append(some)
                self._check_layer(number, layer, some)
                some = layer(some)[0]
        return RowShapes(total, self.shard, received)

    def _check_layer(self, number: int, layer: Layer, rows: Structure) -> None:
        """Refuse a layer that would silently compute something else than in one process."""
        before = generator_states(self.grid.device)
        layer.transform(rows)
        after = generator_states(self.grid.device)
        if any(not torch.equal(before[key], after[key]) for key in before):
            raise FaustnetError(
                f"Layer {number + 1} draws random numbers in its forward pass, which ranks would draw differently: use the "
                "layer's own dropout (network.dropout), or train in one process."
            )

    def receive(self, rows: Callable[[], Structure]) -> Structure:
        self.left -= 1
        if self.grid.stage:
            received = self.link.receive()
            self.link.expect(int(self.left >= AHEAD))
            return received
        whole = rows()
        return whole if self.shard is None else select_rows(whole, self.shard.own)

    def send(self, rows: Structure) -> None:
        assert self.shapes is not None
        self.link.send(rows)
        if self.grid.stage == 0 and self.drops:
            for number in range(self.layers.stop, len(self.method.network)):
                self.shapes.draw_dropout(number, self.method.network[number].dropout)

    def finish(self, updates: Updates, totals: Tensor) -> None:
        self.link.close(min(AHEAD, self.left))
        if self.grid.stages > 1 and self.grid.row_rank == 0:
            self._gather(updates, totals)

    @torch.no_grad()
    def _gather(self, updates: Updates, totals: Tensor) -> None:
        """Send the first rank the parameters, buffers, optimiser state and losses of all stages."""
        network = self.method.network.layers
        prefixes = tuple(f"{number}." for number in self.layers)
        learned = {name: tensor for name, tensor in network.state_dict().items() if name.startswith(prefixes)}
        found = gather_tensors([learned, updates.state(), {"totals": totals[self.learners]}], self.grid)
        for (others, state, sums), layers in zip(found, self.stages[1:], strict=False):
            own = network.state_dict()
            for name, tensor in others.items():
                own[name].copy_(tensor)
            totals[layers.start : layers.stop] = sums["totals"].to(totals.device)
            self.state |= state
