"""What a page of a dense domain is worth."""

import pytest

from cape_stream.core.density import dense_part
from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery, QueryFault


def page(start: int, *sequences: int) -> EventPage:
    return EventPage(EventQuery("S", start, 100), [Event(each, b"") for each in sequences])


@pytest.mark.parametrize(
    ("start", "sequences"), [(0, [0, 1, 2]), (0, [1, 2, 3]), (5, [5, 6]), (5, []), (1, [1])]
)
def test_page_without_a_gap_counts_as_a_whole(start: int, sequences: list[int]) -> None:
    whole = page(start, *sequences)

    assert dense_part(whole) == (whole, None)


@pytest.mark.parametrize(
    ("start", "sequences", "counts", "gap"),
    [
        (0, [0, 2, 3], [0], "1 is missing before 2"),
        (0, [1, 2, 7, 9], [1, 2], "3 to 6 are missing before 7"),
        (4, [4, 5, 9], [4, 5], "6 to 8 are missing before 9"),
    ],
)
def test_page_counts_up_to_its_first_gap(
    start: int, sequences: list[int], counts: list[int], gap: str
) -> None:
    part, missing = dense_part(page(start, *sequences))

    assert part == page(start, *counts)
    assert missing == f"sequence id {gap} in a dense domain"


@pytest.mark.parametrize(
    ("start", "sequences", "gap"),
    [(0, [2, 3], "0 to 1 are"), (1, [2], "1 is"), (4, [6], "4 to 5 are")],
)
def test_page_that_begins_with_a_gap_is_no_answer(
    start: int, sequences: list[int], gap: str
) -> None:
    whole = page(start, *sequences)

    part, _ = dense_part(whole)

    assert isinstance(part, QueryFault)
    assert part.query == whole.query
    assert part.reason.startswith(f"sequence id {gap} missing before {sequences[0]}")


@pytest.mark.parametrize("sequences", [[3, 2], [1, 1], [-1, 0]])
def test_page_that_is_refused_anyway_comes_back_as_it_is(sequences: list[int]) -> None:
    """Its own fault says more than a gap would."""
    bad = page(1, *sequences)

    assert dense_part(bad) == (bad, None)
