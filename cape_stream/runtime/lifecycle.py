"""The life of a task, as a table.

          ┌──────────── lost or revoked ────────────┐
          │           │            │           │    ▼
    RESTORING → CLAIMING → CATCHING_UP → RUNNING → CLOSED

RESTORING    rows are read from the changelog, issued outputs from the tail of the output topics;
             in the background, while the other tasks go on
CLAIMING     the new epoch waits for its first commit: the proof that the task is ours
CATCHING_UP  inputs that must come first are replayed to where they ended; nothing is issued yet
RUNNING      everything flows
CLOSED       another member owns it, or will; nothing is written for it any more
"""

from enum import Enum


class TaskState(Enum):
    """Where a task stands in its life."""

    RESTORING = "restoring"
    CLAIMING = "claiming"
    CATCHING_UP = "catching up"
    RUNNING = "running"
    CLOSED = "closed"


NEXT_STATES: dict[TaskState, frozenset[TaskState]] = {
    TaskState.RESTORING: frozenset({TaskState.CLAIMING, TaskState.CLOSED}),
    TaskState.CLAIMING: frozenset({TaskState.CATCHING_UP, TaskState.CLOSED}),
    TaskState.CATCHING_UP: frozenset({TaskState.RUNNING, TaskState.CLOSED}),
    TaskState.RUNNING: frozenset({TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}
"""Legal moves; anything else is a defect of ours."""
