"""Who trains: this process, several beside it, or a cluster's, all of them through joblib."""

import signal
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from joblib.parallel import get_active_backend

from faustnet.errors import FaustnetError, require, unknown
from faustnet.system.devices import DEVICES, choose_device

BACKENDS = ("loky", "dask", "ray")
ANSWERS_IN = 10  # seconds that a cluster has


@dataclass(frozen=True)
class Workers:
    """How many runs are trained at a time, and by whom: loky's are processes on this machine (a single one is this
    process), dask's and ray's those of the cluster at `address`, all of them unless `jobs` says how many."""

    device: str = "auto"
    data_dir: Path | None = None
    jobs: int | None = None
    backend: str = "loky"
    address: str | None = None

    def __post_init__(self) -> None:
        require(self.jobs is None or self.jobs >= 1, f"Runs are trained by one process or more, not {self.jobs}.")
        if self.backend not in BACKENDS:
            raise unknown("backend", self.backend, BACKENDS)
        if self.here:
            require(self.address is None, "An --address is that of a cluster: say of which kind with --backend dask or ray.")
            choose_device(self.device)
        else:
            example = "tcp://HOST:8786" if self.backend == "dask" else "HOST:6379"
            require(
                bool(self.address),
                f"--backend {self.backend} works on a cluster: give its --address, like {example}; "
                "processes of this machine need no --backend.",
            )
            if self.device not in DEVICES:
                raise unknown("device", self.device, DEVICES)

    @property
    def here(self) -> bool:
        """Whether all work is done on this machine."""
        return self.backend == "loky"

    def open(self, most: int) -> AbstractContextManager["Pool"]:
        """Workers for at most so many runs at a time."""
        if self.here:
            return _loky(min(self.jobs or 1, most))
        return {"dask": _dask, "ray": _ray}[self.backend](self, most)


@dataclass(frozen=True)
class Pool:
    """Workers that can be called, so many at a time. `lost` are the errors by which the death of one becomes known."""

    jobs: int
    lost: tuple[type[Exception], ...]
    children: bool = False  # of this process
    streams: bool = True  # whether what they give comes one by one

    def call(self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], jobs: int) -> Iterable[Any]:
        """What the function gives, in any order. joblib would take this process for a single job, so it is told of two."""
        way = "generator_unordered" if self.streams else "list"
        parallel = Parallel(n_jobs=max(2, jobs), pre_dispatch=jobs, batch_size=1, return_as=way)
        with _deaf() if self.children else nullcontext():  # they inherit it: Ctrl-C is for us to pass on
            return parallel(delayed(function)(*some) for some in arguments)


@contextmanager
def _loky(jobs: int) -> Iterator[Pool]:
    with parallel_config("loky"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while")  # loky replaces one that has come to need more memory
        try:
            yield Pool(jobs, (BrokenProcessPool,), children=True)
        finally:
            get_reusable_executor().shutdown(wait=True)


@contextmanager
def _dask(workers: Workers, most: int) -> Iterator[Pool]:
    try:
        from distributed import Client
        from distributed.comm import CommClosedError
    except ImportError:
        raise _missing("dask") from None
    try:
        _knock(workers.address)
        client = Client(workers.address, timeout=ANSWERS_IN, set_as_default=False)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise _silent(workers, error) from None
    with client, parallel_config("dask", client=client):
        slots = sum(client.nthreads().values())
        require(slots > 0, f"The dask cluster at {workers.address} has no workers yet: start some with 'dask worker'.")
        backend, _ = get_active_backend()
        backend.effective_n_jobs = lambda jobs: max(2, slots)
        try:
            yield Pool(min(workers.jobs or slots, most), ())
        except (CancelledError, CommClosedError):
            gone = f"The dask cluster at {workers.address} no longer answers"
            raise FaustnetError(f"{gone}: what is done is kept, and the same command goes on.") from None


@contextmanager
def _ray(workers: Workers, most: int) -> Iterator[Pool]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise _missing("ray") from None
    try:
        _knock(workers.address)
        ray.init(address=workers.address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise _silent(workers, error) from None
    register_ray()
    try:
        slots = int(ray.cluster_resources().get("CPU", 0))
        require(slots > 1, f"The ray cluster at {workers.address} has {slots} processors, where two or more are needed.")
        jobs = min(workers.jobs or slots, slots, most)
        graphics = min(1.0, ray.cluster_resources().get("GPU", 0) / jobs) if workers.device == "cuda" else 0
        with parallel_config("ray", ray_remote_args={"num_gpus": graphics}):
            yield Pool(jobs, (ray.exceptions.RayError,), streams=False)
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Find out at once whether anybody is there; the clusters' own clients try for long."""
    host, _, port = str(address).rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), ANSWERS_IN).close()


def _missing(name: str) -> FaustnetError:
    return FaustnetError(f"--backend {name} needs the package {name}: install it with pip install 'faustnet[{name}]'.")


def _silent(workers: Workers, error: Exception) -> FaustnetError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return FaustnetError(f"No {workers.backend} cluster answers at {workers.address} ({reason}): check --address.")


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C for a moment."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
