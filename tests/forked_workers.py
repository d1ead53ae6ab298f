"""Worker processes of loky that start in a moment: forks of a server that has imported torch, instead of new interpreters.

As with loky, they are children of the command, with its ignored signals and none of its state or open files.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from joblib.externals.loky.backend import fork_exec

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36  # of Linux
NAME = "loky worker"
HIGH = 500  # above the numbers of all files that loky passes on
_server: socket.socket


def install() -> None:
    """Fork the server. Call it at the start of a command, before it has threads or claims."""
    global _server
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    _server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        _server.close()
        _serve(theirs)
    theirs.close()
    fork_exec.fork_exec = _start


def workers_of(command: int) -> list[int]:
    """Return the living workers of a command."""
    children = Path(f"/proc/{command}/task/{command}/children").read_text().split()
    return [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == NAME]


def _start(words: list[str], files: list[int], env: dict[str, str] | None = None) -> int:
    """Like `fork_exec` of loky: run `python -m MODULE WORDS` with these open files, and return its process."""
    kept = sorted(set(files))
    ignored = [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    request = {"words": words[2:], "files": kept, "env": {**os.environ, **(env or {})}, "ignored": ignored}
    socket.send_fds(_server, [json.dumps(request).encode()], kept)
    return int(_server.recv(100))


def _serve(requests: socket.socket) -> None:
    """Fork a worker for each request until the command has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, received, _, _ = socket.recv_fds(requests, 1 << 18, 64)
        if not message:
            os._exit(0)
        read, write = os.pipe()
        if not (between := os.fork()):
            if worker := os.fork():
                os.write(write, str(worker).encode())
                os._exit(0)  # which makes the worker an orphan
            _work(json.loads(message), received)
        os.waitpid(between, 0)
        requests.send(os.read(read, 100))
        for file in (read, write, *received):
            os.close(file)


def _work(request: dict[str, Any], received: list[int]) -> None:
    code: Any = 1
    try:
        for number, file in enumerate(received):
            os.dup2(file, HIGH + number)
        os.closerange(3, HIGH)
        for number, file in enumerate(request["files"]):
            os.dup2(HIGH + number, file)
        os.closerange(HIGH, HIGH + len(received))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in request["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(PR_SET_NAME, NAME.encode())
        os.environ.clear()
        os.environ.update(request["env"])
        module, *sys.argv[1:] = request["words"]
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code
    finally:
        sys.stdout.flush()
        os._exit(int(code or 0))
