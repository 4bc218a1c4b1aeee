"""The tracker's greedy plan against every possible plan."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.core.tracker import page_fault, plan_queries, plan_starts
from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.model.sequence import SEQUENCE_MAX


def covers(starts: tuple[int, ...] | list[int], positions: set[int], limit: int) -> bool:
    return all(any(s <= p < s + limit for s in starts) for p in positions)


def fewest(positions: set[int], limit: int) -> int:
    """Size of the smallest plan, found by trying all; starts between positions never help."""
    for size in range(len(positions) + 1):
        if any(covers(starts, positions, limit) for starts in combinations(positions, size)):
            return size
    raise AssertionError("one query per position always covers")


@given(st.sets(st.integers(0, 60), max_size=9), st.integers(1, 25))
def test_plan_starts_is_the_smallest_plan_that_covers(positions: set[int], limit: int) -> None:
    """Definition: the fewest queries such that every lagging cursor + 1 lies in an interval."""
    starts = plan_starts(positions, limit)

    assert covers(starts, positions, limit)
    assert len(starts) == fewest(positions, limit)


@given(st.sets(st.integers(0, 15), max_size=4), st.integers(1, 6))
def test_starts_that_are_no_position_make_no_plan_smaller(positions: set[int], limit: int) -> None:
    """What `fewest` takes for granted: here every start there is gets its chance."""
    size = len(plan_starts(positions, limit))

    if size:
        assert not any(
            covers(starts, positions, limit) for starts in combinations(range(16), size - 1)
        )


@given(st.lists(st.integers(0, SEQUENCE_MAX), max_size=50), st.integers(1, 1_000))
def test_plan_starts_is_ascending_and_begins_at_positions(positions: list[int], limit: int) -> None:
    """Two queries never overlap, and none begins where nobody stands."""
    starts = plan_starts(positions, limit)

    assert set(starts) <= set(positions)
    assert all(later - sooner >= limit for sooner, later in pairwise(starts))
    assert starts == plan_starts(set(positions), limit)


@given(st.lists(st.integers(-1, 200), max_size=20), st.integers(0, 200), st.integers(1, 50))
def test_plan_queries_serves_every_lagging_topology_and_no_other(
    cursors: list[int], latest: int, limit: int
) -> None:
    """A topology at or beyond the newest event costs no query."""
    queries = plan_queries("S", cursors, latest, limit)
    lagging = {cursor + 1 for cursor in cursors if cursor < latest}

    assert covers([query.start for query in queries], lagging, limit)
    assert len(queries) <= len(lagging)
    assert {(query.subject, query.limit) for query in queries} <= {("S", limit)}


class Positions(list[int]):
    """Counts how often a position is compared."""

    compared = 0


class Position(int):
    """A position that tells when it is compared."""

    def __lt__(self, other: int) -> bool:
        Positions.compared += 1
        return int(self) < int(other)


@given(st.permutations(range(256)))
def test_plan_starts_looks_at_each_position_a_logarithmic_number_of_times(
    order: list[int],
) -> None:
    """O(n log n): for 256 positions sorting takes at most 256 * 8 comparisons."""
    Positions.compared = 0
    plan_starts([Position(each) for each in order], 1)

    assert Positions.compared <= 256 * 8


pages = st.lists(st.integers(0, 40), max_size=8)


@given(pages, st.integers(0, 30), st.integers(1, 8))
def test_page_fault_accepts_exactly_the_pages_that_keep_the_contract(
    sequences: list[int], start: int, limit: int
) -> None:
    """Ascending without repeats, none below the start, no more than asked for."""
    fault = page_fault(
        EventPage(EventQuery("S", start, limit), [Event(each, b"") for each in sequences])
    )
    keeps = (
        sequences == sorted(set(sequences))
        and all(each >= start for each in sequences)
        and len(sequences) <= limit
    )

    assert (fault is None) is keeps
