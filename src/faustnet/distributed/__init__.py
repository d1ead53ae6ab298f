"""One training in several processes, the ranks: which of them does what, and what becomes of them all if one fails."""

from faustnet.distributed.agreement import Agreement
from faustnet.distributed.arrangement import Arrangement, counts_of
from faustnet.distributed.schedule import Distributed

__all__ = ["Agreement", "Arrangement", "Distributed", "counts_of"]
