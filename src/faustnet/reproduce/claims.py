"""Who is at work on what, in a folder that processes, commands and machines may share: files that say so."""

import functools
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from faustnet.errors import FaustnetError

BEAT = 1.0  # seconds between two signs of life
STALE = 120.0  # seconds without one, after which a process on another machine is taken for dead


class Claim:
    """A file that a process holds as long as it lives. It is locked, which ends with the process; and its time is renewed
    at every beat, for machines that do not see each other's locks. `before` is what a dead holder had said there."""

    def __init__(self, path: Path, file: int, before: dict[str, Any]):
        self.path, self.file, self.before = path, file, before
        self.facts = {"machine": _machine(), "host": platform.node(), "pid": os.getpid(), "token": uuid4().hex}
        self.say()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def say(self, **facts: Any) -> None:
        """Write down what others may want to know."""
        self.facts |= facts
        text = json.dumps(self.facts).encode()
        os.lseek(self.file, 0, os.SEEK_SET)
        os.write(self.file, text)
        os.ftruncate(self.file, len(text))

    def beat(self) -> None:
        with suppress(OSError):  # a file system that does not answer for a moment
            os.utime(self.path)

    @property
    def time(self) -> float:
        """Of the last beat, by the clock of the file system."""
        return os.fstat(self.file).st_mtime

    @property
    def lost(self) -> bool:
        """Whether another machine has taken it, since this one gave no sign for too long."""
        try:
            file = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return True
        except OSError:  # a file system that does not answer for a moment
            return False
        try:
            return _read(file).get("token", self.facts["token"]) != self.facts["token"]
        finally:
            os.close(file)

    def release(self) -> None:
        if self.file >= 0:
            if not self.lost:  # while it is locked, so that nobody can take it meanwhile
                with suppress(OSError):
                    self.path.unlink()
            os.close(self.file)
            self.file = -1


def take(path: Path, clock: float) -> Claim | None:
    """A claim, unless a living process holds it. `clock` is the file system's time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        _locked(file, wait=True)
        return Claim(path, file, {})
    except FileExistsError:
        pass
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:  # it has been given back this moment: whoever asks again will find out what came of it
        return None
    with suppress(FileNotFoundError):
        if _abandoned(file, clock) and os.path.samestat(os.fstat(file), path.stat()):
            return Claim(path, file, _read(file))
    os.close(file)
    return None


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold a claim, or say who does."""
    claim = take(path, time.time())
    if claim is None:
        who = holder_of(path) or {}
        raise FaustnetError(
            f"Process {who.get('pid')} on {who.get('host')} trains that already: wait for it, or choose another --out."
        )
    with claim, Beating(claim.beat):
        yield


def holder_of(path: Path, clock: float | None = None) -> dict[str, Any] | None:
    """What the process that holds a claim has said; with `clock` only if it is alive."""
    try:
        file = os.open(path, os.O_RDWR)  # network file systems look anew at what is opened
    except OSError:
        return None
    try:
        return None if clock is not None and _abandoned(file, clock, shared=True) else _read(file)
    finally:
        os.close(file)


def time_of(path: Path) -> float | None:
    """When the holder of a claim gave its last sign of life, by the clock of the file system."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.fstat(file).st_mtime
    finally:
        os.close(file)


def sweep(folder: Path, clock: float) -> None:
    """Take away what the dead have left there, but for claims that a living command still counts."""
    for path in [*folder.glob("*.command"), *folder.glob("*.claim")]:
        command = (holder_of(path) or {}).get("command")
        if not (folder / f"{command}.command").exists() and (claim := take(path, clock)):
            claim.release()


class Beating:
    """Does something at every beat, in a thread of its own, until the end of the block."""

    def __init__(self, beat: Callable[[], object]):
        self.beat, self.ended = beat, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.ended.wait(BEAT):
            self.beat()


def _abandoned(file: int, clock: float, *, shared: bool = False) -> bool:
    """Whether nobody alive holds this file; if so it is locked now. The lock alone decides on one machine."""
    locked = _locked(file, shared=shared)
    if locked is False:
        return False
    same_machine = locked is not None and _read(file).get("machine") == _machine()
    return same_machine or clock - os.fstat(file).st_mtime > STALE


def _locked(file: int, *, shared: bool = False, wait: bool = False) -> bool | None:
    """Lock a file if nobody else has; nothing where there are no locks."""
    try:
        import fcntl

        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, and some network file systems
        return None
    return True


def _read(file: int) -> dict[str, Any]:
    """What is said in a claim; nothing while it is being written."""
    try:
        os.lseek(file, 0, os.SEEK_SET)
        facts = json.loads(os.read(file, 4096))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


@functools.cache
def _machine() -> str:
    """A name that no other machine has, where the system knows one: several may be called localhost."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()
