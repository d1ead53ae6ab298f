"""Fetching official files: checked before they appear under their name."""

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from faustnet.errors import FaustnetError
from faustnet.system.files import PARTIAL, partials, sync_folder
from faustnet.system.locks import folder_lock

CHUNK = 1 << 16
TIMEOUT = 30  # seconds without a byte
LARGEST = 512 << 20  # bytes of a download, and of what is in an archive; CIFAR-10 has 163 MiB, unpacked 178


def fetch(urls: Sequence[str], md5: str, path: Path) -> None:
    """Download one file from the first address that gives it whole, and put it at `path` once its sum is right; if another
    process is at it, wait for that."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with folder_lock(path.parent, wait=True):
            _clear(path)
            reasons = [] if path.exists() else _fetched(urls, md5, path)
    except OSError as error:
        raise FaustnetError(f"{path} could not be written ({error.strerror}): choose another --data-dir.") from None
    if reasons:
        raise FaustnetError(
            f"{path.name} could not be downloaded ({'; '.join(dict.fromkeys(reasons))}): "
            f"fetch it by other means from {urls[0]} and put it at {path}."
        )


def _clear(path: Path) -> None:
    """Remove what attempts to make a file or a folder have left that were killed."""
    for other in partials(path):
        if other.is_dir():
            shutil.rmtree(other)
        else:
            other.unlink()


def _fetched(urls: Sequence[str], md5: str, path: Path) -> list[str]:
    """Put the file in place; or, if that was not to be, why not."""
    reasons = []
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
    os.close(descriptor)
    try:
        for url in urls:
            try:
                found = _copy(url, Path(partial))
            except (OSError, http.client.HTTPException) as error:
                reasons.append(str(getattr(error, "reason", error)) or type(error).__name__)
                continue
            if found == md5:
                os.chmod(partial, 0o644)
                os.replace(partial, path)
                sync_folder(path.parent)
                return []
            reasons.append(f"what {url} sent is damaged or incomplete")
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)
    return reasons


def _copy(url: str, path: Path) -> str:
    """Write what is at `url` to `path` and return its md5."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    console = Console(stderr=True)
    name = url.rsplit("/", 1)[-1]
    if not console.is_terminal:
        console.print(f"Downloading {name}", highlight=False)
    digest = hashlib.md5(usedforsecurity=False)
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT) as answer,
        path.open("wb") as file,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        size = answer.headers.get("Content-Length", "")
        told = size.isdecimal() and len(size) <= len(str(LARGEST))
        task = progress.add_task(name, total=int(size) if told else None)
        while chunk := answer.read(CHUNK):
            if file.tell() + len(chunk) > LARGEST:
                raise OSError(f"{url} sends more than {LARGEST >> 20} MiB")
            file.write(chunk)
            digest.update(chunk)
            progress.advance(task, len(chunk))
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def unpack_folder(archive: Path, md5: str, folder: Path, names: Sequence[str]) -> None:
    """Take just these files of `folder`'s out of a tar archive whose sum is right; they appear when all are read."""
    try:
        if not archive.is_file():  # to open a pipe would be to wait for it
            raise tarfile.TarError("it is not a file")
        with archive.open("rb") as file:
            if hashlib.file_digest(file, "md5").hexdigest() != md5:
                raise tarfile.TarError("its sum is wrong")
        with folder_lock(folder.parent, wait=True):
            _clear(folder)
            _unpack(archive, folder, names)
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError, zlib.error) as error:
        raise FaustnetError(f"{archive} could not be unpacked ({error}): delete it and run again.") from None


def _unpack(archive: Path, folder: Path, names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=PARTIAL, dir=folder.parent) as partial:
        with _expanded(archive, folder.parent) as plain, tarfile.open(fileobj=plain, mode="r:", tarinfo=_Member) as tar:
            for name in names:
                source = tar.extractfile(f"{folder.name}/{name}")
                if source is None:
                    raise tarfile.TarError(f"{name} in it is a folder")
                with (Path(partial) / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                    target.flush()
                    os.fsync(target.fileno())
        folder.mkdir(exist_ok=True)
        for name in names:
            os.replace(Path(partial) / name, folder / name)
        sync_folder(folder)


class _Member(tarfile.TarInfo):
    """An entry of an archive of plain files in folders. Links, devices and headers that change other headers are refused as
    they are met, and so are sizes that would lead back to where the reader has been."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or found.size < 0:
            raise tarfile.ReadError(f"{found.name} in it is no ordinary file")
        return found


@contextmanager
def _expanded(archive: Path, folder: Path) -> Iterator[BinaryIO]:
    """What was zipped, in a file without a name in this folder."""
    with gzip.open(archive) as zipped, tempfile.TemporaryFile(dir=folder) as plain:
        while chunk := zipped.read(CHUNK):
            if plain.tell() + len(chunk) > LARGEST:
                raise tarfile.TarError(f"it expands to more than {LARGEST >> 20} MiB")
            plain.write(chunk)
        plain.seek(0)
        yield plain
