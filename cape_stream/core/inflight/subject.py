"""All in-flight state of one subject: the root of the state tree below the scheduler's table.

The topology level is a span of the flat tuple of lambdas (`TopologyPlan.span`): a topology's cursor
is the lowest of its lambdas', so it needs no object of its own.
"""

from collections.abc import Sequence

from cape_stream.core.inflight.buffer import EventBuffer
from cape_stream.core.inflight.lambda_state import LambdaState
from cape_stream.model.request import EventQuery
from cape_stream.model.sequence import NO_CURSOR


class SubjectState:
    """One active subject."""

    __slots__ = (
        "again",
        "asked_ms",
        "buffer",
        "faults",
        "head",
        "has_row",
        "lambdas",
        "open_jobs",
        "parked",
        "promised",
        "queries",
        "source_due_ms",
        "subject",
        "wants",
    )

    def __init__(self, subject: str, cursors: Sequence[int], latest: int) -> None:
        """``cursors``: one per lambda, in plan order."""
        self.subject = subject
        self.lambdas = [LambdaState(cursor) for cursor in cursors]
        self.buffer = EventBuffer()
        self.head = latest
        """Newest sequence id that exists or may exist; nothing above it is asked for."""
        self.promised = NO_CURSOR
        """Newest sequence id a ping has named."""
        self.wants: set[int] = set()
        """Positions some lambda needs and the buffer does not cover."""
        self.queries: list[EventQuery] = []
        """Event queries that are out."""
        self.again = False
        """A ping came while a query was out: ask once more after the answer."""
        self.faults = 0
        """Event queries in a row that failed, or found less than a ping had promised."""
        self.source_due_ms = 0
        """Ask the source no earlier than this; 0 when nothing holds it back."""
        self.asked_ms = 0
        """When the oldest query that is out was made; 0 when none is."""
        self.open_jobs = 0
        self.parked = 0
        """Parked events over all lambdas."""
        self.has_row = False
        """True if the table may hold an active row of this subject."""

    def newest_known(self) -> int:
        """Newest sequence id of which anything is known here."""
        newest = max(state.high for state in self.lambdas)
        if self.buffer.intervals:
            newest = max(newest, self.buffer.intervals[-1][1])
        return newest

    def cursor_of(self, span: range) -> int:
        """Cursor of the topology whose lambdas are ``span``."""
        if len(span) == 1:
            return self.lambdas[span.start].cursor
        return min(self.lambdas[place].cursor for place in span)
