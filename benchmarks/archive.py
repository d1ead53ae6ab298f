"""Run the blocks of docs/archive.md, and write their outputs to a file and into the page.

    python benchmarks/archive.py                   run all blocks, in a new folder; needs Omniglot; a few minutes
    python benchmarks/archive.py page              write the outputs of results/archive.json into the page

The block after a block of Python or commands, if it is one of text, is its output.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from faustnet.system.environment import environment

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "archive.md", ROOT / "results" / "archive.json"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COLUMNS = "110"  # of a terminal, for tables


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and the content of every block."""
    return [(found[1], found[2]) for found in BLOCK.finditer(page)]


def run(page: str, folder: Path) -> list[str]:
    """Run all blocks of Python and commands in a folder, and return their outputs."""
    outputs: list[str] = []
    names: dict[str, object] = {}
    with contextlib.chdir(folder):
        for language, content in blocks(page):
            if language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as shown:
                    exec(content, names)
                outputs.append(shown.getvalue())
            elif language == "sh":
                done = subprocess.run(["bash", "-c", content], env=_environment(folder), capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{content}\n{done.stderr}")
                outputs.append(done.stdout)
    return outputs


def _environment(folder: Path) -> dict[str, str]:
    """Let the commands of the page be those of this Python."""
    program = folder / ".bin" / "faustnet"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m faustnet "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "COLUMNS": COLUMNS}


def with_outputs(page: str, outputs: Sequence[str]) -> str:
    """Return the page with the outputs of its blocks in its blocks of text."""
    remaining, last = iter(outputs), ""

    def replaced(found: re.Match[str]) -> str:
        nonlocal last
        if found[1] != "text":
            last = next(remaining)
            return found[0]
        lines = [line.rstrip() for line in last.splitlines()]
        return "\n".join(["```text", *(line for line in lines if line), "```"])

    return BLOCK.sub(replaced, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "page"), default="run")
    page = PAGE.read_text(encoding="utf-8")
    if parser.parse_args().action == "run":
        with tempfile.TemporaryDirectory() as folder:
            outputs = run(page, Path(folder))
        result = {"outputs": outputs, "environment": environment(torch.device("cpu"), 0)}
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(with_outputs(page, found["outputs"]), encoding="utf-8")


if __name__ == "__main__":
    main()
