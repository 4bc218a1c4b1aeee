"""The state of one active subject as it is stored: plain data, no references.

Events are not in it: they live at the source and are asked for again. A later release may add
fields, at the end only and with a default: an older one then reads what it knows (roll-back), a
newer one fills in what is missing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

NEVER_MS = 2**62
"""A due time that does not come by itself: the event is in quarantine."""


class JobRow(NamedTuple):
    """A job that is out."""

    job_id: str
    sequences: Sequence[int]
    attempt: int
    charged: int
    timeout_ms: int
    """A restart gives the job this long again: bounded, whatever the clock did meanwhile."""
    epoch: int = 0
    """Of the owner that issued it; 0 in rows of before it was stored."""


class ParkedRow(NamedTuple):
    """An event that is put aside."""

    sequence: int
    attempts: int
    charged: int
    due_ms: int
    """Unix milliseconds by the steady clock of the process that wrote it."""
    failure_class: str
    """Empty when it did not fail."""
    first_error: str
    last_error: str
    first_ms: int
    last_ms: int
    epoch: int = 0
    """Of the owner that issued the last attempt; 0 before the first."""


class LambdaRow(NamedTuple):
    """One lambda of the subject."""

    topology: str
    lambda_id: str
    cursor: int
    done: Sequence[int] = ()
    """Done events beyond the cursor, ascending."""
    jobs: Sequence[JobRow] = ()
    parked: Sequence[ParkedRow] = ()
    outputs: Mapping[int, bytes] = {}
    unserved: bool = False
    """True if whoever wrote the row did not serve this lambda: unknown there, or paused."""
    fence_epoch: int = 0
    fence_count: int = 0
    """Epoch and counter of the newest job of before a rewind; 0 if there was none."""
    floor: int = 0
    """Attempts that a rewind has given up."""


class ActiveRow(NamedTuple):
    """One subject that is pinged, in flight or parked."""

    subject: str
    head: int
    """Newest sequence id that exists or may exist."""
    saved_ms: int
    """When the row was made, by the same clock as the due times in it."""
    lambdas: Sequence[LambdaRow]
    wake_ms: int = 0
    """When a subject that sleeps is looked at again, `NEVER_MS` if only a person can wake it; 0
    for one that is awake."""
