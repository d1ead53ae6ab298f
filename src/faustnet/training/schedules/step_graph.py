"""Steps without waiting for the device: tables that are computed ahead, and steps recorded as CUDA graphs."""

import functools
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from faustnet.errors import FaustnetError
from faustnet.system.randomness import leave_recording, unchanged_generators

WARM_UP = 3  # repetitions before recording, which are undone
STEPS = 8  # recorded together, if one step takes fewer milliseconds than
SHORT = 2.0


class StepTable:
    """What the coming steps need, as tables on the device with one row per step. Reading a row advances to the next.

    The tables are stored side by side as one, because reading a row takes as long for one table as for several.
    """

    def __init__(self, device: torch.device):
        self.table: Tensor | None = None  # (steps, numbers), int64 or the bits of float64
        self.kinds: list[tuple[torch.dtype, torch.Size]] = []  # of a row of each table
        self.device = device
        # mps has no double precision: there the table stays on the CPU, and rows are moved in single precision.
        self.position = torch.zeros(1, dtype=torch.long, device="cpu" if device.type == "mps" else device)

    def fill(self, tables: Sequence[Tensor], position: int) -> None:
        """Store tables (steps, …) of int64 or float64, of the same size each time, because a recorded step reads them in
        place; reading starts at row `position`."""
        self.kinds = [(table.dtype, table.shape[1:]) for table in tables]
        there = (table.to(self.position.device).contiguous() for table in tables)
        whole = torch.cat([table.view(torch.int64).reshape(len(table), -1) for table in there], dim=1)
        if self.table is None:
            self.table = torch.empty_like(whole)
        self.table.copy_(whole)
        self.position.fill_(position)

    def read(self) -> list[Tensor]:
        """Return the next row of each table."""
        assert self.table is not None
        row = self.table.index_select(0, self.position)[0]
        self.position += 1
        parts = row.split([shape.numel() for _, shape in self.kinds])
        found = [part.view(dtype).view(shape) for part, (dtype, shape) in zip(parts, self.kinds, strict=True)]
        if self.device.type == "mps":
            found = [part.float() if part.is_floating_point() else part for part in found]
        return [part.to(self.device) for part in found]


class StepGraph:
    """Work that is done in every step. On a GPU, one repetition is recorded as a CUDA graph and replayed. If it is short,
    `STEPS` repetitions are recorded as one graph too, and replayed when that many are due, because the GPU is idle for a
    while between two replays; if it is long, `long` repetitions are.

    `work(n)` does it n times. `changes()` returns all tensors that it changes; recording leaves them unchanged. The context
    manager `supplied(n)` makes sure that the inputs of n repetitions are available.
    """

    def __init__(
        self,
        work: Callable[[int], None],
        changes: Callable[[], Sequence[Tensor]],
        supplied: Callable[[int], AbstractContextManager[None]],
        long: int = 1,
    ):
        self.work, self.changes, self.supplied, self.long = work, changes, supplied, long
        self.recorded = False
        self.due = 0
        self.clear()

    def enqueue(self) -> None:
        """Do the work once, now or together with the next repetitions."""
        self.due += 1
        if self.due >= self.together:
            self.flush()

    def flush(self) -> None:
        """Do all work that is due."""
        for times in (self.together, 1):
            while self.due >= times:
                with self.supplied(times):
                    self._do(times)
                self.due -= times

    def clear(self) -> None:
        """Free the recordings."""
        self.recordings: dict[int, Recording] = {}
        self.together = 1  # repetitions that are replayed at once

    def _do(self, times: int) -> None:
        if not self.recorded:
            self.work(times)
        elif times in self.recordings:
            self.recordings[times]()
        elif times == 1:
            warm_up(functools.partial(self.work, 1), self.changes())
            self.recordings[1] = Recording(functools.partial(self.work, 1))
            self.together = STEPS if self.recordings[1].milliseconds(self.changes()) < SHORT else self.long
            self.recordings[1]()
        else:
            self.recordings[times] = Recording(functools.partial(self.work, times), self.recordings[1])
            self.recordings[times]()


def warm_up(work: Callable[[], None], changes: Sequence[Tensor]) -> None:
    """Do some work a few times in another stream, as CUDA graphs need, and undo it."""
    device = changes[0].device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with unchanged_generators(device), torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            with unchanged(changes):
                work()
    torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Set tensors back to their values at the end of the block."""
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)


class Recording:
    """One CUDA graph of some work, replayed by calling it. It keeps the work, whose tensors the graph uses in place.

    Nothing outlives a replay but what the work changes, so that recordings of the same work share the rest of their memory.
    """

    graph: torch.cuda.CUDAGraph

    def __init__(self, work: Callable[[], None], shares: "Recording | None" = None):
        self.work = work
        pool = shares.graph.pool() if shares else None
        self.graph = torch.cuda.CUDAGraph()
        first: BaseException | None = None  # of the work, after which CUDA may also refuse to end the recording
        # Another thread may copy images meanwhile; "thread_local" does not restrict it.
        try:
            with without_collection(), torch.cuda.graph(self.graph, pool, capture_error_mode="thread_local"):
                try:
                    work()
                except BaseException as error:
                    first = error
                    raise
        except BaseException as error:
            leave_recording()
            cause = first or error
            if not isinstance(cause, RuntimeError) or isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            reason = next(iter(str(cause).splitlines()), type(cause).__name__)
            raise FaustnetError(
                f"A training step cannot be recorded as a CUDA graph ({reason}): no layer or loss may "
                "wait for the GPU, as .item(), .cpu() and conditions on tensors do. Remove that, or train on the CPU."
            ) from cause

    def milliseconds(self, changes: Sequence[Tensor]) -> float:
        """Return how long a replay takes. What it changes is undone."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with unchanged_generators(changes[0].device):
            for _ in range(2):  # the first replay takes longer
                with unchanged(changes):
                    begin.record()
                    self()
                    end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def __call__(self) -> None:
        self.graph.replay()


@contextmanager
def without_collection() -> Iterator[None]:
    """Free no garbage in this block: freeing an older CUDA graph is an error while another one is being recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def buffers_in_place(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Write buffers that a forward pass replaces by new tensors (`self.mean = …`) back into the old ones, because a CUDA
    graph, a checkpoint and other ranks use them in place."""
    before = [(module, dict(module._buffers)) for module in modules if module._buffers]
    yield
    with torch.no_grad():
        for module, buffers in before:
            for name, old in buffers.items():
                new = module._buffers[name]
                if new is not old and new is not None and old is not None:
                    old.copy_(new)
                    module._buffers[name] = old
