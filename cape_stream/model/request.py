"""Questions to an event source and what their answers become."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cape_stream.model.event import Event
from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.subject import BadSubjectError, check_subject


@dataclass(slots=True, frozen=True)
class EventQuery:
    """Ask for the first ``limit`` events of ``subject`` with sequence id >= ``start``."""

    subject: str
    start: int
    limit: int


def query_refusal(query: EventQuery) -> str | None:
    """Say why a query cannot be asked at all, or None.

    Sources ask it first, so that one impossible subject does not fail its neighbours.
    """
    try:
        check_subject(query.subject)
        check_sequence(query.start, "start")
    except (BadSubjectError, BadSequenceError) as error:
        return str(error)
    return None if query.limit >= 1 else f"limit must be at least 1, not {query.limit}"


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
