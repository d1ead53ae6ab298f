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


class Answers:
    """Asks new processes for measurements.

    With a path, every answer is added to this file as it comes. A benchmark that was interrupted takes them from there, as
    long as the code and the machine are the same.
    """

    def __init__(self, path: Path | None = None):
        self.path = path
        self.kept = _read(path) if path is not None and path.exists() else []

    def ask(self, module: str, given: dict[str, Any]) -> Any:
        """Return the answer of a module's `main`, one of those that were kept for the same question, or a new one."""
        if self.path is None:
            return answer_of(module, given)
        question = json.loads(json.dumps({"module": module, "given": given, "where": _where(given["device"])}))
        for number, (asked, answer) in enumerate(self.kept):
            if asked == question:
                del self.kept[number]
                return answer
        answer = answer_of(module, given)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([question, answer]) + "\n")
        return answer

    def clear(self) -> None:
        """Delete the file: the benchmark is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _read(path: Path) -> list[tuple[dict[str, Any], Any]]:
    """Return questions and answers. What follows the last complete line is cut off."""
    whole = path.read_bytes()
    complete = whole[: whole.rfind(b"\n") + 1]
    if complete != whole:
        write_whole(path, complete)
    return [(question, answer) for question, answer in map(json.loads, complete.splitlines())]


@cache
def _where(device: str) -> dict[str, Any]:
    """Return the code and the machine, which answers depend on."""
    package = Path(__file__).parents[1]
    code = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        code.update(path.read_bytes())
    about = environment(torch.device(device), seed=0)
    return {"code": code.hexdigest(), **{name: about[name] for name in ("torch", "device", "processor", "threads")}}


def answer_of(module: str, given: dict[str, Any]) -> Any:
    """Call `main` of a module in a new process, which takes this from the standard input and prints its answer."""
    command = [sys.executable, "-c", f"from {module} import main; main()"]
    content = json.dumps(given | {"threads": torch.get_num_threads()})
    ended = subprocess.run(command, input=content, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise FaustnetError(f"A measurement in a new process failed: {ended.stderr.strip()}")
    return json.loads(ended.stdout.splitlines()[-1])


def read_input() -> dict[str, Any]:
    """Return what `answer_of` gave this process."""
    given = json.load(sys.stdin)
    torch.set_num_threads(given["threads"])
    return given
