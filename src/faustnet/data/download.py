"""Downloads of the built-in data sets. A file appears under its name only when it is complete and its checksum is right."""

import hashlib
import math
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from faustnet.errors import FaustnetError
from faustnet.system.files import PARTIAL, move_whole, partials
from faustnet.system.locks import folder_lock

CHUNK = 1 << 16  # bytes
TIMEOUT = 30  # seconds without a byte
LARGEST = 512 << 20  # bytes of a download, and of an unpacked archive; CIFAR-10 has 163 MiB, unpacked 178


def data_folder(chosen: Path | None = None) -> Path:
    """Return the folder of the built-in data sets: `chosen`, or FAUSTNET_DATA, or the cache folder of the user."""
    if chosen or os.environ.get("FAUSTNET_DATA"):
        return chosen or Path(os.environ["FAUSTNET_DATA"])
    try:
        from platformdirs import user_cache_path  # not needed to train on data whose folder is known
    except ImportError:
        raise FaustnetError(
            "The default data folder needs the package platformdirs: install it, or set FAUSTNET_DATA to a folder."
        ) from None
    return user_cache_path("faustnet", appauthor=False)


def fetch(urls: Sequence[str], md5: str, path: Path) -> None:
    """Download a file to `path` from the first address that provides it with the right checksum. If another process is
    downloading to the same folder, wait for it. An existing file is used as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with folder_lock(path.parent, wait=math.inf):
            remove_partials(path)
            reasons = [] if path.exists() else _download(urls, md5, path)
    except OSError as error:
        raise FaustnetError(
            f"{path} could not be written ({error.strerror}): choose another folder with FAUSTNET_DATA or --data-dir."
        ) from None
    if reasons:
        raise FaustnetError(
            f"{path.name} could not be downloaded ({'; '.join(dict.fromkeys(reasons))}): "
            f"download {urls[0]} yourself and save it as {path}."
        )


def remove_partials(path: Path) -> None:
    """Remove the temporary files and folders of killed attempts to make a file or a folder."""
    for other in partials(path):
        if other.is_dir():
            shutil.rmtree(other)
        else:
            other.unlink()


def _download(urls: Sequence[str], md5: str, path: Path) -> list[str]:
    """Download a file; return the reasons why it failed, or an empty list."""
    try:
        import pooch  # not needed to train on data that have been downloaded
        from requests import RequestException
    except ImportError:
        return ["downloads need the package pooch, which is not installed"]
    pooch.get_logger().setLevel("WARNING")  # the progress bar says enough
    reasons = []
    for url in urls:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent) as partial:
            try:
                found = pooch.retrieve(url, f"md5:{md5}", fname=path.name, path=partial, downloader=_receive)
            except RequestException as error:
                reasons.append(_innermost(error))
            except ValueError:  # a wrong checksum, or a header that makes no sense
                reasons.append(f"the file at {url} is damaged or incomplete")
            else:
                move_whole(Path(found), path)
                return []
    return reasons


def _innermost(error: BaseException) -> str:
    """Return the message of the error that caused all others, such as "Connection refused"."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _receive(url: str, target: str, pooch: object) -> None:
    """Download a file of limited size with a progress bar. The arguments are those of a downloader of pooch."""
    import requests

    name, console = url.rsplit("/", 1)[-1], Console(stderr=True)
    if not console.is_terminal:
        console.print(f"Downloading {name}", highlight=False)
    columns = TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    headers = {"Accept-Encoding": "identity"}  # the checksum is of the bytes sent
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        requests.get(url, stream=True, timeout=TIMEOUT, headers=headers) as answer,
        Path(target).open("wb") as file,
    ):
        answer.raise_for_status()
        task = bar.add_task(name, total=int(answer.headers.get("Content-Length", 0)) or None)
        for chunk in answer.iter_content(CHUNK):
            if file.tell() + len(chunk) > LARGEST:
                raise requests.RequestException(f"{url} sends more than {LARGEST >> 20} MiB")
            file.write(chunk)
            bar.advance(task, len(chunk))


def unpack_folder(archive: Path, md5: str, folder: Path, names: Sequence[str]) -> None:
    """Extract the files `names` of `folder` from a tar archive with this checksum. They appear when all have been read."""
    try:
        if not archive.is_file():  # opening a pipe would block
            raise tarfile.TarError("it is not a regular file")
        with archive.open("rb") as file:
            if hashlib.file_digest(file, "md5").hexdigest() != md5:
                raise tarfile.TarError("its checksum is wrong")
        with folder_lock(folder.parent, wait=math.inf):
            remove_partials(folder)
            _unpack(archive, folder, names)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise FaustnetError(f"{archive} could not be unpacked ({error}): delete it and run the command again.") from None


def _unpack(archive: Path, folder: Path, names: Sequence[str]) -> None:
    missing = [f"{folder.name}/{name}" for name in names]
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=PARTIAL, dir=folder.parent) as partial:
        with tarfile.open(archive, "r|gz", tarinfo=_Member) as tar:  # a stream, which cannot go back
            for member in tar:
                if tar.offset > LARGEST:
                    raise tarfile.TarError(f"it expands to more than {LARGEST >> 20} MiB")
                if member.name in missing and (source := tar.extractfile(member)):
                    with source, (Path(partial) / Path(member.name).name).open("wb") as target:
                        shutil.copyfileobj(source, target)
                    missing.remove(member.name)
        if missing:
            raise tarfile.TarError(f"it has no file {missing[0]}")
        folder.mkdir(exist_ok=True)
        for name in names:
            move_whole(Path(partial) / name, folder / name)


class _Member(tarfile.TarInfo):
    """Entry of an archive of regular files and folders. Links, devices, headers that change other headers, and negative
    sizes are refused."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or found.size < 0:
            raise tarfile.ReadError(f"{found.name} in it is not a regular file")
        return found
