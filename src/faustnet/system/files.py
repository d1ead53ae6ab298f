"""Files that are whole or not there, whenever the process that writes them is killed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PARTIAL = ".part"  # how a file that is being written ends


def write_whole(path: Path, content: bytes) -> None:
    """Put a whole file in place, or leave what was there."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def prepared(path: Path, content: bytes) -> Iterator[None]:
    """Write a file under another name, and put it in place when the block has ended well."""
    with writing(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        yield


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to be written under another name, which is put in place when the block has ended well."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk has no name
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def sync_folder(folder: Path) -> None:
    """See to it that the names in a folder outlast a power cut, on systems that can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            with suppress(OSError):  # the file is in place; some file systems cannot do more
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_partial(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(PARTIAL)


def partials(path: Path) -> list[Path]:
    """What is left of attempts to write a file that were killed, unless somebody is at it now."""
    if not path.parent.is_dir():
        return []
    return [other for other in path.parent.iterdir() if is_partial(other) and other.name.startswith(f".{path.name}.")]
