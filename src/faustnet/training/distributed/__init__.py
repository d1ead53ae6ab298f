"""One training in several processes, the ranks: who trains what, and what happens if one of them fails."""

from faustnet.training.distributed.communicator import Communicator, RankGrid, SingleProcess, grid_size
from faustnet.training.distributed.part import NetworkPart, RankPart, WholeNetwork
from faustnet.training.distributed.world import Ranks, here, joined

__all__ = [
    "Communicator", "NetworkPart", "RankGrid", "RankPart", "Ranks", "SingleProcess", "WholeNetwork", "grid_size", "here",
    "joined",
]  # fmt: skip
