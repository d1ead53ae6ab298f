"""Ctrl-C while modules are imported."""

import os
import signal
from types import FrameType


def end_imports_on_interrupt() -> None:
    """Make Ctrl-C end the process with a message and exit status 130 while any module is imported.

    Some imports take seconds, and a module that is being imported may swallow KeyboardInterrupt or raise another exception
    in its place. At other times Ctrl-C raises KeyboardInterrupt; a process that ignores it still does.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def end_at_once_on_interrupt() -> None:
    """Let Ctrl-C end the process without a message, when the command is done and Python shuts down."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"faustnet: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt
