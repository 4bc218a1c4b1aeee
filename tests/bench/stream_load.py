"""Thousands of subscribers in one process: opens streams, counts messages, samples latencies.

It knows nothing of who serves them: a message counts where its stamp `"t":` appears, which holds a
monotonic time in nanoseconds. Every subscriber is a socket in one epoll; nothing is parsed but the
stamps of a sample.
"""

import multiprocessing
import re
import select
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

STAMP = b'"t":'
SAMPLED_ONE_IN = 10
OPENING_AT_A_TIME = 100
PING = re.compile(rb"\x89\x04(.{4})", re.DOTALL)
PONG = b"\x8a\x84\0\0\0\0"
"""Head and mask of an answer; the mask changes nothing."""
_STAMP = re.compile(rb'"t": ?(\d+)')


@dataclass(frozen=True)
class Target:
    """Where subscribers go."""

    port: int
    request: bytes
    """What each of them sends."""
    ready: bytes
    """What each has received when its stream is live."""


class Load:
    """The process, as its parent sees it."""

    def __init__(self, target: Target, subscribers: int) -> None:
        self._here, there = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_run, args=(target, subscribers, there), daemon=True
        )
        self._process.start()
        self.opened_s: float = self._here.recv()

    def expect(self, messages: int) -> tuple[float, list[float]]:
        """Wait until every subscriber together have got so many since the last call.

        Returns:
            When the last one came, on the monotonic clock, and the sampled latencies in ms.
        """
        self._here.send(messages)
        return self._answer()

    def begin(self, messages: int) -> None:
        """Expect so many, and tell later, see `finish`."""
        self._here.send(messages)

    def finish(self) -> tuple[float, list[float]]:
        """The answer to `begin`."""
        return self._answer()

    def _answer(self) -> tuple[float, list[float]]:
        found: tuple[float, list[float]] = self._here.recv()
        return found

    def close(self) -> None:
        """Close every connection."""
        self._here.send(None)
        self._process.join(30)


def _run(target: Target, subscribers: int, parent: Connection) -> None:
    began_s = time.monotonic()
    poll = select.epoll()
    sockets = _open(target, subscribers, poll)
    parent.send(time.monotonic() - began_s)
    while (wanted := parent.recv()) is not None:
        parent.send(_count(poll, sockets, wanted))
    for sock in sockets.values():
        sock.close()


def _open(target: Target, subscribers: int, poll: "select.epoll") -> dict[int, socket.socket]:
    sockets: dict[int, socket.socket] = {}
    while len(sockets) < subscribers:
        some = []
        for _ in range(min(OPENING_AT_A_TIME, subscribers - len(sockets))):
            # Loopback addresses of their own: one has too few ports for everybody.
            host = f"127.0.0.{1 + len(sockets) // 20_000}"
            sock = socket.create_connection((host, target.port), 60)
            sock.sendall(target.request)
            sockets[sock.fileno()] = sock
            some.append(sock)
        for sock in some:
            seen = b""
            while target.ready not in seen:
                found = sock.recv(4_096)
                if not found:
                    raise ConnectionError(f"refused: {seen!r}")
                seen += found
            sock.setblocking(False)
            poll.register(sock.fileno(), select.EPOLLIN)
    return sockets


def _answer_pings(sock: socket.socket, found: bytes) -> bytes:
    """Answer a WebSocket's pings; what may be the beginning of another one.

    In a text frame of ours no byte of a ping's head can stand, for it is ASCII behind a length.
    """
    for ping in PING.findall(found):
        sock.send(PONG + ping)
    tail = found[-5:]
    at = tail.rfind(b"\x89")
    return tail[at:] if at >= 0 and not PING.match(tail[at:]) else b""


def _count(
    poll: "select.epoll", sockets: dict[int, socket.socket], wanted: int
) -> tuple[float, list[float]]:
    counted, last_s = 0, time.monotonic()
    latencies_ms: list[float] = []
    left: dict[int, bytes] = {}
    tails: dict[int, bytes] = {}
    while counted < wanted:
        events = poll.poll(20.0)
        if not events:
            raise TimeoutError(f"only {counted} of {wanted} messages came")
        for number, _ in events:
            found = sockets[number].recv(262_144)
            if not found:
                raise ConnectionError(f"a subscriber was cut off after {counted} of {wanted}")
            tail = _answer_pings(sockets[number], tails.pop(number, b"") + found)
            if tail:
                tails[number] = tail
            rest = left.get(number)
            if rest:
                found = rest + found
            counted += found.count(STAMP)
            if number % SAMPLED_ONE_IN == 0:
                now_ns = time.monotonic_ns()
                latencies_ms += [(now_ns - int(each)) / 1e6 for each in _STAMP.findall(found)]
            left[number] = found[-3:]
        last_s = time.monotonic()
    return last_s, latencies_ms
