"""Where events live: the system of record that cape_stream pulls from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cape_stream.model.request import EventPage, EventQuery, QueryFault


class NotAskedError(Exception):
    """The source was not asked, because others ask it as much as it bears: ask again soon.

    It says nothing about the source or the queries, and nothing is learned from it.
    """


@dataclass(slots=True)
class Changes:
    """Subjects that may have news since a watermark."""

    subjects: Sequence[tuple[str, int]]
    """(subject, newest sequence id seen for it)."""
    watermark: str
    """Opaque; pass it to the next call."""
    more: bool
    """True when the sweep stopped at its limit: call again at once."""


class EventSource(Protocol):
    """Answers event queries. Called from several threads at once.

    An implementation must never lose an event that becomes visible late: whatever it returns
    is taken as *everything* the subject has from ``query.start`` up to the last event returned
    (and, if fewer than ``query.limit`` came, as everything there is for now).
    """

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """One answer per query, in the same order.

        Raises:
            NotAskedError: nobody was asked; all of them are asked again as they are.
            Any other exception: the whole call failed; each query is asked again, alone and later.
        """
        ...

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """Subjects changed since ``watermark`` (None: since ever), at most ``limit`` of them.

        Must report every subject whose event becomes visible after the previous call, however
        late; may report subjects again.
        """
        ...

    def close(self) -> None:
        """Free connections."""
        ...
