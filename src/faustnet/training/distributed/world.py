"""The ranks of one training, from the environment variables that torchrun, Slurm or the user has set."""

import io
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist

from faustnet.errors import FaustnetError, require
from faustnet.training.distributed.communicator import TIMEOUT, RankGrid, Value, broadcast, require_equal
from faustnet.training.distributed.watch import Link, Watch

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
JOIN_TIMEOUT = timedelta(minutes=5)  # for all ranks to start
RUN_FOLDER = "faustnet/begun"  # key of the run's folder in the store


@dataclass(frozen=True)
class Ranks:
    """The ranks of this training, and the number of this one."""

    rank: int
    count: int
    hosts: tuple[str, ...]  # of each rank
    store: dist.Store  # kept by torchrun when it restarts the ranks
    watch: Watch

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def local_rank(self) -> int:
        """Number of this rank among the ranks on its host."""
        return self.hosts[: self.rank].count(self.hosts[self.rank])

    def broadcast(self, value: Value) -> Value:
        """Return the first rank's value on all ranks."""
        return broadcast(value)

    def from_first(self, function: Callable[[], Value]) -> Value:
        """Call a function on the first rank, and return its result on all ranks."""
        return broadcast(function() if self.is_first else None)  # type: ignore[return-value]

    def grid(self, row_ranks: int, stages: int, kind: torch.device) -> RankGrid:
        """Return all ranks as a grid, on devices of this kind."""
        require_equal(kind.type, "kind of device")
        return RankGrid.create(row_ranks, stages, self._device(kind))

    def _device(self, kind: torch.device) -> torch.device:
        """Return the device of this rank: its own GPU, or the CPU, which ranks share."""
        if kind.type != "cuda":
            require(kind.type == "cpu", f"--device must be cpu or cuda for several ranks, got {kind.type}.")
            return kind
        found = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(found)
        taken: list[str] = [""] * self.count
        dist.all_gather_object(taken, str(torch.cuda.get_device_properties(found).uuid))
        for rank, gpu in enumerate(taken):
            require(
                taken.index(gpu) == rank,
                f"Ranks {taken.index(gpu)} and {rank} would share a GPU of {self.hosts[rank]}: start one rank per GPU, or "
                "use --device cpu.",
            )
        return found

    @property
    def run_folder(self) -> str | None:
        """The folder of the run, if torchrun has restarted the ranks."""
        return self.store.get(RUN_FOLDER).decode() if self.store.check([RUN_FOLDER]) else None

    def set_run_folder(self, folder: str) -> None:
        """Store the folder of the run for a restart by torchrun."""
        self.store.set(RUN_FOLDER, folder)


_ranks: Ranks | None = None


def current_ranks() -> Ranks | None:
    """Return the ranks that this process has joined, or None if there is only one process."""
    return _ranks


@contextmanager
def join_ranks() -> Iterator[None]:
    """Join the other ranks in this block, if the environment says that there are several. Only rank 0 prints. If one rank
    fails, all end."""
    if not are_several():
        yield
        return
    global _ranks
    _ranks = _join()
    quiet = io.StringIO()
    try:
        if _ranks.is_first:
            yield
        else:
            with redirect_stderr(quiet), redirect_stdout(io.StringIO()):
                yield
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        _leave(_ranks, code, quiet.getvalue())
        raise
    except BaseException as error:
        is_sentence = isinstance(error, FaustnetError)
        if not is_sentence:
            _ranks.watch.wait_for_news()
        if _ranks.is_first or not is_sentence:  # rank 0 prints the sentences of the other ranks
            traceback.print_exc(file=sys.__stderr__)
        _leave(_ranks, 1, f"faustnet: {error if is_sentence else repr(error)}")
    else:
        _leave(_ranks, 0, "")
    finally:
        _ranks = None


def are_several() -> bool:
    try:
        return int(os.environ.get("WORLD_SIZE", "1")) > 1
    except ValueError:
        return False


def _join() -> Ranks:
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    require(
        not missing,
        f"WORLD_SIZE is above 1, but {', '.join(missing)} is not set: start the ranks with torchrun, or set "
        f"{', '.join(VARIABLES)} for each.",
    )
    address = os.environ["MASTER_ADDR"]
    given = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    try:
        rank, count, port = map(int, given)
    except ValueError:
        raise FaustnetError(f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers, got {given}.") from None
    require(0 <= rank < count, f"RANK must be from 0 to {count - 1} for WORLD_SIZE={count}, got {rank}.")
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    try:
        # torchrun usually has the store, and keeps it when it restarts the ranks.
        has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        job_store = dist.TCPStore(address, port, is_master=rank == 0 and not has_store, timeout=JOIN_TIMEOUT)
        store = dist.PrefixStore(f"faustnet/{restarted or 0}", job_store)
        store.set(f"host/{rank}", socket.gethostname())
        store.wait([f"host/{other}" for other in range(count)], JOIN_TIMEOUT)
        hosts = tuple(store.get(f"host/{other}").decode() for other in range(count))
        dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=count, timeout=TIMEOUT)
        watch = Watch(_links(store, rank, count), hosts)
    except (dist.DistError, OSError, RuntimeError) as error:
        raise FaustnetError(
            f"Rank {rank} could not connect to the others at {address}:{port} ({str(error).splitlines()[0]}): check that "
            f"all {count} ranks are running, and MASTER_ADDR and MASTER_PORT."
        ) from None
    return Ranks(rank, count, hosts, job_store, watch)


def _links(store: dist.Store, rank: int, count: int) -> dict[int, Link]:
    """Connect rank 0 with every other rank, for `Watch`. A timeout in a group closes all of its connections, so each link
    is a group of its own."""
    return {
        0 if rank else other: dist.ProcessGroupGloo(dist.PrefixStore(f"watch/{other}", store), min(rank, 1), 2, JOIN_TIMEOUT)
        for other in range(1, count)
        if rank in (0, other)
    }


def _leave(ranks: Ranks, code: int, output: str) -> None:
    """Tell the other ranks that this one ends. After a failure the process ends at once, because the others may be waiting
    for it anywhere."""
    if code:
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
    ranks.watch.leave(code, output.strip().splitlines()[-1] if output.strip() else "")
    if code:
        os._exit(code)
    dist.destroy_process_group()
