"""An event source in the memory of one process: for tests, examples and programs that replay.

It keeps every event for its lifetime. A thread may append while others ask.
"""

import secrets
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

from cape_stream.model.event import NO_HEADERS, NO_INPUTS, Event
from cape_stream.model.request import EventPage, EventQuery, QueryFault, query_refusal
from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.subject import check_subject
from cape_stream.ports.source import Changes


class MemoryEventSource:
    """Events by subject, in the order of `append`.

    A watermark names the object that gave it: another one, for instance after a restart, starts
    its sweep over and reports everything once more.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._sequences: dict[str, list[int]] = {}
        self._events: dict[str, list[Event]] = {}
        self._appended: list[str] = []
        """The subject of every append, oldest first: what `changed_since` walks along."""
        self._identity = secrets.token_hex(8)

    def append(
        self,
        subject: str,
        sequence: int,
        payload: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """Add one event.

        Raises:
            BadSubjectError: ``subject`` is none.
            BadSequenceError: ``sequence`` is none, or not above the subject's last one.
            TypeError: ``payload`` is not bytes.
        """
        check_subject(subject)
        check_sequence(sequence, "sequence")
        if not isinstance(payload, bytes):
            raise TypeError(f"payload must be bytes, not {type(payload).__name__}")
        event = Event(sequence, payload, headers, NO_INPUTS)
        with self._lock:
            sequences = self._sequences.setdefault(subject, [])
            if sequences and sequence <= sequences[-1]:
                raise BadSequenceError(
                    f"sequence of {subject!r} must be above {sequences[-1]}, not {sequence}"
                )
            sequences.append(sequence)
            self._events.setdefault(subject, []).append(event)
            self._appended.append(subject)

    def append_many(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Add (subject, sequence, payload) rows; those before one that is refused stay added.

        Raises:
            What `append` raises, for the first row that is refused.
        """
        for subject, sequence, payload in rows:
            self.append(subject, sequence, payload)

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `cape_stream.ports.source.EventSource`."""
        with self._lock:
            return [self._answer(query) for query in queries]

    def _answer(self, query: EventQuery) -> EventPage | QueryFault:
        refusal = query_refusal(query)
        if refusal is not None:
            return QueryFault(query, refusal)
        sequences = self._sequences.get(query.subject)
        if sequences is None:
            return EventPage(query, ())
        first = bisect_left(sequences, query.start)
        return EventPage(query, self._events[query.subject][first : first + query.limit])

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `cape_stream.ports.source.EventSource`."""
        with self._lock:
            start = self._position_of(watermark)
            subjects = dict.fromkeys(self._appended[start : start + limit])
            end = min(start + limit, len(self._appended))
            return Changes(
                subjects=[(subject, self._sequences[subject][-1]) for subject in subjects],
                watermark=f"{self._identity}:{end}",
                more=end < len(self._appended),
            )

    def _position_of(self, watermark: str | None) -> int:
        identity, _, position = (watermark or "").partition(":")
        return int(position) if identity == self._identity else 0

    def close(self) -> None:
        """Nothing to free; what was appended stays."""
