"""Versions, hardware, commit and time of a run: everything beside the recipe that a result depends on."""

import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from faustnet.version import VERSION


def environment(device: torch.device, seed: int) -> dict[str, Any]:
    """Describe this process and machine in JSON values."""
    return {
        "faustnet": VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache  # a later commit does not change the modules that are already imported
def _commit() -> str | None:
    """Return the commit of the source tree, followed by a plus sign if the package has uncommitted changes."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=package, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "version.py"):  # an installed copy inside another repository
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
