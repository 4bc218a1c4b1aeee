"""How a source says that a subject has news, from its own hot path."""

import threading
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from cape_stream.model.ping import Ping
from cape_stream.model.sequence import check_sequence
from cape_stream.model.subject import check_subject, partition_of
from cape_stream.ports.clock import Clock
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Log

SENDS_PER_POLL = 64
"""So often the client's answers are collected: rare enough to cost nothing, often enough that
they do not pile up."""


@dataclass(slots=True)
class PingerCounters:
    """What became of pings; each grows only."""

    sent: int = 0
    """Taken by the client's queue."""
    dropped: int = 0
    """Not taken: the queue was full or the pinger closed. Refresh finds the news."""
    lost: int = 0
    """Taken, then given up by the client, such as when the log was away for long."""


class Pinger:
    """Sends pings of one domain; safe to share by threads.

    A ping is a hint: what is dropped here is found by refresh, later. So `ping` never waits for the
    log, and a source must not fail because a ping did.

    Args:
        log: where the pings go; the pinger makes its own producer and leaves the log open.
        codec: how a ping is written.
        clock: stamps the pings, for latency figures.
        topic: the ping topic, `TopicNames.pings` of the domain.
        partitions: of that topic, `App.partitions`.
    """

    def __init__(
        self, log: Log, codec: Codec, clock: Clock, *, topic: str, partitions: int
    ) -> None:
        self._producer = log.producer()
        self._codec = codec
        self._clock = clock
        self._topic = topic
        self._partitions = partitions
        self._counters = PingerCounters()
        self._closed = False
        self._turn = threading.Lock()

    def ping(self, subject: str, latest: int | None = None) -> bool:
        """Say that ``subject`` has news.

        Args:
            subject: non-empty, at most 1,024 bytes of UTF-8, compared byte for byte.
            latest: newest sequence id there is, if known: saves a query.

        Returns:
            False if the ping was dropped; nothing needs to be done about it.

        Raises:
            BadSubjectError: ``subject`` is none; the message says why.
            BadSequenceError: ``latest`` is no sequence id; the message names it.
        """
        check_subject(subject)
        if latest is not None:
            check_sequence(latest, "latest")
        key = subject.encode()
        value = self._codec.encode_ping(Ping(subject, latest, self._clock.now_ms()))
        partition = partition_of(key, self._partitions)
        with self._turn:
            taken = not self._closed and self._producer.send(self._topic, partition, key, value)
            counters = self._counters
            if taken:
                counters.sent += 1
            else:
                counters.dropped += 1
            if not self._closed and (not taken or counters.sent % SENDS_PER_POLL == 0):
                self._collect()
        return taken

    def counters(self) -> PingerCounters:
        """What became of the pings so far."""
        with self._turn:
            if not self._closed:
                self._collect()
            return replace(self._counters)

    def flush(self, timeout_ms: int = 5_000) -> bool:
        """Wait until every ping taken is in the log or lost; False if the time ran out first."""
        with self._turn:
            if self._closed:
                return True
            settled = self._producer.flush(timeout_ms)
            self._collect()
            return settled

    def close(self) -> None:
        """Flush for a bounded time and free all; later pings are dropped."""
        with self._turn:
            if not self._closed:
                self._closed = True
                self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _collect(self) -> None:
        self._producer.poll(0)
        self._counters.lost += len(self._producer.take_failed())
