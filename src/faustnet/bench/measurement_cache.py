"""Measurements in new processes, kept in a file until the benchmark is complete."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from faustnet.errors import FaustnetError, require
from faustnet.system.environment import environment
from faustnet.system.files import write_whole

Entry = tuple[dict[str, Any], Any]  # module, input, code and machine; what the process measured


class MeasurementCache:
    """Measures in new processes.

    With a path, every measurement is added to this file as it comes. A benchmark that was interrupted takes them from there,
    as long as the code and the machine are the same.
    """

    def __init__(self, path: Path | None = None):
        self.path = path
        self.earlier = _read(path) if path is not None and path.exists() else []  # of interrupted benchmarks, not yet used
        self.used: list[Entry] = []  # in the file, too, until `clear`

    def holds_any_of(self, device: torch.device) -> bool:
        """Return whether there are earlier measurements with the present code on this device."""
        return any(key.get("where") == _where(device) for key, _ in self.earlier)

    def measure(self, module: str, given: dict[str, Any]) -> Any:
        """Return an earlier measurement by the `main` of a module with this input, or a new one."""
        if self.path is None:
            return measured_by(module, given)
        key = _key(module, given)
        for number, (other, found) in enumerate(self.earlier):
            if other == key:
                self.used.append(self.earlier.pop(number))
                return found
        found = measured_by(module, given)
        require(_key(module, given) == key, "The code of faustnet changed during a measurement: run the command again.")
        self.used.append((key, found))
        self._write([*self.earlier, *self.used])
        return found

    def clear(self) -> None:
        """Remove the measurements that were used, because their benchmark is complete, and those of the same module with the
        same input by other code or on another machine. Those of other benchmarks stay."""
        done = [_input(key) for key, _ in self.used]
        self.earlier = [(key, found) for key, found in self.earlier if _input(key) not in done]
        self.used = []
        self._write(self.earlier)

    def _write(self, entries: list[Entry]) -> None:
        if self.path is not None and entries:
            write_whole(self.path, b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
        elif self.path is not None:
            self.path.unlink(missing_ok=True)


def _key(module: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return what a measurement depends on, as it is read from the file."""
    return json.loads(json.dumps({"module": module, "given": given, "where": _where(torch.device(given["device"]))}))


def _input(key: dict[str, Any]) -> tuple[Any, Any]:
    return key.get("module"), key.get("given")


def _where(device: torch.device) -> dict[str, Any]:
    """Return the code and the machine of a measurement."""
    package = Path(__file__).parents[1]
    code = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".toml")):
        code.update(path.read_bytes())
    about = environment(device, seed=0)
    return {"code": code.hexdigest(), **{name: about[name] for name in ("torch", "device", "processor", "threads")}}


def _read(path: Path) -> list[Entry]:
    """Return what is in the file."""
    try:
        entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError):
        entries = [None]
    for entry in entries:
        require(
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], dict),
            f"{path} must hold measurements of an interrupted benchmark, and does not: delete it.",
        )
    return [(key, found) for key, found in entries]


def measured_by(module: str, given: dict[str, Any]) -> Any:
    """Call `main` of a module in a new process, which takes this from the standard input and prints what it measures."""
    command = [sys.executable, "-c", f"from {module} import main; main()"]
    content = json.dumps(given | {"threads": torch.get_num_threads()})
    ended = subprocess.run(command, input=content, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise FaustnetError(f"A measurement in a new process failed: {ended.stderr.strip()}")
    return json.loads(ended.stdout.splitlines()[-1])


def read_input() -> dict[str, Any]:
    """Return what `measured_by` gave this process."""
    given = json.load(sys.stdin)
    torch.set_num_threads(given["threads"])
    return given
