"""All in-flight state of one subject: the root of the state tree below the scheduler's table.

The topology level is a span of the flat tuple of lambdas (`TopologyPlan.span`): a topology's cursor
is the lowest of its lambdas', so it needs no object of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cape_stream.core.inflight.buffer import EventBuffer
from cape_stream.core.inflight.lambda_state import LambdaState
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.request import EventQuery
from cape_stream.model.sequence import NO_CURSOR, SEQUENCE_MAX

if TYPE_CHECKING:
    from cape_stream.core.carrying import Carried


class SubjectState:
    """One active subject."""

    __slots__ = (
        "behind",
        "buffer",
        "carried",
        "faults",
        "head",
        "has_row",
        "index_ms",
        "lambdas",
        "open_jobs",
        "parked",
        "promised",
        "queries",
        "seen",
        "source_due_ms",
        "subject",
        "waits",
        "wake_ms",
        "wants",
    )

    def __init__(self, subject: str, cursors: Sequence[int], seen: int) -> None:
        """``cursors``: one per lambda, in plan order; ``seen``: newest event known to exist."""
        self.subject = subject
        self.lambdas = [LambdaState(cursor) for cursor in cursors]
        self.buffer = EventBuffer()
        self.carried: Carried | None = None
        """What its stored row says of topologies and lambdas that the plan does not have."""
        self.head = seen
        """Newest sequence id that exists or may exist; nothing above it is asked for."""
        self.seen = seen
        """Newest sequence id of an event that the source has shown. A cursor proves less: that of a
        topology which begins later than the first event stands where no event may be."""
        self.promised = NO_CURSOR
        """Newest sequence id a ping has named."""
        self.wants: set[int] = set()
        """Positions some lambda needs and the buffer does not cover."""
        self.queries: dict[EventQuery, int | None] = {}
        """Event queries that are out, and what `seen` was when each was made; None after a ping has
        come since: then the answer may be older than the news, and tells nothing about the end."""
        self.faults = 0
        """Event queries in a row that failed, or found less than was promised or seen."""
        self.behind = 0
        """Of those, the ones that found less. A source that failed often has not been asked often:
        only these count when it is to be believed."""
        self.source_due_ms = 0
        """Ask the source no earlier than this; 0 when nothing holds it back."""
        self.open_jobs = 0
        self.parked = 0
        """Parked events over all lambdas."""
        self.waits = 0
        """Lines it stands in, see `cape_stream.core.valves`."""
        self.has_row = False
        """True if the table may hold an active row of this subject."""
        self.index_ms: int | None = None
        """Where the table may hold it as asleep: the wake-up time it is indexed by."""
        self.wake_ms = 0
        """When it is looked at again; only while it sleeps."""

    def is_due(self, now_ms: int) -> bool:
        """True if some parked event is due."""
        return any(state.is_due(now_ms) for state in self.lambdas)

    def next_due_ms(self, now_ms: int) -> int:
        """When the next of the parked events will be due. One that is due already waits for
        something else, such as an older event, and time alone does not help it."""
        dues = (each.due_ms for state in self.lambdas for each in state.parked.values())
        return min((due_ms for due_ms in dues if due_ms > now_ms), default=NEVER_MS)

    def next_unknown(self) -> int:
        """Lowest sequence id above all that was seen and all that any lambda stands at: where news
        that nobody has named may be."""
        return min(max(self.seen, *(state.high for state in self.lambdas)) + 1, SEQUENCE_MAX)

    def cursor_of(self, span: range) -> int:
        """Cursor of the topology whose lambdas are ``span``."""
        if len(span) == 1:
            return self.lambdas[span.start].cursor
        return min(self.lambdas[place].cursor for place in span)
