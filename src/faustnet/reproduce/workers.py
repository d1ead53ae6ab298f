"""Backends that train jobs, all through joblib: this process, several processes of this machine, or a cluster."""

import signal
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from joblib.parallel import get_active_backend

from faustnet.errors import FaustnetError, require, unknown
from faustnet.system.devices import DEVICES, choose_device, unknown_device

BACKENDS = ("loky", "dask", "ray")
TIMEOUT = 10  # seconds to connect to a cluster


@dataclass(frozen=True)
class Workers:
    """The processes that train jobs.

    Those of "loky" are on this machine (for one job at a time, it is this process). Those of "dask" and "ray" belong to the
    cluster at `address`. `jobs` is the number of runs trained at a time: 1 by default, or all that the cluster can.
    """

    device: str = "auto"
    data_dir: Path | None = None
    jobs: int | None = None
    backend: str = "loky"
    address: str | None = None

    def __post_init__(self) -> None:
        require(self.jobs is None or self.jobs >= 1, f"--jobs must be at least 1, got {self.jobs}.")
        if self.backend not in BACKENDS:
            raise unknown("backend", self.backend, BACKENDS)
        if self.here:
            require(
                self.address is None,
                "--address needs a cluster: add --backend dask or --backend ray, or leave out --address.",
            )
            choose_device(self.device)
        else:
            example = "tcp://HOST:8786" if self.backend == "dask" else "HOST:6379"
            require(
                bool(self.address),
                f"--backend {self.backend} needs --address, such as {example}: add it, or leave out --backend to "
                "use this machine.",
            )
            require(self.device in DEVICES, f"--{unknown_device(self.device)}")

    @property
    def here(self) -> bool:
        """Whether all jobs are trained on this machine."""
        return self.backend == "loky"

    def open(self, most: int) -> AbstractContextManager["Pool"]:
        """Start or connect to workers for at most this many jobs at a time."""
        if self.here:
            return _loky(min(self.jobs or 1, most))
        return {"dask": _dask, "ray": _ray}[self.backend](self, most)


@dataclass(frozen=True)
class Pool:
    """Workers that can be called, `jobs` at a time. `lost` are the errors that report the death of a worker."""

    jobs: int
    lost: tuple[type[Exception], ...]
    children: bool = False  # workers are child processes of this one
    streams: bool = True  # results arrive one by one

    def call(self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], jobs: int) -> Iterable[Any]:
        """Return the results of a function, in any order. For one job joblib would use this process, so it gets two."""
        return_as = "generator_unordered" if self.streams else "list"
        parallel = Parallel(n_jobs=max(2, jobs), pre_dispatch=jobs, batch_size=1, return_as=return_as)
        with ignore_sigint() if self.children else nullcontext():  # children inherit it; the command handles Ctrl-C
            return parallel(delayed(function)(*some) for some in arguments)


@contextmanager
def _loky(jobs: int) -> Iterator[Pool]:
    threads = max(1, torch.get_num_threads() // jobs)
    with parallel_config("loky", inner_max_num_threads=threads), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while")  # loky replaces a worker that uses too much memory
        try:
            yield Pool(jobs, (BrokenProcessPool,), children=True)
        finally:
            get_reusable_executor().shutdown(wait=True)


@contextmanager
def _dask(workers: Workers, most: int) -> Iterator[Pool]:
    with _connecting(workers):
        from distributed import Client
        from distributed.comm import CommClosedError

        client = Client(workers.address, timeout=TIMEOUT, set_as_default=False)
    with client, parallel_config("dask", client=client):
        slots = sum(client.nthreads().values())
        require(slots > 0, f"The dask cluster at {workers.address} has no workers yet: start some with 'dask worker'.")
        backend, _ = get_active_backend()
        backend.effective_n_jobs = lambda jobs: max(2, slots)
        try:
            yield Pool(min(workers.jobs or slots, most), ())
        except (CancelledError, CommClosedError):
            raise FaustnetError(
                f"The dask cluster at {workers.address} stopped responding: run the same command again to continue."
            ) from None


@contextmanager
def _ray(workers: Workers, most: int) -> Iterator[Pool]:
    with _connecting(workers):
        import ray
        from ray.util.joblib import register_ray

        ray.init(address=workers.address, log_to_driver=False, logging_level="error")
    register_ray()
    try:
        slots = int(ray.cluster_resources().get("CPU", 0))
        require(slots > 1, f"The ray cluster at {workers.address} must have at least 2 processors, got {slots}.")
        jobs = min(workers.jobs or slots, slots, most)
        gpus = min(1.0, ray.cluster_resources().get("GPU", 0) / jobs) if workers.device == "cuda" else 0
        with parallel_config("ray", ray_remote_args={"num_gpus": gpus}):
            yield Pool(jobs, (ray.exceptions.RayError,), streams=False)
    finally:
        ray.shutdown()


@contextmanager
def _connecting(workers: Workers) -> Iterator[None]:
    """Report a missing package, or a cluster that does not answer, as an error of the user."""
    host, _, port = str(workers.address).rpartition("://")[2].rpartition(":")
    backend = workers.backend
    try:
        import_module({"dask": "distributed"}.get(backend, backend))
        if host and port.isdigit():  # fail at once if nothing listens; the clients retry for a long time
            socket.create_connection((host, int(port)), TIMEOUT).close()
        yield
    except ImportError:
        raise FaustnetError(
            f"--backend {backend} needs the package {backend}: install it with pip install 'faustnet[{backend}]'."
        ) from None
    except (OSError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FaustnetError(f"No {backend} cluster responds at {workers.address} ({reason}): check --address.") from None


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Ignore Ctrl-C inside the block."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
