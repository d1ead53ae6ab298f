"""Claims: files that say which process trains which job, in a folder that commands and machines may share.

A file lock alone is not enough here. Some cluster file systems (BeeGFS, and Lustre unless mounted with `flock`) do not
share locks between machines, and Slurm users start one `reproduce` command per machine on one --out. A claim is therefore
a small JSON file. Its holder is alive if its process exists, for a process of this machine, and if it has renewed the
claim within the last STALE seconds. A short lock of the folder makes taking a claim atomic. The file also holds what
other processes need to know: the number of attempts at a job and, for the display, its epoch.
"""

import functools
import json
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psutil

from faustnet.errors import FaustnetError
from faustnet.system.locks import folder_lock

BEAT = 1.0  # seconds between two renewals of a claim
STALE = 120.0  # seconds without a renewal after which a holder counts as dead
SAME_START = 5.0  # seconds by which two readings of a process's start may differ


class Claim:
    """A claim that this process holds. `previous` is what a dead holder had written."""

    def __init__(self, path: Path, previous: dict[str, Any]):
        self.path, self.previous = path, previous
        self.facts = {
            "machine": _machine(),
            "host": platform.node(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "token": uuid4().hex,
        }
        self.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.lost:
            with suppress(OSError):
                self.path.unlink()

    def update(self, **facts: Any) -> None:
        """Write facts for other processes to read."""
        self.facts |= facts
        temporary = self.path.with_suffix(f".{self.facts['token']}")
        temporary.write_text(json.dumps(self.facts), encoding="utf-8")
        os.replace(temporary, self.path)

    def renew(self) -> None:
        with suppress(OSError):  # a network file system may fail for a moment
            os.utime(self.path)

    @property
    def lost(self) -> bool:
        """Whether another process has taken the claim, because this one had not renewed it in time."""
        try:
            facts, _ = _read(self.path)
        except FileNotFoundError:
            return True
        except OSError:  # a network file system may fail for a moment
            return False
        return facts.get("token") != self.facts["token"]


def take(path: Path) -> Claim | None:
    """Take a claim, or return None if a living process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with folder_lock(path.parent, wait=True):
        return None if holder(path) else Claim(path, facts_in(path) or {})


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold a claim, or raise an error that names its holder."""
    claim = take(path)
    if claim is None:
        who = facts_in(path) or {}
        raise FaustnetError(
            f"Process {who.get('pid')} on {who.get('host')} trains this already: wait for it, or choose another --out."
        )
    with claim, repeating(claim.renew):
        yield


def facts_in(path: Path) -> dict[str, Any] | None:
    """Return what the holder of a claim has written, alive or not."""
    try:
        return _read(path)[0]
    except OSError:
        return None


def holder(path: Path) -> dict[str, Any] | None:
    """Return what the holder of a claim has written, if it is alive."""
    try:
        facts, renewed = _read(path)
    except OSError:
        return None
    if facts.get("machine") == _machine() and not _is_running(facts["pid"], facts["started"]):
        return None
    return facts if _now(path.parent) - renewed <= STALE else None


def remove_dead(folder: Path) -> None:
    """Remove the claims of dead processes, except those of workers whose command is alive: it counts their attempts."""
    with folder_lock(folder, wait=True):
        for path in folder.glob("*.json"):
            command = (facts_in(path) or {}).get("command")
            if not holder(path) and not (command and holder(folder / f"{command}.json")):
                path.unlink(missing_ok=True)


@contextmanager
def repeating(action: Callable[[], object]) -> Iterator[None]:
    """Call a function every BEAT seconds, in a thread, until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(BEAT):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _read(path: Path) -> tuple[dict[str, Any], float]:
    """Return the facts of a claim and when it was renewed. Network file systems refresh a file's time when it is opened."""
    with path.open(encoding="utf-8") as file:
        try:
            facts = json.load(file)
        except ValueError:
            facts = {}
        return facts if isinstance(facts, dict) else {}, os.fstat(file.fileno()).st_mtime


def _now(folder: Path) -> float:
    """Return the time by the clock of the file system, which sets the times of claims as well."""
    path = folder / ".clock"
    path.touch()
    return path.stat().st_mtime


def _is_running(pid: int, started: float) -> bool:
    """Return whether a process of this machine is the one that started then, and has not ended."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < SAME_START and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@functools.cache
def _machine() -> str:
    """Return a name for the processes that share process numbers: those of a machine, or of a container on it."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return platform.node()
