"""Atomic files: a file is complete or missing, even if the process that writes it is killed."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PARTIAL = ".part"  # suffix of the temporary name of a file that is being written


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically. If that fails, an existing file stays as it is."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file under a temporary name, and rename it to `path` when the block ends without an error."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        move_whole(Path(temporary), path)
    except OSError as error:
        error.filename = error.filename or str(path)  # the error of a full disk names no file
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def move_whole(source: Path, target: Path) -> None:
    """Rename a complete file, so that it survives a power cut under its new name. An existing file is overwritten."""
    with source.open("rb+") as file:
        os.fsync(file.fileno())
    os.chmod(source, 0o644)
    os.replace(source, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the operating system supports that."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            with suppress(OSError):  # some file systems cannot do this for folders
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_limited(path: Path, largest: int) -> bytes:
    """Read a regular file of at most this number of bytes. Anything else, such as a pipe, is a ValueError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
        raise ValueError(f"it is not a regular file, or has more than {largest:,} bytes")
    return path.read_bytes()


def is_partial(path: Path) -> bool:
    """Return whether this is the temporary name of a file that is, or was, being written."""
    return path.name.startswith(".") and path.name.endswith(PARTIAL)


def partials(path: Path) -> list[Path]:
    """Return the temporary files of attempts to write `path`: of killed processes, or of one that is writing it now."""
    if not path.parent.is_dir():
        return []
    return [other for other in path.parent.iterdir() if is_partial(other) and other.name.startswith(f".{path.name}.")]
