"""Communication between the ranks of one training, and the grid that they form."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from faustnet.errors import FaustnetError, require
from faustnet.training.distributed.agreement import Agreement

PARALLEL = ("data", "layers")
TIMEOUT = timedelta(days=7)  # a rank waits for another as long as that one lives

Value = TypeVar("Value")


def grid_size(parallel: str, ranks: int) -> tuple[int, int]:
    """Return the numbers of ranks that divide the rows and the layers, for --parallel data, layers or a grid such as 2x2."""
    if parallel in PARALLEL:
        return (ranks, 1) if parallel == "data" else (1, ranks)
    grid = re.fullmatch(r"([1-9]\d{0,5})[x×]([1-9]\d{0,5})", parallel)
    if grid is None:
        raise FaustnetError(f"--parallel must be data, layers, or a grid (rows x layers) such as 2x2, got {parallel!r}.")
    rows, layers = int(grid[1]), int(grid[2])
    require(
        rows * layers == ranks,
        f"--parallel {parallel} requires {rows * layers} ranks, got {ranks}: start that number, or use another grid.",
    )
    return rows, layers


class Communicator(ABC):
    """Communication between the processes of one training. With one process, there is none."""

    is_first: bool  # whether this is the process that evaluates, prints and writes files
    alone: bool  # whether it is the only one

    @abstractmethod
    def begin(self) -> None:
        """Start a new training."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks have come here."""

    @abstractmethod
    def broadcast(self, value: Value) -> Value:
        """Return the first rank's value on all ranks."""

    @abstractmethod
    def require_equal(self, value: str, what: str) -> None:
        """Wait until all ranks have come here, and refuse to train if their values differ."""

    @abstractmethod
    def stops(self, asked: bool) -> bool:
        """Before a batch: return whether to stop, because a rank was asked to."""

    @abstractmethod
    def stops_now(self, asked: bool) -> bool:
        """Between epochs: return whether to stop."""


class SingleProcess(Communicator):
    is_first = alone = True

    def begin(self) -> None:
        pass

    def barrier(self) -> None:
        pass

    def broadcast(self, value: Value) -> Value:
        return value

    def require_equal(self, value: str, what: str) -> None:
        pass

    def stops(self, asked: bool) -> bool:
        return asked

    def stops_now(self, asked: bool) -> bool:
        return asked


@dataclass(frozen=True)
class RankGrid(Communicator):
    """All ranks as a grid of rows × layers. The ranks that divide the rows of one stage's layers are neighbours, because
    they exchange more than stages do."""

    row_ranks: int
    stages: int
    device: torch.device  # of this rank
    device_group: dist.ProcessGroup  # of all ranks, for tensors on the device
    row_group: dist.ProcessGroup  # of the ranks of this stage
    stage_group: dist.ProcessGroup  # of the first rank of each stage, for tensors on the host
    agreement: Agreement = field(default_factory=Agreement)
    alone = False

    @classmethod
    def create(cls, row_ranks: int, stages: int, device: torch.device) -> "RankGrid":
        """Create the groups; every rank must call this. NCCL connects GPUs, and gloo CPUs."""
        backend = "nccl" if device.type == "cuda" else "gloo"
        whole = dist.new_group(backend=backend, timeout=TIMEOUT)
        ranks = range(row_ranks * stages)
        by_stage = [
            dist.new_group(list(ranks[stage * row_ranks : (stage + 1) * row_ranks]), backend=backend, timeout=TIMEOUT)
            for stage in range(stages)
        ]
        first = dist.new_group(list(ranks[::row_ranks]), backend="gloo", timeout=TIMEOUT)
        return cls(row_ranks, stages, device, whole, by_stage[dist.get_rank() // row_ranks], first)

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        return self.rank == 0

    @property
    def stage(self) -> int:
        return self.rank // self.row_ranks

    @property
    def row_rank(self) -> int:
        """The number of this rank's shard of the rows."""
        return self.rank % self.row_ranks

    def begin(self) -> None:
        self.agreement.reset()

    def barrier(self) -> None:
        broadcast(None)

    def broadcast(self, value: Value) -> Value:
        return broadcast(value)

    def require_equal(self, value: str, what: str) -> None:
        require_equal(value, what)

    def stops(self, asked: bool) -> bool:
        return self.agreement.stops(asked)

    def stops_now(self, asked: bool) -> bool:
        return self.agreement.stops_now(asked)


def broadcast(value: Value) -> Value:
    """Return the first rank's value on all ranks."""
    values = [value if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(values, src=0)
    return values[0]  # type: ignore[return-value]


def require_equal(value: str, what: str) -> None:
    """Refuse to train if a rank has another value than the first: the ranks would wait for each other for ever, or learn
    something else than one process."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, value)
    for rank, other in enumerate(found):
        require(other == found[0], f"Rank {rank} has a different {what} than rank 0: give all ranks the same.")


Tensors = dict[str, Tensor]


def gather_tensors(own: list[Tensors], grid: RankGrid) -> list[list[Tensors]]:
    """Return on rank 0 the tensors of the first ranks of the other stages, on the CPU; on other ranks, nothing. All tensors
    of a stage are sent in one message of bytes."""
    group = grid.stage_group
    flat = [tensor.cpu().contiguous().view(-1).view(torch.uint8) for tensors in own for tensor in tensors.values()]
    kinds = [[(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()] for tensors in own]
    if not grid.is_first:
        dist.gather_object(kinds, group=group)
        dist.send(torch.cat(flat), 0, group)
        return []
    found: list[Any] = [None] * grid.stages
    dist.gather_object(kinds, found, group=group)
    return [_received(kinds, stage * grid.row_ranks, group) for stage, kinds in enumerate(found) if stage]


def _received(kinds: list[list[tuple[str, torch.Size, torch.dtype]]], rank: int, group: dist.ProcessGroup) -> list[Tensors]:
    """Receive tensors with these names, shapes and types from a rank."""
    sizes = [shape.numel() * dtype.itemsize for part in kinds for _, shape, dtype in part]
    whole = torch.empty(sum(sizes), dtype=torch.uint8)
    dist.recv(whole, rank, group)
    pieces = iter(whole.split(sizes))
    return [{name: next(pieces).clone().view(dtype).view(shape) for name, shape, dtype in part} for part in kinds]


def balanced_stages(costs: Sequence[int], stages: int) -> list[range]:
    """Divide layers into stages of at least one layer, such that the cost of the most expensive stage is smallest."""
    require(
        stages <= len(costs),
        f"--parallel needs at least {stages} layers for {stages} groups of ranks, got {len(costs)}: "
        "start fewer ranks, or use --parallel data.",
    )
    sums = [0, *accumulate(costs)]
    # For the first n layers: the smallest cost of the most expensive of s + 1 stages, and the start of the last stage.
    best = [(total, 0) for total in sums]
    begins = []
    for stage in range(1, stages):
        best = [
            min(
                ((max(best[cut][0], sums[count] - sums[cut]), cut) for cut in range(stage, count)),
                default=(sums[-1] + 1, 0),
            )
            for count in range(len(sums))
        ]
        begins.append([cut for _, cut in best])
    cuts = [len(costs)]
    for begin in reversed(begins):
        cuts.append(begin[cuts[-1]])
    return [range(first, last) for first, last in pairwise([0, *reversed(cuts)])]
