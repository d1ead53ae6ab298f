"""Locks on folders that only one process at a time may write to."""

import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from faustnet.errors import FaustnetError

LOCK = ".faustnet.lock"  # in the locked folder; names the process that holds the lock


class FolderLockedError(FaustnetError):
    """Another process writes to a folder."""


@contextmanager
def folder_lock(folder: Path, *, wait: float = 0) -> Iterator[None]:
    """Hold the lock of a folder. If another process holds it for longer than `wait` seconds, raise an error that names that
    process.

    The operating system releases the lock when the process ends, however it ends. A lock file that a killed process has left
    behind locks nothing.
    """
    path = folder / LOCK
    lock = FileLock(path)  # becomes a SoftFileLock, whose file is the lock, where the file system has no locks
    try:
        lock.acquire(timeout=-1 if wait == math.inf else wait)
    except Timeout:
        ended = f"; if that process has been killed, delete {path}" if isinstance(lock, SoftFileLock) else ""
        raise FolderLockedError(
            f"{folder} is in use by {_holder(path)}: wait until it has finished, or choose another folder{ended}."
        ) from None
    except OSError as error:
        raise FaustnetError(
            f"{folder} could not be locked for writing ({error.strerror}): choose another folder, or change its permissions."
        ) from None
    try:
        if isinstance(lock, SoftFileLock):
            yield
        else:
            with _named_holder(path):
                yield
    finally:
        lock.release()


def check_unlocked(folder: Path) -> None:
    """Raise an error if another process writes to a folder. The folder may be missing."""
    if (folder / LOCK).exists():
        with folder_lock(folder):
            pass


@contextmanager
def _named_holder(path: Path) -> Iterator[None]:
    """Write the name of this process into a lock file that it holds, and remove the file at the end."""
    holder = f"{os.getpid()}\n{socket.gethostname()}\n"  # as in the file of a SoftFileLock
    with suppress(PermissionError):  # Windows lets nobody write to a locked file
        path.write_text(holder)
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_text() == holder:  # otherwise the folder was removed meanwhile, and the file is another process's
                path.unlink()


def _holder(path: Path) -> str:
    try:
        process, machine = path.read_text().splitlines()[:2]
    except (OSError, ValueError):  # the holder has not written its name yet, or is about to remove the file
        return "another process"
    return f"process {process} on {machine}"
