"""One training in several processes, the ranks: which of them does what, and what becomes of them all if one fails."""

from faustnet.training.distributed.agreement import Agreement
from faustnet.training.distributed.arrangement import Arrangement, counts_of, from_first, require_alike
from faustnet.training.distributed.schedule import Distributed
from faustnet.training.distributed.world import Ranks, here, joined

__all__ = ["Agreement", "Arrangement", "Distributed", "Ranks", "counts_of", "from_first", "here", "joined", "require_alike"]
