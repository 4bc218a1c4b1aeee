"""An event source whose events, lateness and failures the world decides."""

from collections.abc import Sequence

from cape_stream.adapters.simulated.faults import Dice
from cape_stream.adapters.simulated.timeline import Timeline
from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import Changes


class SourceDownError(Exception):
    """What the simulated source raises; any exception may come out of a source."""


class SimSource:
    """Implements `EventSource`.

    Args:
        timeline: its time; None for a plain one where everything is visible at once.
        dice: what goes wrong and how long it takes.
    """

    def __init__(self, timeline: Timeline | None = None, dice: Dice | None = None) -> None:
        self.events: dict[str, list[Event]] = {}
        """Everything ever published, visible or not: the truth for checkers."""
        self._timeline = timeline or Timeline()
        self._dice = dice or Dice(0)
        self._visible: dict[str, int] = {}
        self._visible_ms: dict[str, int] = {}
        self._changes: list[tuple[str, int]] = []
        self._up_ms = 0

    def publish(self, subject: str, event: Event, visible_after_ms: int = 0) -> None:
        """Add an event, the newest of its subject.

        It can be fetched and swept once ``visible_after_ms`` are over, and never before the
        events below it: a source that shows an event above a gap that fills up later would break
        the contract of `EventSource`.
        """
        events = self.events.setdefault(subject, [])
        assert not events or events[-1].sequence < event.sequence, "events are published in order"
        events.append(event)
        when_ms = max(self._visible_ms.get(subject, 0), self._timeline.now_ms + visible_after_ms)
        self._visible_ms[subject] = when_ms
        if when_ms <= self._timeline.now_ms:
            self._show(subject)
        else:
            self._timeline.at(when_ms, lambda: self._show(subject))

    def go_down(self, duration_ms: int) -> None:
        """Every call fails for so long."""
        self._up_ms = max(self._up_ms, self._timeline.now_ms + duration_ms)

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `EventSource.fetch_many`."""
        self._answer_slowly()
        answers = [self._answer(query) for query in queries]
        self._timeline.sleep(self._dice.draw_ms(self._dice.faults.source_ms))
        return answers

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `EventSource.changed_since`; the watermark counts what became visible."""
        self._answer_slowly()
        start = 0 if watermark is None else int(watermark)
        end = min(start + limit, len(self._changes))
        newest = dict(self._changes[start:end])
        return Changes(list(newest.items()), str(end), end < len(self._changes))

    def close(self) -> None:
        """Nothing to free."""

    def _show(self, subject: str) -> None:
        index = self._visible.get(subject, 0)
        self._visible[subject] = index + 1
        self._changes.append((subject, self.events[subject][index].sequence))

    def _answer_slowly(self) -> None:
        faults = self._dice.faults
        slow = self._dice.happens(faults.source_hang)
        self._timeline.sleep(self._dice.draw_ms(faults.hang_ms if slow else faults.source_ms))
        if self._timeline.now_ms < self._up_ms or self._dice.happens(faults.source_raise):
            raise SourceDownError("the simulated source is down")

    def _answer(self, query: EventQuery) -> EventPage | QueryFault:
        faults = self._dice.faults
        if self._dice.happens(faults.source_fault):
            return QueryFault(query, "the simulated source cannot answer this query")
        visible = self.events.get(query.subject, [])[: self._visible.get(query.subject, 0)]
        events = [event for event in visible if event.sequence >= query.start][: query.limit]
        if events and self._dice.happens(faults.source_partial):
            events = events[: self._dice.random.randrange(len(events))]
        if events and self._dice.happens(faults.source_garbage):
            events = self._spoil(query, events)
        return EventPage(query, events)

    def _spoil(self, query: EventQuery, events: list[Event]) -> list[Event]:
        """Break one rule of an answer."""
        way = self._dice.random.randrange(4)
        if way == 0:
            return [*events, events[0]]
        if way == 1:
            return [Event(query.start - 1, b"out of range"), *events]
        if way == 2:
            beyond = range(events[-1].sequence + 1, events[-1].sequence + 2 + query.limit)
            return [*events, *(Event(sequence, b"beyond the limit") for sequence in beyond)]
        return [*events[::-1], events[-1]]
