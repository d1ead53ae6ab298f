"""Measurements in new processes, kept in a file until the benchmark is complete."""

import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from faustnet.errors import FaustnetError
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
        self.earlier = _read(path) if path is not None and path.exists() else []  # of interrupted benchmarks

    def measure(self, module: str, given: dict[str, Any]) -> Any:
        """Return an earlier measurement by the `main` of a module with this input, or a new one."""
        if self.path is None:
            return measured_by(module, given)
        key = json.loads(json.dumps({"module": module, "given": given, "where": _code_and_machine(given["device"])}))
        for number, (other, found) in enumerate(self.earlier):
            if other == key:
                del self.earlier[number]
                return found
        found = measured_by(module, given)
        with self.path.open("ab") as file:
            file.write(_line((key, found)))
        return found

    def clear(self) -> None:
        """Remove all measurements of this benchmark from the file. Those of others stay."""
        if self.path is None or not self.path.exists():
            return
        if self.earlier:
            write_whole(self.path, b"".join(map(_line, self.earlier)))
        else:
            self.path.unlink()


def _line(entry: Entry) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _read(path: Path) -> list[Entry]:
    """Return what is in the file. What follows its last complete line is cut off."""
    whole = path.read_bytes()
    complete = whole[: whole.rfind(b"\n") + 1]
    try:
        entries = [json.loads(line) for line in complete.splitlines()]
    except ValueError:
        entries = [None]
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], dict):
            raise FaustnetError(f"{path} must hold measurements of an interrupted benchmark, and does not: delete it.")
    if complete != whole:
        write_whole(path, complete)
    return [(key, found) for key, found in entries]


@cache
def _code_and_machine(device: str) -> dict[str, Any]:
    package = Path(__file__).parents[1]
    code = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        code.update(path.read_bytes())
    about = environment(torch.device(device), seed=0)
    return {"code": code.hexdigest(), **{name: about[name] for name in ("torch", "device", "processor", "threads")}}


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
