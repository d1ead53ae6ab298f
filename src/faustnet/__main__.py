"""The start of the command, which Ctrl-C ends quietly even while torch is imported."""

import os
import signal
from typing import NoReturn


def main() -> None:
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where Ctrl-C is ignored
        signal.signal(signal.SIGINT, _end)
    from faustnet.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _end(number: int, frame: object) -> NoReturn:
    """End at once: an exception may be swallowed or turned into another one by what is being imported."""
    os.write(2, b"faustnet: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
