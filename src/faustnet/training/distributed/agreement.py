"""Stop all ranks before the same batch."""

import time

import torch
from torch import distributed as dist

SECONDS = 0.5  # between two votes, approximately


class Agreement:
    """Stops all ranks before the same batch when one of them is asked to stop.

    The ranks vote every few batches by an asynchronous all-reduce. The result is read at the next vote, so that no rank
    waits for another that is a few batches behind. Rank 0 measures time and sets the number of batches until the next vote.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new training."""
        self.every, self.left = 1, 0
        self.vote: tuple[torch.Tensor, dist.Work] | None = None
        self.began, self.batches = time.monotonic(), 0  # time of the last vote, and batches since

    def stops(self, asked: bool) -> bool:
        """Before each batch: return whether to stop."""
        if not self.left:
            if self._result():
                return True
            elapsed = time.monotonic() - self.began
            every = int(self.batches * SECONDS / elapsed) if self.batches else self.every
            self._start_vote(asked, min(max(every, 1), 2 * self.every))
            self.left = self.every
        self.left -= 1
        self.batches += 1
        return False

    def stops_now(self, asked: bool) -> bool:
        """Between epochs, where all ranks wait for each other anyway: return whether to stop."""
        before = self._result()
        self._start_vote(asked or before, self.every)
        self.left = 0
        return self._result()

    def _start_vote(self, asked: bool, every: int) -> None:
        self.began, self.batches = time.monotonic(), 0
        vote = torch.tensor([int(asked), every if dist.get_rank() == 0 else 0])
        work = dist.all_reduce(vote, dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        self.vote = vote, work

    def _result(self) -> bool:
        if self.vote is None:
            return False
        vote, work = self.vote
        work.wait()
        self.vote = None
        stop, self.every = vote.tolist()
        return bool(stop)
