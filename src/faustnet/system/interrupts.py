"""Ctrl-C while modules are imported."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def importing() -> Iterator[None]:
    """End the process with a message and exit status 130 if Ctrl-C is pressed within the block.

    For imports that take long: a module that is being imported may swallow KeyboardInterrupt or raise another exception
    in its place. A handler other than Python's own, such as one that ignores Ctrl-C, stays in place.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: object) -> NoReturn:
    os.write(2, b"faustnet: interrupted\n")
    os._exit(130)
