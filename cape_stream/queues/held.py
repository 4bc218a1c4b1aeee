"""One message a processor holds, from its receive to its end."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from cape_stream.ports.queue import EntryFailure, QueueMessage
from cape_stream.queues.context import JobContext, Loss

Flight = asyncio.Future[list[EntryFailure | None]]
"""A call that extends a message and has not ended."""


class Fate(StrEnum):
    """How a receive ended."""

    DONE = "done"
    """Handled and deleted."""
    RETURNED = "returned"
    """The run failed; given back with a delay."""
    UNHANDLED = "unhandled"
    """Nobody here can handle it; given back with a delay."""
    HANDED_BACK = "handed_back"
    """Not run, or interrupted; given back at once, and no attempt is counted."""
    LOST = "lost"
    """It is not ours any more; it shows up by itself, or has already."""
    UNDELETED = "undeleted"
    """Handled, but the queue did not take the delete: it comes again."""
    STRANDED = "stranded"
    """It could not be given back: it stays hidden until its visibility ends."""


@dataclass(slots=True, eq=False)
class Held:
    """State of one message; changed by the wheel and the processor only."""

    lane: str
    message: QueueMessage
    visibility_ms: int
    received_ms: int
    """The earliest moment at which the server can have handed it out."""
    visible_ms: int = 0
    """Until then it is certainly ours."""
    beat_ms: int | None = None
    """When its next renewal is due; None while one is under way."""
    deadline_ms: int | None = None
    """The ceiling of its run; None before it runs."""
    check_ms: int = 0
    """When the wheel looks at it next."""
    beats_failed: int = 0
    """In a row."""
    loss: Loss | None = None
    """Why its run was ended from outside."""
    task: asyncio.Task[None] | None = None
    context: JobContext | None = None
    flights: set[Flight] = field(default_factory=set)
    abandoned: bool = False
    """Its handler did not end; whatever it still does is not reported."""

    def extended(self, sent_ms: int, seconds: int) -> None:
        """A call sent at ``sent_ms`` has extended it by ``seconds`` from when it arrived."""
        self.visible_ms = max(self.visible_ms, sent_ms + seconds * 1_000)
        self.beats_failed = 0
