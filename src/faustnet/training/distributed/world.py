"""The ranks that this process is one of, by what torchrun, Slurm or the user has put into its environment."""

import io
import os
import secrets
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
from faustnet.training.distributed.watch import First, Other, Watch

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
COME = timedelta(minutes=5)  # within which all ranks have come
BEGUN = "faustnet/begun"  # what the store knows about the run's folder


@dataclass(frozen=True)
class Ranks:
    """All of them, and which one this is."""

    rank: int
    count: int
    hosts: tuple[str, ...]  # where each one is
    store: dist.Store  # that outlives a restart by torchrun
    watch: Watch

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def of_machine(self) -> int:
        """Which of the ranks on its machine this is."""
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
        """A GPU of its own for each rank of a machine; CPUs are shared."""
        if kind.type != "cuda":
            require(kind.type == "cpu", f"Several ranks work on cpu or cuda, not on {kind.type}: choose with --device.")
            return kind
        found = torch.device("cuda", self.of_machine % torch.cuda.device_count())
        torch.cuda.set_device(found)
        taken: list[str] = [""] * self.count
        dist.all_gather_object(taken, str(torch.cuda.get_device_properties(found).uuid))
        for rank, gpu in enumerate(taken):
            require(
                taken.index(gpu) == rank,
                f"Ranks {taken.index(gpu)} and {rank} would share a GPU of {self.hosts[rank]}: start as many ranks as there "
                "are GPUs, or choose --device cpu.",
            )
        return found

    @property
    def begun(self) -> str | None:
        """The folder of the run that this job had begun before torchrun started it again."""
        return self.store.get(BEGUN).decode() if self.store.check([BEGUN]) else None

    def begin(self, folder: str) -> None:
        """Note that for such a time."""
        self.store.set(BEGUN, folder)


_here: Ranks | None = None


def here() -> Ranks | None:
    """The ranks that this process has joined, if there are several."""
    return _here


@contextmanager
def joined() -> Iterator[None]:
    """Be one of several ranks, if the environment says so. Only the first one speaks. However one of them ends, all do."""
    if not _several():
        yield
        return
    global _here
    _here = _join()
    quiet = io.StringIO()
    try:
        if _here.is_first:
            yield
        else:
            with redirect_stderr(quiet), redirect_stdout(io.StringIO()):
                yield
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        _leave(_here, code, quiet.getvalue())
        raise
    except BaseException as error:
        _here.watch.wait_for_news()
        traceback.print_exc(file=sys.__stderr__)
        _leave(_here, 1, f"faustnet: {error!r}")


def _several() -> bool:
    try:
        return int(os.environ.get("WORLD_SIZE", "1")) > 1
    except ValueError:
        return False


def _join() -> Ranks:
    missing = [name for name in NEEDED if not os.environ.get(name)]
    require(
        not missing,
        f"WORLD_SIZE says that there are several processes, but {', '.join(missing)} is not set: start them with torchrun, "
        f"or set {', '.join(NEEDED)} for each.",
    )
    address = os.environ["MASTER_ADDR"]
    try:
        rank, count, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        raise FaustnetError("RANK, WORLD_SIZE and MASTER_PORT are whole numbers: set them so.") from None
    require(0 <= rank < count, f"There are {count} ranks, numbered from 0, so none has RANK={rank}: set another.")
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    try:
        # torchrun's own process mostly has the store, and keeps it when ranks are started again.
        has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        whole = dist.TCPStore(address, port, is_master=rank == 0 and not has_store, timeout=COME)
        store = dist.PrefixStore(f"faustnet/{restarted or 0}", whole)
        watch = _watch(store, rank, address)
        store.set(f"host/{rank}", socket.gethostname())
        store.wait([f"host/{other}" for other in range(count)], COME)
        hosts = tuple(store.get(f"host/{other}").decode() for other in range(count))
        dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=count, timeout=TIMEOUT)
    except (dist.DistError, OSError, RuntimeError) as error:
        raise FaustnetError(
            f"Rank {rank} could not reach the others at {address}:{port} ({str(error).splitlines()[0]}): check that all "
            f"{count} are started, and MASTER_ADDR and MASTER_PORT."
        ) from None
    return Ranks(rank, count, hosts, whole, watch)


def _watch(store: dist.Store, rank: int, address: str) -> Watch:
    """On the first rank's machine, at a port that it tells the others together with a token."""
    if rank == 0:
        token = secrets.token_hex()
        first = First(token)
        store.set("watch", f"{first.port} {token} {socket.gethostname()}")
        return first
    store.wait(["watch"], COME)
    port, token, host = store.get("watch").decode().split()
    return Other(rank, address, int(port), token, host)


def _leave(ranks: Ranks, code: int, said: str) -> None:
    """An end that the others get to know of. After a failure they may be anywhere, and so this process ends at once."""
    if code:
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
    ranks.watch.leave(code, said.strip().splitlines()[-1] if said.strip() else "")
    if code:
        os._exit(code)
    dist.destroy_process_group()
