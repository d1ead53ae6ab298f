"""Which rank has which rows and which layers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from faustnet.errors import FaustnetError, require

WAYS = ("data", "layers")
LONG = timedelta(days=7)  # that a rank may wait for another, as long as that one lives

Result = TypeVar("Result")


def counts_of(parallel: str, ranks: int) -> tuple[int, int]:
    """Among how many ranks rows and layers are divided: by "data", by "layers", or by both, "2x2" (rows × layers)."""
    if parallel in WAYS:
        return (ranks, 1) if parallel == "data" else (1, ranks)
    grid = re.fullmatch(r"([1-9]\d{0,5})[x×]([1-9]\d{0,5})", parallel)
    if grid is None:
        raise FaustnetError(f"--parallel is data, layers, or a grid of both such as 2x2, not {parallel!r}.")
    rows, layers = int(grid[1]), int(grid[2])
    require(
        rows * layers == ranks,
        f"--parallel {parallel} is for {rows * layers} ranks, but there are {ranks}: start as many, or choose another grid.",
    )
    return rows, layers


@dataclass(frozen=True)
class Arrangement:
    """The ranks as a grid. Those that divide the rows of one stage's layers among them are neighbours, since they have more
    to say to each other than stages have."""

    row_ranks: int
    stages: int
    device: torch.device  # of this rank
    device_group: dist.ProcessGroup  # all of them, for tensors on the device
    row_group: dist.ProcessGroup  # those of this stage
    first_of_stages: dist.ProcessGroup  # the first one of each stage, for what lies on the host

    @classmethod
    def make(cls, row_ranks: int, stages: int, device: torch.device) -> "Arrangement":
        """Of all ranks, each of which must call this; with NCCL between GPUs, and gloo between CPUs."""
        backend = "nccl" if device.type == "cuda" else "gloo"
        whole = dist.new_group(backend=backend, timeout=LONG)
        ranks = range(row_ranks * stages)
        by_stage = [
            dist.new_group(list(ranks[stage * row_ranks : (stage + 1) * row_ranks]), backend=backend, timeout=LONG)
            for stage in range(stages)
        ]
        first = dist.new_group(list(ranks[::row_ranks]), backend="gloo", timeout=LONG)
        return cls(row_ranks, stages, device, whole, by_stage[dist.get_rank() // row_ranks], first)

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def is_first(self) -> bool:
        """The rank that measures, speaks and writes files."""
        return self.rank == 0

    @property
    def stage(self) -> int:
        return self.rank // self.row_ranks

    @property
    def row_rank(self) -> int:
        """Which of the rows' slices is this rank's."""
        return self.rank % self.row_ranks


def from_first(function: Callable[[], Result]) -> Result:
    """What the first rank found, which alone has looked."""
    found = [function() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    return found[0]  # type: ignore[return-value]


def require_alike(mine: str, what: str) -> None:
    """Wait until every rank has come here, and refuse them if one has something else of this kind than the first: they would
    wait for each other for ever, or learn what one process would not."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    for rank, other in enumerate(found):
        require(other == found[0], f"Rank {rank} has another {what} than the first one: give all ranks the same.")


Tensors = dict[str, Tensor]


def gathered(own: list[Tensors], arrangement: Arrangement) -> list[list[Tensors]]:
    """On the first rank, on the host, what the first ranks of the other stages have; on those nothing. It goes over as
    bytes, all of a stage in one message."""
    group = arrangement.first_of_stages
    flat = [tensor.cpu().contiguous().view(-1).view(torch.uint8) for tensors in own for tensor in tensors.values()]
    kinds = [[(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()] for tensors in own]
    if not arrangement.is_first:
        dist.gather_object(kinds, group=group)
        dist.send(torch.cat(flat), 0, group)
        return []
    found: list[Any] = [None] * arrangement.stages
    dist.gather_object(kinds, found, group=group)
    return [_received(kinds, stage * arrangement.row_ranks, group) for stage, kinds in enumerate(found) if stage]


def _received(kinds: list[list[tuple[str, torch.Size, torch.dtype]]], rank: int, group: dist.ProcessGroup) -> list[Tensors]:
    """From a rank, tensors of these names, shapes and types."""
    sizes = [shape.numel() * dtype.itemsize for part in kinds for _, shape, dtype in part]
    whole = torch.empty(sum(sizes), dtype=torch.uint8)
    dist.recv(whole, rank, group)
    pieces = iter(whole.split(sizes))
    return [{name: next(pieces).clone().view(dtype).view(shape) for name, shape, dtype in part} for part in kinds]


def divided(costs: Sequence[int], stages: int) -> list[range]:
    """Consecutive layers for every stage, at least one, such that the dearest stage is as cheap as can be."""
    require(
        stages <= len(costs),
        f"The network has {len(costs)} layers, which cannot be divided among {stages}: start fewer ranks, or divide rows "
        "with --parallel data.",
    )
    sums = [0, *accumulate(costs)]
    # The least that the dearest of s + 1 stages costs with the first n layers, and where its last stage begins.
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
