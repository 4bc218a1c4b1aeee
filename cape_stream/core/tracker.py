"""Which event queries to make: the fewest that let every lagging topology move.

A query from x with a page limit of n covers [x, x + n - 1] when sequence ids are dense; gaps only
widen that. So a plan made for dense ids always covers, its queries can be asked at once, and greedy
from the lowest position is optimal: any plan has to cover the lowest position with a query that
starts no later, and starting exactly there covers the most above it.

Source: the Cape article, "Tracker": cursors {10, 90, 99, 99}, newest 100, limit 10 give the two
queries (S, 11, 10) and (S, 91, 10).
"""

from collections.abc import Iterable, Sequence

from cape_stream.model.event import Event
from cape_stream.model.headers import is_text
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.model.sequence import SEQUENCE_MAX


def plan_starts(positions: Iterable[int], limit: int) -> list[int]:
    """Query starts, ascending, such that every position lies in [start, start + limit - 1]."""
    starts: list[int] = []
    covered = -1
    for position in sorted(positions):
        if position > covered:
            starts.append(position)
            covered = position + limit - 1
    return starts


def plan_queries(subject: str, cursors: Iterable[int], latest: int, limit: int) -> list[EventQuery]:
    """Queries for the topologies whose cursor is below ``latest``."""
    lagging = (cursor + 1 for cursor in cursors if cursor < latest)
    return [EventQuery(subject, start, limit) for start in plan_starts(lagging, limit)]


def page_fault(page: EventPage) -> str | None:
    """What is wrong with a source's answer, or None. A faulty page is refused as a whole: a source
    that breaks its contract once may have left out events too."""
    query = page.query
    fault = _shape_fault(page.events, query.limit)
    if fault is not None:
        return fault
    previous = query.start - 1
    for event in page.events:
        sequence, payload = _untrusted(event.sequence), _untrusted(event.payload)
        if type(sequence) is not int:
            return f"sequence id is not an integer: {sequence!r}"
        if sequence <= previous:
            if sequence < query.start:
                return f"sequence id {sequence} is below the start {query.start}"
            return f"sequence ids are not ascending: {sequence} after {previous}"
        if sequence > SEQUENCE_MAX:
            return f"sequence id is beyond int64: {sequence}"
        if not isinstance(payload, bytes):
            return f"payload of {sequence} is {type(payload).__name__}, not bytes"
        if event.headers and not is_text(event.headers):
            return f"headers of {sequence} are not text"
        previous = sequence
    return None


def _shape_fault(events: object, limit: int) -> str | None:
    """What is wrong with a page before one looks into its events."""
    if not isinstance(events, Sequence):
        return f"events are {type(events).__name__}, not a sequence"
    if len(events) > limit:
        return f"{len(events)} events returned, more than the {limit} asked for"
    for event in events:
        if not isinstance(event, Event):
            return f"{type(event).__name__} returned for an event"
    return None


def _untrusted(value: object) -> object:
    """A value of foreign code, whose declared type proves nothing."""
    return value
