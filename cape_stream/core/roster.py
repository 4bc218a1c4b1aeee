"""Which subjects are in memory: how they come, how they leave, and what the table then holds.

A subject is in memory while something is under way for it. When nothing is, it is *finished* (a row
of cursors) or, with parked work that is not due for a while, *asleep* (a full row, found again by
its wake-up time). So a million failing subjects cost the others no memory.
"""

from dataclasses import dataclass, field

from cape_stream.core import rows
from cape_stream.core.beginnings import first_cursors
from cape_stream.core.carrying import carried_from, needs_full_row
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import DomainPlan
from cape_stream.core.rows import Stored
from cape_stream.model.active_row import NEVER_MS, ActiveRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.sequence import NO_CURSOR

DEFERRED_MS = 30_000
"""A subject that cannot go on and must not be forgotten is looked at again after this."""


@dataclass(slots=True)
class Changes:
    """State rows to store: what the scheduler was at one moment. To be applied in this order."""

    woken: list[tuple[str, int]] = field(default_factory=list)
    """Subjects that slept, and the wake-up time they are indexed by: both rows go."""
    had_row: set[str] = field(default_factory=set)
    """Subjects that may have an active row and are active no more: it goes."""
    active: list[ActiveRow] = field(default_factory=list)
    """Subjects that are pinged, in flight or parked."""
    asleep: list[ActiveRow] = field(default_factory=list)
    """Subjects that left memory with parked work; each with its ``wake_ms``."""
    finished: list[CursorInfo] = field(default_factory=list)
    """Cursors of subjects whose life ended, or that sleep on work which only others know."""


class Roster:
    """Lets subjects in and out of the in-flight state of one task."""

    def __init__(self, plan: DomainPlan, inflight: InflightState, sleep_after_ms: int) -> None:
        self._plan = plan
        self._inflight = inflight
        self._sleep_after_ms = sleep_after_ms

    def holds(self, subject: str) -> bool:
        """True if the subject is here, so that no stored row has to be brought."""
        inflight = self._inflight
        return (
            subject in inflight.subjects
            or subject in inflight.finished
            or subject in inflight.asleep
        )

    def activate_for(
        self, subject: str, latest: int | None, stored: Stored | None, now_ms: int
    ) -> SubjectState | None:
        """The subject's state, unless the ping tells nothing that is not known already."""
        # What a ping names is news: only what lies below it is old.
        old = NO_CURSOR if latest is None else latest - 1
        cursors = self.known_cursors(subject, stored, old)
        if latest is not None:
            if latest <= min(cursors):
                return None
            if latest <= self._head_asleep(subject, stored):
                return None
        return self.activate(subject, stored, now_ms, cursors)

    def known_cursors(self, subject: str, stored: Stored | None, old: int = NO_CURSOR) -> list[int]:
        """One cursor per lambda of a subject that is not in memory.

        Args:
            subject: whose.
            stored: its row, if there is one.
            old: newest event that is old news if there is none.
        """
        ended = self._inflight.finished.get(subject) or self._inflight.asleep.get(subject)
        if ended is not None:
            return [state.cursor for state in ended.lambdas]
        if isinstance(stored, ActiveRow):
            return rows.stored_cursors(self._plan, stored)
        if stored is None:
            return first_cursors(self._plan, {}, old)
        known = stored.cursors
        if known.keys() >= self._plan.names:
            return [known[entry.topology] for entry in self._plan.lambdas]
        return first_cursors(self._plan, known, stored.latest)

    def activate(
        self, subject: str, stored: Stored | None, now_ms: int, known: list[int] | None = None
    ) -> SubjectState:
        """Bring a subject into memory."""
        inflight = self._inflight
        sleeper = inflight.asleep.get(subject)
        if sleeper is not None:
            inflight.wake_up(sleeper, now_ms)
            return sleeper
        if subject not in inflight.finished and isinstance(stored, ActiveRow):
            return rows.restore(self._plan, inflight, stored, now_ms)
        cursors = known if known is not None else self.known_cursors(subject, stored)
        ended = inflight.finished.pop(subject, None)
        latest = stored.latest if isinstance(stored, CursorInfo) else NO_CURSOR
        state = SubjectState(subject, cursors, latest)
        if ended is not None:
            state.has_row, state.index_ms = ended.has_row, ended.index_ms
            state.head = state.seen = ended.seen
            state.carried = ended.carried
        else:
            state.carried = carried_from(self._plan, stored)
        inflight.subjects[subject] = state
        inflight.dirty[state] = None
        return state

    def let_go(self, state: SubjectState, now_ms: int, *, looked_everywhere: bool) -> None:
        """Nothing is under way for the subject: let it leave memory if it may.

        Args:
            looked_everywhere: every lambda was offered its work just now, so what is due and is not
                out waits for something else than time, such as an older event.
        """
        if self._inflight.paused:
            # Nobody asks the source for it now, and later nothing else would tell of it.
            state.seen = max(state.seen, state.head)
        if not state.parked:
            if any(entry.high < state.head for entry in state.lambdas):
                self._defer(state, now_ms)
            elif needs_full_row(self._plan, state):
                self._inflight.put_to_sleep(state, NEVER_MS)
            else:
                self._inflight.retire(state)
            return
        if not looked_everywhere and state.is_due(now_ms):
            self._inflight.wake_at(state, now_ms)
            return
        wake_ms = state.next_due_ms(now_ms)
        if self._inflight.deferring:
            wake_ms = min(wake_ms, now_ms + DEFERRED_MS)
        if wake_ms - now_ms >= self._sleep_after_ms:
            self._inflight.put_to_sleep(state, wake_ms)

    def _defer(self, state: SubjectState, now_ms: int) -> None:
        """It has work that nobody takes now, such as that of a topology that is paused: it leaves
        with lagging cursors, by which the sweep finds it again. One that has to remember more than
        cursors, such as what a rewind gave up, sleeps for a while."""
        self._inflight.counters.deferred += 1
        if any(entry.outgrows_cursor() for entry in state.lambdas) or needs_full_row(
            self._plan, state
        ):
            self._inflight.put_to_sleep(state, now_ms + DEFERRED_MS)
            return
        state.seen = max(state.seen, state.promised, state.head)
        self._inflight.retire(state)

    def take_changes(self, now_ms: int) -> Changes:
        """What to store for the inputs since the last call."""
        inflight, plan = self._inflight, self._plan
        changes = Changes()
        gone = (*inflight.finished.values(), *inflight.asleep.values())
        changes.had_row = {state.subject for state in gone if state.has_row}
        for state in (*inflight.dirty, *gone):
            if state.index_ms is not None:
                changes.woken.append((state.subject, state.index_ms))
                state.index_ms = None
        paused = inflight.paused
        changes.active = [rows.active_row(plan, s, now_ms, paused) for s in inflight.dirty]
        for state in inflight.dirty:
            state.has_row = True
        asleep = inflight.asleep.values()
        changes.asleep = [rows.active_row(plan, s, now_ms, paused) for s in asleep]
        # Of a sleeper that waits for another release, or for a person, the sweep must hear: it is
        # the one to wake it then.
        shown = [s for s in gone if not s.wake_ms or s.carried is not None or paused]
        changes.finished = [rows.cursor_info(plan, state) for state in shown]
        inflight.dirty.clear()
        inflight.finished = {}
        inflight.asleep = {}
        return changes

    def _head_asleep(self, subject: str, stored: Stored | None) -> int:
        """Newest event known of a subject that sleeps: everything up to it waits or is done."""
        sleeper = self._inflight.asleep.get(subject)
        if sleeper is not None:
            return sleeper.head
        return stored.head if isinstance(stored, ActiveRow) else NO_CURSOR
