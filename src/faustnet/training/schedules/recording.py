"""What is done ahead, so that a step is only what the device does: tables of what comes, and recorded steps."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from faustnet.system.randomness import unchanged_generators

WARM_UP = 3  # times that work is done, and undone, before it is recorded
AT_ONCE = 8  # steps that are recorded together


class Plan:
    """What the coming steps do, as tables on the device with a row for each step. Whoever reads a row moves on by one.

    The tables lie side by side as one, because reading a row takes as long for one as for all of them.
    """

    def __init__(self, device: torch.device):
        self.table: Tensor | None = None  # (steps, numbers), whole numbers or the bits of others
        self.kinds: list[tuple[torch.dtype, torch.Size]] = []  # of a row of each table
        self.device = device
        # mps has no double precision: there the table stays on the CPU, and what is read goes over in single.
        self.position = torch.zeros(1, dtype=torch.long, device="cpu" if device.type == "mps" else device)

    def lay_out(self, tables: Sequence[Tensor], position: int) -> None:
        """Tables (steps, …) of int64 or float64, of the same size each time: a recorded step reads them where they were
        put first."""
        self.kinds = [(table.dtype, table.shape[1:]) for table in tables]
        whole = torch.cat([table.contiguous().view(torch.int64).reshape(len(table), -1) for table in tables], dim=1)
        if self.table is None:
            self.table = torch.empty_like(whole, device=self.position.device)
        self.table.copy_(whole)
        self.position.fill_(position)

    def read(self) -> list[Tensor]:
        assert self.table is not None
        row = self.table.index_select(0, self.position)[0]
        self.position += 1
        parts = row.split([shape.numel() for _, shape in self.kinds])
        found = [part.view(dtype).view(shape) for part, (dtype, shape) in zip(parts, self.kinds, strict=True)]
        if self.device.type == "mps":
            found = [part.float() if part.is_floating_point() else part for part in found]
        return [part.to(self.device) for part in found]


class Repeated:
    """Work that is done again and again. On a GPU it is recorded, AT_ONCE times over, and replayed when so many are due:
    between two replays a GPU is idle for a while.

    `work(n)` does it n times; `changes()` is all that it changes, which recording leaves as it was.
    `supplied(n)` sees, while it is done n times, that what it is done with is there.
    """

    def __init__(
        self,
        work: Callable[[int], None],
        changes: Callable[[], Sequence[Tensor]],
        recorded: bool = False,
        supplied: Callable[[int], AbstractContextManager[None]] = nullcontext,  # type: ignore[assignment]
    ):
        self.work, self.changes, self.supplied = work, changes, supplied
        self.recorded = recorded
        self.due = 0
        self.recordings: dict[int, Recording] = {}

    def once_more(self) -> None:
        """Now, or together with the next ones."""
        self.due += 1
        if self.due == AT_ONCE or not self.recorded:
            self.catch_up()

    def catch_up(self) -> None:
        """Do what is due."""
        for times in (AT_ONCE, 1):
            while self.due >= times:
                with self.supplied(times):
                    self._do(times)
                self.due -= times

    def _do(self, times: int) -> None:
        if not self.recorded:
            self.work(times)
            return
        if times not in self.recordings:
            self.recordings[times] = Recording(functools.partial(self.work, times), self.changes())
        self.recordings[times]()


class Recording:
    """Some work as one CUDA graph, to be replayed by calling it. The work is kept because the graph uses its tensors where
    they lie."""

    def __init__(self, work: Callable[[], None], changes: Sequence[Tensor]):
        self.work = work
        self.graph = torch.cuda.CUDAGraph()
        before = [tensor.detach().clone() for tensor in changes]
        device = before[0].device
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with unchanged_generators(device), torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                work()
                with torch.no_grad():
                    for tensor, value in zip(changes, before, strict=True):
                        tensor.copy_(value)
        torch.cuda.current_stream(device).wait_stream(aside)
        # Another thread may copy images meanwhile, and is not to be refused what this one must not do.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            work()

    def __call__(self) -> None:
        self.graph.replay()
