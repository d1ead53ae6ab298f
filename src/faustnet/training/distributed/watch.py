"""End all ranks when one of them fails.

Every rank exchanges a message with rank 0 about twice a second, over a gloo connection that nothing else uses. If a process
dies, its connection closes; if a machine is lost, its messages stop. Rank 0 then ends all ranks with one sentence that
names the rank.

PyTorch has no replacement for this. NCCL waits for a dead rank until its timeout, which must be longer than the slowest
step. gloo reports a closed connection without the rank, and only to ranks that were communicating with it.
`monitored_barrier` names the rank, but to rank 0 only. torchrun's agent ends the other ranks too, but Slurm and ssh do not,
and it does not print the message of a rank whose output is hidden.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

BEAT = 0.5  # seconds between two messages
SILENCE = 20.0  # seconds without a message after which a rank counts as dead
NEWS = 3.0  # seconds to learn of another rank's death after a failed communication
GRACE = 5.0  # seconds for rank 0 to find the same error as another rank
FAREWELL = 15.0  # seconds that a failed rank waits for rank 0 to end it
SIZE = 10_000  # bytes of a message
LONGEST = 2_000  # characters of an error in a message

Message = dict[str, Any]
Link = Any  # a ProcessGroupGloo of two ranks; its type stub lacks `send` and `recv`


class Watch:
    """Ends this process when another rank has failed.

    Args:
        links: The other ranks that this one exchanges messages with: on rank 0 all, elsewhere rank 0. Each is connected by
            a group of two processes.
        hosts: The host of each rank.
    """

    def __init__(self, links: Mapping[int, Link], hosts: Sequence[str]):
        self.links, self.hosts = dict(links), hosts
        self.leaving, self.message = threading.Event(), Message()
        target = self._watch_first if 0 in self.links else self._watch_others
        self.thread = threading.Thread(target=target, name="faustnet-watch", daemon=True)
        self.thread.start()

    def wait_for_news(self) -> None:
        """Call this after an error: if its cause is that another rank has died, the process ends in here."""
        time.sleep(NEWS)

    def leave(self, code: int, error: str) -> None:
        """Announce that this rank ends with this exit status and error message. After a failure, all ranks end."""
        self.message = {"end": code, "error": error[:LONGEST]} if code else {"bye": True}
        self.leaving.set()
        self.thread.join(FAREWELL if code else None)

    def _watch_others(self) -> None:
        """Run on rank 0."""
        while self.links:
            leaving = self.leaving.wait(BEAT)
            deadline = time.monotonic() + SILENCE
            received = {rank: receive(link, max(deadline - time.monotonic(), 1.0)) for rank, link in self.links.items()}
            self.links = {rank: link for rank, link in self.links.items() if "bye" not in received[rank]}
            answer = self.message if leaving else self._judge({rank: received[rank] for rank in self.links})
            for rank, link in self.links.items():
                if "dead" not in received[rank]:
                    send(link, answer)
            if leaving:
                return
            if "end" in answer:
                os._exit(answer["end"])

    def _judge(self, received: Mapping[int, Message]) -> Message:
        """Return the answer to the messages of all ranks, and print what is wrong."""
        for rank, message in received.items():
            if "dead" in message:
                _print(_death(rank, self.hosts[rank], message["dead"]))
                return {"end": 1}
            if "end" in message:
                if self.leaving.wait(GRACE):  # rank 0 had the same error, and has printed it
                    return self.message if "end" in self.message else message
                if message["error"]:
                    _print(f"{message['error']} (rank {rank}, on {self.hosts[rank]})")
                return message
        return {}

    def _watch_first(self) -> None:
        """Run on the other ranks."""
        link = self.links[0]
        while True:
            self.leaving.wait(BEAT)
            message = self.message
            answer = send(link, message)
            if "bye" in message:
                return
            answer = answer or receive(link, 2 * SILENCE)  # rank 0 may be waiting for another rank
            if "bye" in answer:
                return
            if "dead" in answer:
                _print(_death(0, self.hosts[0], answer["dead"]))
            if answer:
                os._exit(answer.get("end", 1))


def send(link: Link, message: Message) -> Message:
    """Send a message. Return {}, or why it was not received: {"dead": reason}."""
    text = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace").ljust(SIZE)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return _wait(lambda: link.send([data], 1 - link.rank(), 0), 2 * SILENCE)


def receive(link: Link, seconds: float) -> Message:
    """Return the next message, or why there is none: {"dead": reason}."""
    data = torch.empty(SIZE, dtype=torch.uint8)
    return _wait(lambda: link.recv([data], 1 - link.rank(), 0), seconds) or json.loads(bytes(data.tolist()))


def _wait(start: Callable[[], dist.Work], seconds: float) -> Message:
    try:
        start().wait(timedelta(seconds=seconds))
    except RuntimeError as error:
        return {"dead": f"has not responded for {seconds:.0f} s" if "imed out" in str(error) else "has died"}
    return {}


def _death(rank: int, host: str, reason: str) -> str:
    return f"faustnet: rank {rank} on {host} {reason}, so all ranks stop. Continue from the last checkpoint with --resume."


def _print(sentence: str) -> None:
    stream = sys.__stderr__
    if stream is not None:
        stream.write(sentence.rstrip() + "\n")
        stream.flush()
