"""Folders that one process at a time writes to."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faustnet.errors import FaustnetError

LOCK = ".faustnet.lock"  # in the folder; it names its holder, and goes with the lock unless the holder was killed
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # what file systems without locks answer


class Held(FaustnetError):
    """Somebody else writes to a folder."""


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder's lock; if somebody has it, wait for it or raise an error that names the holder. The system takes the
    lock back when its holder dies.

    Where a file system has no locks, the file itself is the claim, and has to be deleted by hand if its holder was killed;
    nobody waits for it. Windows has neither.
    """
    if os.name == "nt":
        yield
        return
    path = folder / LOCK
    try:
        descriptor = _taken(path, wait)
    except OSError as error:
        raise FaustnetError(
            f"{folder} cannot be written to ({error.strerror}): choose another, or change its rights."
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        if _is_at(path, descriptor):
            path.unlink()
        os.close(descriptor)


def refuse_held(folder: Path) -> None:
    """Raise an error if somebody writes to a folder, which may not be there."""
    if (folder / LOCK).exists():
        with alone_in(folder):
            pass


def _taken(path: Path, wait: bool) -> int:
    """The descriptor of a lock file that is ours."""
    while True:
        descriptor, new = _opened(path)
        try:
            locked = _flocked(descriptor, wait)
            if locked is False or (locked is None and not new and not wait):
                raise _held(path, claimed=locked is None)
            if _is_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it just now


def _opened(path: Path) -> tuple[int, bool]:
    """A descriptor of the file, and whether it was made for us."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666), False


def _flocked(descriptor: int, wait: bool) -> bool | None:
    """Whether the lock is ours now; None where there are no locks."""
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _held(path: Path, *, claimed: bool) -> Held:
    holder = "another process"
    with suppress(OSError, ValueError):  # it may have gone, or not have said yet who it is
        holder = path.read_text().strip() or holder
    otherwise = f"; if that is no more, delete {path}" if claimed else ""
    return Held(f"Somebody writes to {path.parent} already, {holder}: wait for that, or choose another place{otherwise}.")
