"""What is known of a subject's events: covered intervals, and the events inside them.

Memory only: after a restart, or when the buffer is cut, the source is asked again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from cape_stream.model.event import Event

# Empty until the first page: shared, and only ever replaced, never changed.
_NO_SEQUENCES: list[int] = []
_NO_EVENTS: list[Event] = []
_NO_INTERVALS: list[tuple[int, int]] = []


class EventBuffer:
    """Events of one subject, ascending, and the closed intervals in which they are all there is."""

    __slots__ = ("events", "intervals", "sequences")

    def __init__(self) -> None:
        self.sequences = _NO_SEQUENCES
        """Sequence ids of `events`."""
        self.events = _NO_EVENTS
        self.intervals = _NO_INTERVALS
        """Closed, disjoint, ascending; touching ones are merged."""

    def add(self, start: int, end: int, events: Sequence[Event]) -> None:
        """Learn that ``events`` are all there is in [start, end]."""
        if not self.intervals:
            self.intervals = [(start, end)]
            self.sequences = [event.sequence for event in events]
            self.events = list(events)
            return
        self._cover(start, end)
        low = bisect_left(self.sequences, start)
        high = bisect_right(self.sequences, end)
        self.sequences[low:high] = [event.sequence for event in events]
        self.events[low:high] = events

    def _cover(self, start: int, end: int) -> None:
        kept: list[tuple[int, int]] = []
        for low, high in self.intervals:
            if high < start - 1 or low > end + 1:
                kept.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        kept.append((start, end))
        kept.sort()
        self.intervals = kept

    def covered_to(self, position: int) -> int | None:
        """End of the interval that contains ``position``, or None."""
        for low, high in self.intervals:
            if low <= position <= high:
                return high
        return None

    def between(self, start: int, end: int) -> Iterator[Event]:
        """Events in [start, end], ascending."""
        index = bisect_left(self.sequences, start)
        while index < len(self.sequences) and self.sequences[index] <= end:
            yield self.events[index]
            index += 1

    def get(self, sequence: int) -> Event | None:
        """The event, if it is here."""
        index = bisect_left(self.sequences, sequence)
        if index < len(self.sequences) and self.sequences[index] == sequence:
            return self.events[index]
        return None

    def drop_through(self, sequence: int) -> None:
        """Forget everything up to and including ``sequence``."""
        cut = bisect_right(self.sequences, sequence)
        if cut:
            del self.sequences[:cut]
            del self.events[:cut]
        self.intervals = [
            (max(low, sequence + 1), high) for low, high in self.intervals if high > sequence
        ]

    def keep_only(self, windows: Sequence[tuple[int, int]]) -> None:
        """Forget all but the given closed windows (ascending, disjoint); they must be covered."""
        kept = [event for low, high in windows for event in self.between(low, high)]
        self.events = kept
        self.sequences = [event.sequence for event in kept]
        self.intervals = []
        for low, high in windows:
            self._cover(low, high)
