"""Training in several processes, the ranks: which part each of them trains, and what happens if one fails."""

from faustnet.training.distributed.communicator import PARALLEL, Communicator, RankGrid, SingleProcess, grid_size
from faustnet.training.distributed.part import NetworkPart, RankPart, WholeNetwork
from faustnet.training.distributed.world import Ranks, current_ranks, join_ranks

__all__ = [
    "PARALLEL", "Communicator", "NetworkPart", "RankGrid", "RankPart", "Ranks", "SingleProcess", "WholeNetwork",
    "current_ranks", "grid_size", "join_ranks",
]  # fmt: skip
