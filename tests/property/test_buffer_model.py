"""The event buffer against a dumb model: a set of covered ids, and a set of events."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.core.inflight.buffer import EventBuffer
from tests.desk import event

LAST = 40


class Model:
    """What is known, id by id."""

    def __init__(self) -> None:
        self.covered: set[int] = set()
        self.events: set[int] = set()

    def add(self, start: int, end: int, sequences: list[int]) -> None:
        """Everything in between is known now."""
        self.covered |= set(range(start, end + 1))
        self.events -= set(range(start, end + 1))
        self.events |= set(sequences)

    def drop_through(self, sequence: int) -> None:
        """Nothing up to there is known any more."""
        self.keep(lambda each: each > sequence)

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Only these are known any more."""
        self.covered = {each for each in self.covered if wanted(each)}
        self.events = {each for each in self.events if wanted(each)}

    def covered_to(self, position: int) -> int | None:
        """End of the run of covered ids that `position` lies in."""
        if position not in self.covered:
            return None
        while position + 1 in self.covered:
            position += 1
        return position


@st.composite
def pages(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """A closed interval and the events in it."""
    start = draw(st.integers(0, LAST))
    end = draw(st.integers(start, LAST))
    inside = st.integers(start, end)
    return start, end, sorted(draw(st.sets(inside, max_size=6)))


steps = st.lists(
    st.one_of(
        pages(),
        st.integers(0, LAST),
        st.lists(st.integers(0, LAST), max_size=6, unique=True),
    ),
    max_size=12,
)


def windows_of(buffer: EventBuffer, points: list[int]) -> list[tuple[int, int]]:
    """Disjoint covered windows that begin at some of the points."""
    windows: list[tuple[int, int]] = []
    for start in sorted(points):
        end = buffer.covered_to(start)
        if end is None or (windows and start <= windows[-1][1]):
            continue
        windows.append((start, min(end, start + 5)))
    return windows


@given(steps)
def test_buffer_knows_exactly_what_its_model_knows(
    steps: list[tuple[int, int, list[int]] | int | list[int]],
) -> None:
    """Pages are added, cut off at a position, and reduced to windows, in any order."""
    buffer, model = EventBuffer(), Model()
    for step in steps:
        if isinstance(step, tuple):
            start, end, sequences = step
            buffer.add(start, end, [event(each) for each in sequences])
            model.add(start, end, sequences)
        elif isinstance(step, int):
            buffer.drop_through(step)
            model.drop_through(step)
        else:
            windows = windows_of(buffer, step)
            kept = {each for low, high in windows for each in range(low, high + 1)}
            buffer.keep_only(windows)
            model.keep(kept.__contains__)
        compare(buffer, model)


def compare(buffer: EventBuffer, model: Model) -> None:
    assert buffer.sequences == sorted(model.events)
    assert [each.sequence for each in buffer.events] == buffer.sequences
    assert buffer.intervals == sorted(buffer.intervals)
    for position in range(LAST + 1):
        assert buffer.covered_to(position) == model.covered_to(position)
        found = buffer.get(position)
        assert (found is not None) is (position in model.events)
    for start in range(0, LAST, 7):
        inside = sorted(each for each in model.events if start <= each <= start + 9)
        assert [each.sequence for each in buffer.between(start, start + 9)] == inside
