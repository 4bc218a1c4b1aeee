"""An event source in shared memory: what a load generator wrote, every process can read."""

import struct
import time
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory

from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.ports.source import Changes

PAYLOAD_BYTES = 100
_PAD = bytes(PAYLOAD_BYTES - 8)
_SLOT = struct.Struct("<qq")
"""Newest sequence id of a subject, and when it was due to happen (nanoseconds, monotonic)."""


def subject_name(number: int) -> str:
    """Subjects of the benchmark."""
    return f"acct-{number:07d}"


def subject_number(subject: str) -> int:
    """The other way round."""
    return int(subject[5:])


class SharedSource:
    """Implements `cape_stream.ports.source.EventSource`; every event is 100 bytes and carries the
    time at which it was meant to happen."""

    def __init__(self, name: str | None, subjects: int) -> None:
        """``name``: of an existing one; None makes a new one without events."""
        size = _SLOT.size * (subjects + 1)
        self._memory = SharedMemory(name=name, create=name is None, size=size)
        buffer = self._memory.buf
        assert buffer is not None, "it was just opened"
        self._buffer = buffer
        self._owner = name is None
        self._subjects = subjects
        if self._owner:
            for number in range(subjects):
                _SLOT.pack_into(self._buffer, number * _SLOT.size, -1, 0)
            self.handled = 0

    @property
    def handled(self) -> int:
        """Events that handlers have had, as the worker says; kept behind the subjects' slots."""
        return int(_SLOT.unpack_from(self._buffer, self._subjects * _SLOT.size)[0])

    @handled.setter
    def handled(self, count: int) -> None:
        _SLOT.pack_into(self._buffer, self._subjects * _SLOT.size, count, 0)

    @property
    def name(self) -> str:
        """For the other processes."""
        return self._memory.name

    def append(self, number: int, due_ns: int) -> int:
        """One more event of a subject; its sequence id."""
        offset = number * _SLOT.size
        sequence = int(_SLOT.unpack_from(self._buffer, offset)[0]) + 1
        _SLOT.pack_into(self._buffer, offset, sequence, due_ns)
        return sequence

    def fetch_many(self, queries: Sequence[EventQuery]) -> list[EventPage]:
        """Events up to the newest; all but the newest carry the newest one's time."""
        pages: list[EventPage] = []
        for query in queries:
            offset = subject_number(query.subject) * _SLOT.size
            newest, due_ns = _SLOT.unpack_from(self._buffer, offset)
            payload = due_ns.to_bytes(8, "little") + _PAD
            last = min(newest, query.start + query.limit - 1)
            pages.append(
                EventPage(query, [Event(q, payload) for q in range(query.start, last + 1)])
            )
        return pages

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """Nothing: every ping arrives in a benchmark."""
        return Changes((), watermark or "", more=False)

    def close(self) -> None:
        """Detach; the owner also removes it."""
        self._memory.close()
        if self._owner:
            self._memory.unlink()


def due_ns_of(payload: bytes) -> int:
    """When the event was meant to happen."""
    return int.from_bytes(payload[:8], "little")


def now_ns() -> int:
    """The clock of `SharedSource.append`, the same in all processes of a machine."""
    return time.monotonic_ns()
