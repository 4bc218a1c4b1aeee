"""A job: one batch of events of one subject for one lambda."""

from collections.abc import Sequence
from dataclasses import dataclass

from cape_stream.model.event import Event

LIVE = "live"
BACKLOG = "backlog"


@dataclass(slots=True)
class Job:
    """What a worker gets. Never changed after it was built."""

    job_id: str
    """Unique: task partition, epoch and counter, joined by ``-``."""
    domain: str
    partition: int
    """The task that issued it; the status goes back to this partition of the status topic."""
    subject: str
    topology: str
    lambda_id: str
    queue: str
    """Worker queue it goes to; not on the wire, the topic says it."""
    epoch: int
    """Ownership number of the task, growing; with ``attempt`` the fencing token of the handler."""
    attempt: int
    """1 for the first delivery of these events to this lambda, then growing."""
    issued_ms: int
    """When it was issued, Unix milliseconds by the dispatcher's steady clock."""
    timeout_ms: int
    """How long the worker has, from when it takes the job; > 0."""
    events: Sequence[Event]
    """Ascending by sequence id, never empty."""
    lane: str = LIVE
