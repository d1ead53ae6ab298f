"""All runs that are wanted: trained as far as they are not there yet, whoever does it and whatever dies meanwhile."""

import functools
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import torch

from faustnet.errors import OUT_OF_MEMORY, FaustnetError, require
from faustnet.reproduce.claims import BEAT, Beating, holder_of, sweep, take
from faustnet.reproduce.results import ResultTable, accuracy, is_done, read_result, writing_to
from faustnet.reproduce.runner import Order, Outcome, What, answer, attempt
from faustnet.reproduce.wanted import Job
from faustnet.reproduce.workers import Pool, Workers
from faustnet.training.signals import on_signals

ATTEMPTS = 2  # at a run whose worker dies, beside others; then there is one more without them
SHARE = 0.1  # of the time, for tables that are written meanwhile: a large one takes a second
LOST = "its process has ended again and again, at last without others beside it; perhaps it needs more memory than there is."
NO_WORKERS = (
    "Workers end again and again before they have begun: see whether there is memory for them, and go on with the same "
    "command and fewer --jobs."
)


class Audience(Protocol):
    """Hears of runs: that one is begun, how far it has come, that somebody else is at it, its result, or that it comes to
    none."""

    def begun(self, wanted: Job) -> None: ...
    def epoch(self, wanted: Job, done: int, epochs: int) -> None: ...
    def elsewhere(self, wanted: Job, who: str) -> None: ...
    def result(self, wanted: Job) -> None: ...
    def ended(self, wanted: Job) -> None: ...


class Lines:
    """A line for each piece of news."""

    def __init__(self, out: Path, say: Callable[[object, str], None]):
        self.out, self.say = out, say

    def begun(self, wanted: Job) -> None:
        self.say(wanted, "training")

    def epoch(self, wanted: Job, done: int, epochs: int) -> None: ...

    def elsewhere(self, wanted: Job, who: str) -> None:
        self.say(wanted, f"being trained by {who}")

    def result(self, wanted: Job) -> None:
        result = read_result(wanted.file(self.out))
        self.say(wanted, f"{accuracy(result):.2%} in {result['seconds']:.0f} s")

    def ended(self, wanted: Job) -> None: ...


def _interrupt() -> None:
    raise KeyboardInterrupt


class Work:
    """What is to be trained by one command. `after` is called with each result."""

    def __init__(
        self,
        missing: Sequence[Job],
        out: Path,
        workers: Workers,
        audience: Audience,
        after: Callable[[], object] = lambda: None,
    ):
        self.missing, self.workers, self.audience, self.after = missing, workers, audience, after
        folder = workers.data_dir.absolute() if workers.data_dir else None
        self.order = Order(out.absolute(), workers.device, folder, uuid4().hex[:12], ATTEMPTS)
        self.trained: set[Job] = set()  # by workers of this command
        self.awaited = dict.fromkeys(missing)  # whose results have not been there yet
        self.given_up: dict[Job, str] = {}  # with the reason
        self.lost: list[Job] = []  # given up for now: their workers have died
        self.running: dict[Job, int] = {}  # for this command, with the epochs that are done
        self.elsewhere: set[Job] = set()  # what was said to be there
        self.error: Exception | None = None
        self.stopped, self.looking = False, threading.Lock()

    def do(self) -> None:
        """A run that diverges, or whose workers die, does not keep the others from being trained; any other mistake does."""
        if not self.missing:
            return
        claim = take(self.order.file, clock=0)
        assert claim is not None, "its name is its own"
        with claim:
            self.claim = claim
            sweep(claim.path.parent, claim.time)
            if self.workers.here and min(self.workers.jobs or 1, len(self.missing)) == 1:
                with Beating(claim.beat), on_signals(_interrupt):
                    self._settle(self.missing, self._train_here)
            else:
                self._by_workers()
        if self.given_up:
            (wanted, reason), *others = self.given_up.items()
            more = f" (and {len(others)} more)" if others else ""
            raise FaustnetError(f"All else is trained, but not {wanted}: {reason}{more}")

    def _settle(self, wanted: Sequence[Job], train: Callable[[list[Job]], bool]) -> None:
        """Until each of these has a result or is given up, train those that nobody is at. `train` says whether it was ended
        by the death of a worker."""
        fruitless = 0
        while (left := [one for one in wanted if self._is_open(one)]) and not self.stopped:
            holders = {one: holder_of(self.order.claim(one), self.claim.time) for one in left}
            free = [one for one in left if holders[one] is None and one not in self.trained]
            broken = train(free) if free else self._wait_for(holders)
            self._look_for_results()
            nothing = all(map(self._is_open, left))
            fruitless = fruitless + 1 if broken and nothing else 0
            if free and nothing and not broken:
                time.sleep(BEAT)  # others have just begun them
            require(fruitless <= ATTEMPTS, NO_WORKERS)
            require(self.stopped or self.order.file.exists(), f"{self.order.file} was deleted: start the command again.")

    def _is_open(self, wanted: Job) -> bool:
        return wanted in self.awaited and wanted not in self.given_up

    def _wait_for(self, holders: dict[Job, dict[str, Any] | None]) -> bool:
        """Others who are at what is left; when one dies, its run is free."""
        for one, facts in holders.items():
            if facts and "pid" in facts and one not in self.elsewhere:
                self.elsewhere.add(one)
                self.audience.elsewhere(one, f"process {facts['pid']} on {facts['host']}")
        time.sleep(BEAT)
        return False

    def _train_here(self, free: list[Job]) -> bool:
        for wanted in free:
            heard = (functools.partial(tell, wanted) for tell in (self.audience.begun, self.audience.epoch))
            try:
                self._hear(attempt(self.order, wanted, *heard))
            finally:
                self._look_for_results()  # one may be there though this was interrupted
        return False

    def _by_workers(self) -> None:
        with on_signals(self._interrupted), self.workers.open(len(self.missing)) as pool:
            if pool.children:
                threads = max(1, torch.get_num_threads() // pool.jobs)
                self.order = replace(self.order, parent=os.getpid(), threads=threads)
            with Beating(self._beat):
                self._settle(self.missing, functools.partial(self._train_by, pool, self.order, pool.jobs))
                for wanted in self.lost:  # perhaps there was too little memory for others beside it
                    del self.given_up[wanted]
                    self._settle([wanted], functools.partial(self._train_by, pool, replace(self.order, attempts=1), 1))
        if self.error is not None:
            raise self.error
        if self.stopped:
            raise KeyboardInterrupt

    def _train_by(self, pool: Pool, order: Order, jobs: int, free: list[Job]) -> bool:
        arguments = ((order, one) for one in itertools.takewhile(lambda one: not self.stopped, free))
        try:
            for outcome in pool.call(answer, arguments, jobs):
                self._guarded(self._hear, outcome)
        except pool.lost:
            return True
        return False

    def _hear(self, outcome: Outcome) -> None:
        """What a worker answers. Those who found a run taken, or were stopped, leave it to the next round."""
        wanted, what = outcome.wanted, outcome.what
        self.running.pop(wanted, None)
        if what is What.DONE:
            self.trained.add(wanted)
        elif what is What.DIVERGED:
            self._give_up(wanted, str(outcome.error))
        elif what in (What.LOST, What.NO_MEMORY):
            if wanted not in self.lost:
                self.lost.append(wanted)
            self._give_up(wanted, LOST if what is What.LOST else OUT_OF_MEMORY)
        elif what is What.MISTAKEN and outcome.error is not None:
            raise outcome.error
        elif what is What.UNSEEN and self.order.file.exists():
            raise FaustnetError(
                f"A worker on {outcome.host} does not see {self.order.out}: choose an --out that all workers share."
            )

    def _give_up(self, wanted: Job, reason: str) -> None:
        self.given_up[wanted] = reason
        self.audience.ended(wanted)

    def _beat(self) -> None:
        self.claim.beat()
        self._guarded(self._look_for_results)
        self._guarded(self._look_for_progress)

    def _guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        """A mistake stops the workers, and is raised when they have answered."""
        try:
            do(*arguments)
        except Exception as error:
            self.error = self.error or error
            self._stop()

    def _look_for_results(self) -> None:
        """Whoever they come from."""
        out = self.order.out
        with self.looking:
            folders = {one.file(out).parent for one in self.awaited}
            there = {path for folder in folders for path in folder.glob("*.json")}
            for one in [one for one in self.awaited if one.file(out) in there and is_done(one, out)]:
                del self.awaited[one]
                self.running.pop(one, None)
                self.audience.result(one)
                self.after()

    def _look_for_progress(self) -> None:
        """Of runs that are trained for this command."""
        with self.looking:
            there = {path.name for path in self.order.file.parent.iterdir()}
            for one in [one for one in self.awaited if self.order.claim(one).name in there]:
                facts = holder_of(self.order.claim(one)) or {}
                if facts.get("command") == self.order.command:
                    if one not in self.running:
                        self.running[one] = 0
                        self.audience.begun(one)
                    if facts.get("epoch", self.running[one]) != self.running[one]:
                        self.running[one] = facts["epoch"]
                        self.audience.epoch(one, facts["epoch"], facts["epochs"])

    def _stop(self) -> None:
        """Workers save what they have, and answer."""
        self.stopped = True
        with suppress(OSError):
            self.order.file.unlink()

    def _interrupted(self) -> None:
        """A second time it is to end at once."""
        if self.stopped:
            raise KeyboardInterrupt
        self._stop()


def results_of(
    wanted: Sequence[Job], out: Path, workers: Workers, audience: Audience, after: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """Of all runs that are wanted, after those that are missing have been trained. `after` is called with each of these."""
    with writing_to(out):  # to find out now whether it can be
        pass
    done = [one for one in wanted if is_done(one, out)]
    for one in done:
        shutil.rmtree(one.folder(out), ignore_errors=True)  # whoever trained it may have been killed just before
    Work([one for one in wanted if one not in set(done)], out, workers, audience, after).do()
    return [read_result(one.file(out)) for one in wanted]


def reproduced(
    table: ResultTable, wanted: Sequence[Job], out: Path, workers: Workers, audience: Audience
) -> list[dict[str, Any]]:
    """Train what is missing, and meanwhile and in the end write the table of all results that are there. → its cells"""
    table.read(out)  # to find out now whether the table can be written in the end
    try:
        results_of(wanted, out, workers, audience, sparingly(lambda: table.write(out)))
    finally:
        cells = table.write(out)
    return cells


def sparingly(do: Callable[[], object]) -> Callable[[], None]:
    """Does it when called, unless that has taken more than its share of the time so far."""
    begin, spent = time.monotonic(), 0.0

    def called() -> None:
        nonlocal spent
        now = time.monotonic()
        if spent <= SHARE * (now - begin):
            do()
            spent += time.monotonic() - now

    return called
