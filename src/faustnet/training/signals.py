"""Stopping a training by signals."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from faustnet.training.loop import TrainingLoop


@contextmanager
def stopped_by_signals(trainer: TrainingLoop, on_signal: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Stop the trainer after its batch on a signal; a second signal interrupts at once. One of several ranks ignores a
    second signal, because torchrun passes on signals that the ranks have already received from the terminal."""

    def stop() -> None:
        if trainer.stopping and trainer.communicator.alone:
            raise KeyboardInterrupt
        on_signal()
        trainer.stop()

    with on_signals(stop):
        yield


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function on Ctrl-C, on a request to terminate, and when the terminal is closed. Signals that the process
    ignores stay ignored. Python delivers signals to the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        stop()

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    handled = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
