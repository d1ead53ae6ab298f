"""Ranks that know of each other's end.

Every rank holds a connection to the first one, and gives a sign of life on it every second. When a process dies, its
connections close, and the first rank tells all others; when a machine is lost, the signs fail to come. What the ranks
compute with knows neither: gloo says that some connection was closed, and NCCL waits.
"""

import json
import os
import selectors
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, NoReturn

BEAT = 1.0  # seconds between signs of life
SILENCE = 20.0  # seconds without one, after which a rank counts as dead
NEWS = 3.0  # seconds to hear of another rank's death, when a message did not come through
GRACE = 5.0  # seconds for the first rank to find out the same mistake as another
FAREWELL = 15.0  # seconds that a rank that failed waits for the first one to say so


class Watch(ABC):
    """Ends this process when another rank has failed. `leave` is how it ends well."""

    def __init__(self) -> None:
        self.leaving = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="faustnet-watch", daemon=True)

    @abstractmethod
    def _watch(self) -> None:
        """Until the end."""

    @abstractmethod
    def leave(self, code: int, said: str) -> None:
        """This rank is about to end, with such an exit status and what it had to say."""

    def wait_for_news(self) -> None:
        """What went wrong here may be that another rank has died; then this process ends in here."""
        time.sleep(NEWS)


class Connection:
    """Messages as lines of JSON."""

    def __init__(self, link: socket.socket):
        self.link = link
        self.link.settimeout(SILENCE)
        self.rest = b""
        self.heard = time.monotonic()
        self.said = 0.0

    def send(self, **message: Any) -> None:
        with suppress(OSError):  # whoever is gone is found out by listening
            self.link.sendall(json.dumps(message).encode() + b"\n")

    def beat(self) -> None:
        """A sign of life, if it is time for one."""
        if time.monotonic() - self.said >= BEAT:
            self.said = time.monotonic()
            self.send()

    def receive(self) -> list[dict[str, Any]] | None:
        """What has come, if anything; none at the end of the connection."""
        try:
            data = self.link.recv(1 << 16)
        except OSError:
            return None
        if not data:
            return None
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [message for line in lines if isinstance(message := json.loads(line), dict)]

    @property
    def silent(self) -> bool:
        return time.monotonic() - self.heard > SILENCE


class First(Watch):
    """The first rank's: listens to all others."""

    def __init__(self, token: str):
        super().__init__()
        self.token = token
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self.listener = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        self.port = self.listener.getsockname()[1]
        self.others: dict[int, Connection] = {}
        self.hosts: dict[int, str] = {}
        self.thread.start()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.listener, selectors.EVENT_READ)
            while not self.leaving.is_set():
                for key, _ in waiting.select(BEAT):
                    if key.data is None:
                        self._welcome(waiting)
                    else:
                        self._hear(key.data, waiting)
                for rank, other in list(self.others.items()):
                    other.beat()
                    if other.silent:
                        self._died(rank, f"gives no sign of life since {SILENCE:.0f} s")

    def _welcome(self, waiting: selectors.BaseSelector) -> None:
        """A rank that connects and knows the token."""
        link, _ = self.listener.accept()
        other = Connection(link)
        link.settimeout(NEWS)
        try:
            hello = (other.receive() or [{}])[0]
        except ValueError:
            hello = {}
        if hello.get("token") != self.token:
            link.close()
            return
        link.settimeout(SILENCE)
        rank = int(hello["rank"])
        self.others[rank], self.hosts[rank] = other, str(hello["host"])
        waiting.register(link, selectors.EVENT_READ, rank)

    def _hear(self, rank: int, waiting: selectors.BaseSelector) -> None:
        """What a rank has to say, if only that it has come to its end."""
        other = self.others[rank]
        messages = other.receive()
        for message in messages or []:
            if "failed" in message:
                self._failed(rank, str(message["failed"]), int(message["code"]))
            if "bye" in message:
                waiting.unregister(other.link)
                del self.others[rank]
                other.link.close()
        if messages is None:
            self._died(rank, "has died")

    def _failed(self, rank: int, said: str, code: int) -> None:
        """Most often this rank is about to make the same mistake, and then tells it itself."""
        if not self.leaving.wait(GRACE):
            if said:
                _say(f"{said} (rank {rank}, on {self.hosts[rank]})")
            self._end_all(code)

    def _died(self, rank: int, how: str) -> None:
        if not self.leaving.is_set():
            _say(_death(rank, self.hosts[rank], how))
            self._end_all(1)

    def _end_all(self, code: int) -> NoReturn:
        self._tell(end=code)
        os._exit(code)

    def _tell(self, **message: Any) -> None:
        for other in list(self.others.values()):
            other.send(**message)

    def leave(self, code: int, said: str) -> None:
        self.leaving.set()
        self._tell(**({"end": code} if code else {"bye": True}))
        self.close()

    def close(self) -> None:
        self.thread.join()
        for link in (self.listener, *(other.link for other in self.others.values())):
            link.close()


class Other(Watch):
    """Another rank's: listens to the first one."""

    def __init__(self, rank: int, address: str, port: int, token: str, first_host: str):
        super().__init__()
        self.first_host = first_host
        self.first = Connection(socket.create_connection((address, port), timeout=SILENCE))
        self.first.send(token=token, rank=rank, host=socket.gethostname())
        self.thread.start()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.first.link, selectors.EVENT_READ)
            while not self.leaving.is_set():
                if waiting.select(BEAT):
                    messages = self.first.receive()
                    if messages is None:
                        self._first_died("has died")
                    for message in messages or []:
                        if "end" in message:
                            os._exit(int(message["end"]))
                        if "bye" in message:
                            return
                self.first.beat()
                if self.first.silent:
                    self._first_died(f"gives no sign of life since {SILENCE:.0f} s")

    def _first_died(self, how: str) -> None:
        if not self.leaving.is_set():
            _say(_death(0, self.first_host, how))
            os._exit(1)

    def leave(self, code: int, said: str) -> None:
        if code:
            self.first.send(failed=said, code=code)
            self.thread.join(FAREWELL)  # the first rank ends this process as soon as it has spoken
            os._exit(code)
        self.leaving.set()
        self.first.send(bye=True)
        self.thread.join()
        self.first.link.close()


def _death(rank: int, host: str, how: str) -> str:
    return f"faustnet: rank {rank} on {host} {how}, so the others stop; continue from what was saved last with --resume."


def _say(sentence: str) -> None:
    stream = sys.__stderr__
    if stream is not None:
        stream.write(sentence.rstrip() + "\n")
        stream.flush()
