"""A run that ends the process that trains it. Its own module, because every new worker process imports it."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from faustnet.reproduce.jobs import Table1Job
from faustnet.runs.recipes import Recipe


@dataclass(frozen=True)
class Deadly(Table1Job):
    """Note that it was tried, and end the process."""

    notes: Path = Path()

    @property
    def recipe(self) -> Recipe:
        with self.notes.open("a") as file:
            file.write("tried\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError
