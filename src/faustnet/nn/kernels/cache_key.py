"""Start of Triton without reading all of it.

Triton finds compiled kernels on the disk by a key that contains a hash of its own library, half a gigabyte, which every
process computes anew. Here the key is kept in a file, and computed again when a file of Triton has changed.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import triton
from triton.runtime import cache as triton_cache

from faustnet.system.files import write_whole

FILE = "faustnet-triton-key.json"


def remember_key() -> None:
    """Let Triton take the key from the file, or write the file. Other versions of Triton may have no such key."""
    compute = getattr(triton_cache, "triton_key", None)
    if compute is not None:
        triton_cache.triton_key = cache(lambda: remembered(compute))


def remembered(compute: Callable[[], str]) -> str:
    """Return the key that the file has for the installed files of Triton; if it has none, compute and store it."""
    file, stamp = Path(triton.knobs.cache.dir) / FILE, _stamp()
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["stamp"] == stamp and isinstance(stored["key"], str):
            return stored["key"]
    key = compute()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"stamp": stamp, "key": key}).encode())
    return key


def _stamp() -> str:
    """Return a digest of the paths, sizes and times of Triton's files."""
    folder = Path(triton.__file__).parent
    found = [(str(path), *_size_and_time(path)) for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".so")]
    return hashlib.sha256(json.dumps([triton.__version__, found]).encode()).hexdigest()


def _size_and_time(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns
