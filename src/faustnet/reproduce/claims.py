"""Claims: leases that say which process trains which job, in a folder that commands and machines may share.

A file lock is not enough here. Some cluster file systems (BeeGFS, and Lustre unless mounted with `flock`) do not share
locks between machines, and Slurm users start one `reproduce` command per machine on one --out. A claim is therefore a
file that its holder renews. Another process takes it at once if the holder was a process of the same machine and has
ended, and otherwise after STALE seconds without a renewal.
"""

import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from filelock import SoftFileLease, Timeout

from faustnet.system.files import write_whole

CLAIMS = ".claims"  # folder in --out
BEAT = 1.0  # seconds between two renewals of a claim
STALE = 120.0  # seconds without a renewal after which a holder counts as dead


class Claim:
    """A claim, and notes of its holder for other processes. The notes of a holder that died stay."""

    def __init__(self, folder: Path, name: str):
        self.file, self.notes_file = folder / f"{name}.lock", folder / f"{name}.json"
        self.lease = SoftFileLease(
            self.file, lease_duration=STALE, heartbeat_interval=BEAT, thread_local=False, blocking=False
        )

    def take(self) -> bool:
        """Take the claim, unless a living process holds it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.lease.acquire()
        except Timeout:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.lost:
            self.notes_file.unlink(missing_ok=True)
        self.lease.release()

    @property
    def lost(self) -> bool:
        """Whether another process has taken the claim from this one, which had not renewed it in time."""
        return self.lease.compromise is not None

    @property
    def held(self) -> bool:
        """Whether a living process holds the claim. The claim of a dead process is removed."""
        if self.lease.is_locked:
            return not self.lost
        if not self.file.exists():
            return False
        if free := self.take():
            self.lease.release()
        return not free

    @property
    def holder(self) -> str:
        owner = self.lease.owner
        return f"process {owner.pid} on {owner.hostname.partition('?')[0]}" if owner else "another process"

    @property
    def notes(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.notes_file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    def write_notes(self, notes: dict[str, Any]) -> None:
        write_whole(self.notes_file, json.dumps(notes).encode())


@functools.cache  # a process has to see a claim unchanged for STALE seconds before it may take it
def claim_on(out: Path, name: str) -> Claim:
    return Claim(out / CLAIMS, name)


def remove_dead(out: Path) -> None:
    """Remove what dead processes left, except the notes of workers whose command is alive: it counts their attempts."""
    for path in (out / CLAIMS).iterdir():
        if path.suffix in (".lock", ".json"):
            claim = claim_on(out, path.stem)
            command = claim.notes.get("command")
            if not claim.held and not (command and claim_on(out, command).held):
                claim.notes_file.unlink(missing_ok=True)


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
