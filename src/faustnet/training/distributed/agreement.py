"""Stopping together."""

import time

import torch
from torch import distributed as dist

SECONDS = 0.5  # from vote to vote, about


class Agreement:
    """Lets all ranks stop before the same batch, when one of them was asked to.

    Every so many batches they vote, and what came of it is read at the next vote: so nobody waits for a rank that is a
    few batches behind. How many batches that are is for the first rank to say, by its clock, in the vote itself.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the votes of an earlier training."""
        self.every, self.left = 1, 0
        self.vote: tuple[torch.Tensor, dist.Work] | None = None
        self.began, self.batches = time.monotonic(), 0  # since then

    def stops(self, asked: bool) -> bool:
        """Before each batch: whether to stop here."""
        if not self.left:
            if self._counted():
                return True
            elapsed = time.monotonic() - self.began
            wanted = int(self.batches * SECONDS / elapsed) if self.batches else self.every
            self._call(asked, min(max(wanted, 1), 2 * self.every))
            self.left = self.every
        self.left -= 1
        self.batches += 1
        return False

    def stops_now(self, asked: bool) -> bool:
        """Between epochs, where all ranks wait for each other anyway."""
        before = self._counted()
        self._call(asked or before, self.every)
        self.left = 0
        return self._counted()

    def _call(self, asked: bool, every: int) -> None:
        self.began, self.batches = time.monotonic(), 0
        vote = torch.tensor([int(asked), every if dist.get_rank() == 0 else 0])
        work = dist.all_reduce(vote, dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        self.vote = vote, work

    def _counted(self) -> bool:
        if self.vote is None:
            return False
        vote, work = self.vote
        work.wait()
        self.vote = None
        stop, self.every = vote.tolist()
        return bool(stop)
