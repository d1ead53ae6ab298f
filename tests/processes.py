"""Python programs in processes of their own that start in a moment: forks of a server that has imported the package and what
a training imports, and has computed nothing."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, get_context, set_start_method
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

COMMAND = "from faustnet.__main__ import main\nmain()"
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["sklearn.datasets", "sklearn.model_selection", "torch._dynamo", "faustnet.runs.session", "faustnet.cli.launch"]
)


class Program:
    """Start Python code with these words as its arguments. Used like `subprocess.Popen` with pipes for text."""

    def __init__(
        self,
        code: str,
        *words: object,
        cwd: Path | None = None,
        env: Mapping[str, str] = {},
        new_session: bool = False,
    ):
        (read_out, out), (read_err, err) = (_FORKS.Pipe(duplex=False) for _ in range(2))
        place = (cwd or Path.cwd(), {**os.environ, **env}, new_session)
        self.process = _FORKS.Process(target=_run, args=(code, [str(word) for word in words], *place, out, err))
        self.process.start()
        self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno())) for end in (read_out, read_err))
        for end in (read_out, out, read_err, err):
            end.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for the end, and return what was written to the standard output and to the standard error."""
        with ThreadPoolExecutor(2) as threads:
            out, err = (threads.submit(_rest, file) for file in (self.stdout, self.stderr))
            self.process.join(timeout)
            if self.returncode is not None:
                return out.result(), err.result()
            self.kill()
        raise AssertionError(f"the process did not end within {timeout} seconds")


def start_ranks(count: int, code: str, *words: object, folders: Sequence[Path] = ()) -> list[Program]:
    """Start ranks as ssh or Slurm do, each in its own folder if `folders` is given."""
    about = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        Program(code, *words, env=about | {"RANK": str(rank)}, cwd=folders[rank] if folders else None)
        for rank in range(count)
    ]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_file(file: Path, *words: object, cwd: Path | None = None, env: Mapping[str, str] = {}) -> Program:
    """Like `python FILE WORDS`."""
    return Program(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')", *words, cwd=cwd, env=env)


def warm_up() -> None:
    """Let the server import what it imports while the tests are collected."""
    forkserver.ensure_running()


def _rest(file: TextIO) -> str:
    if file.closed:
        return ""
    with file:
        return file.read()


def _run(
    code: str, words: list[str], cwd: Path, env: dict[str, str], new_session: bool, out: Connection, err: Connection
) -> None:
    for end, number in ((out, 1), (err, 2)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    if new_session:
        os.setsid()
    set_start_method(None, force=True)  # the default, as in a new interpreter
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["-c", *words]
    exec(code, {"__name__": "__main__"})
