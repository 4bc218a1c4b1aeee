from collections.abc import Sequence
from typing import Any

import pytest

from cape_stream.core.tracker import page_fault, plan_queries, plan_starts
from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.model.sequence import SEQUENCE_MAX
from tests.desk import foreign


def test_plan_queries_groups_by_proximity_in_the_example_of_the_article() -> None:
    """The Cape article: cursors 10, 90, 99 and 99, newest 100, ten events a query."""
    queries = plan_queries("S", [10, 90, 99, 99], latest=100, limit=10)

    assert queries == [EventQuery("S", 11, 10), EventQuery("S", 91, 10)]


def test_plan_queries_asks_nothing_when_nobody_lags() -> None:
    assert plan_queries("S", [100, 101], latest=100, limit=10) == []


def test_plan_queries_begins_at_zero_when_nothing_is_done() -> None:
    assert plan_queries("S", [-1], latest=0, limit=10) == [EventQuery("S", 0, 10)]


@pytest.mark.parametrize(
    ("positions", "limit", "starts"),
    [
        ([], 10, []),
        ([5], 1, [5]),
        ([5, 5, 5], 10, [5]),
        ([1, 10], 10, [1]),
        ([1, 11], 10, [1, 11]),
        ([11, 1], 10, [1, 11]),
        ([0, 9, 10, 19, 20], 10, [0, 10, 20]),
        ([SEQUENCE_MAX, 0], 10, [0, SEQUENCE_MAX]),
    ],
)
def test_plan_starts_covers_every_position(
    positions: list[int], limit: int, starts: list[int]
) -> None:
    assert plan_starts(positions, limit) == starts


def fault(events: Any, start: int = 10, limit: int = 3) -> str | None:
    return page_fault(EventPage(EventQuery("S", start, limit), events))


def events(*sequences: Any) -> Sequence[Event]:
    return [Event(sequence, b"") for sequence in sequences]


@pytest.mark.parametrize(
    "page",
    [
        [],
        (),
        events(10),
        events(10, 11, 12),
        events(500, SEQUENCE_MAX),
        [Event(10, b"", {"content-type": "text/plain", "trace": "", "": "é"})],
    ],
)
def test_page_fault_accepts(page: Sequence[Event]) -> None:
    assert fault(page) is None


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (events(10, 11, 12, 13), "4 events returned, more than the 3 asked for"),
        (events(9), "sequence id 9 is below the start 10"),
        (events(-1), "sequence id -1 is below the start 10"),
        (events(11, 10), "sequence ids are not ascending: 10 after 11"),
        (events(11, 9), "sequence id 9 is below the start 10"),
        (events(10, 10), "sequence ids are not ascending: 10 after 10"),
        (events(SEQUENCE_MAX + 1), "sequence id is beyond int64: 9223372036854775808"),
        (events(11.0), "sequence id is not an integer: 11.0"),
        (events(True), "sequence id is not an integer: True"),
        (events("11"), "sequence id is not an integer: '11'"),
        (events(None), "sequence id is not an integer: None"),
        ([foreign(10, "text")], "payload of 10 is str, not bytes"),
        ([foreign(10, None)], "payload of 10 is NoneType, not bytes"),
        (None, "events are NoneType, not a sequence"),
        (iter(events(10)), "events are list_iterator, not a sequence"),
        ({10: b""}, "events are dict, not a sequence"),
        ([(10, b"")], "tuple returned for an event"),
        ([None], "NoneType returned for an event"),
        (b"bytes", "5 events returned, more than the 3 asked for"),
        ([foreign(10, b"", {"a": 1})], "headers of 10 are not text"),
        ([Event(10, b"", {"a": "\ud800"})], "headers of 10 are not text"),
        ([foreign(10, b"", [("a", "b")])], "headers of 10 are not text"),
    ],
)
def test_page_fault_names_what_is_wrong(page: Any, reason: str) -> None:
    assert fault(page) == reason
