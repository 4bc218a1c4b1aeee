"""The in-memory source's own manners; what all sources promise is in the contract suite."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.model.sequence import SEQUENCE_MAX, BadSequenceError
from cape_stream.model.subject import BadSubjectError


@pytest.mark.parametrize("sequence", [5, 4, 0])
def test_append_refuses_a_sequence_that_does_not_grow(sequence: int) -> None:
    source = MemoryEventSource()
    source.append("A", 5, b"")

    with pytest.raises(BadSequenceError, match="'A' must be above 5"):
        source.append("A", sequence, b"")

    source.append("B", sequence, b"")


@pytest.mark.parametrize("sequence", [-1, SEQUENCE_MAX + 1, 1.0, True, "7", None])
def test_append_refuses_what_is_no_sequence(sequence: int) -> None:
    with pytest.raises(BadSequenceError, match="sequence"):
        MemoryEventSource().append("A", sequence, b"")


@pytest.mark.parametrize("subject", ["", "k" * 1025, "\udc80"])
def test_append_refuses_what_is_no_subject(subject: str) -> None:
    with pytest.raises(BadSubjectError):
        MemoryEventSource().append(subject, 1, b"")


def test_append_refuses_a_payload_that_is_not_bytes() -> None:
    text: object = "text"
    with pytest.raises(TypeError, match="bytes, not str"):
        MemoryEventSource().append("A", 1, text)  # type: ignore[arg-type]  # what a caller may do


def test_append_many_keeps_what_came_before_a_refused_row() -> None:
    source = MemoryEventSource()

    with pytest.raises(BadSequenceError):
        source.append_many([("A", 1, b"a"), ("B", 1, b"b"), ("A", 1, b"again"), ("C", 1, b"c")])

    assert source.changed_since(None, 10).subjects == [("A", 1), ("B", 1)]


def test_append_is_safe_beside_other_threads() -> None:
    source = MemoryEventSource()

    def fill(number: int) -> None:
        for sequence in range(200):
            source.append(f"S{number}", sequence, b"")
            source.fetch_many([EventQuery(f"S{number}", 0, 10)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(4)))

    for number in range(4):
        (page,) = source.fetch_many([EventQuery(f"S{number}", 0, 1_000)])
        assert isinstance(page, EventPage)
        assert [event.sequence for event in page.events] == list(range(200))
    assert len(source.changed_since(None, 1_000).subjects) == 4


def test_sweep_starts_over_when_the_watermark_is_of_another_object() -> None:
    first, second = MemoryEventSource(), MemoryEventSource()
    first.append_many([("A", 1, b""), ("B", 1, b"")])
    second.append_many([("A", 1, b""), ("B", 1, b"")])

    changes = second.changed_since(first.changed_since(None, 10).watermark, 10)

    assert changes.subjects == [("A", 1), ("B", 1)]
