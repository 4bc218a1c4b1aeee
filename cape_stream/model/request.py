"""Questions to an event source and what their answers become."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cape_stream.model.event import Event


@dataclass(slots=True, frozen=True)
class EventQuery:
    """Ask for the first ``limit`` events of ``subject`` with sequence id >= ``start``."""

    subject: str
    start: int
    limit: int


@dataclass(slots=True)
class EventPage:
    """A source's answer to one `EventQuery`: ascending, at most ``query.limit`` events."""

    query: EventQuery
    events: Sequence[Event] = field(default_factory=tuple)


@dataclass(slots=True)
class QueryFault:
    """A source could not answer one `EventQuery`; the subject is asked again after a backoff."""

    query: EventQuery
    reason: str
    """One line for people; shown by explain and counted by kind in metrics."""


@dataclass(slots=True)
class SchedulingRequest:
    """Everything the source holds for ``subject`` in the closed interval [start, end]."""

    subject: str
    latest: int
    """Newest sequence id known when the request was made."""
    start: int
    end: int
    events: Sequence[Event]
    """Every event inside the interval, ascending."""
