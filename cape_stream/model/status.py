"""A worker's report on a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

ERROR_HEAD_CHARS_MAX = 300
"""How much of an error text travels in a status and stays in the table."""


class StatusKind(StrEnum):
    """What the report says about the job as a whole."""

    RESULTS = "results"
    """The job has ended; per-event results follow. An event without a result was not done."""
    HEARTBEAT = "heartbeat"
    """Still working: extend the expiry, up to the ceiling."""
    HANDED_BACK = "handed_back"
    """The worker stops before it has done these events: reissue at once, not charged."""


class FailureClass(StrEnum):
    """Why an event was not done, as classified where it happened."""

    TRANSIENT = "transient"
    THROTTLED = "throttled"
    TIMEOUT = "timeout"
    INVALID = "invalid"
    PERMANENT = "permanent"
    BUG = "bug"


@dataclass(slots=True)
class EventFailure:
    """One event that was not done, and why."""

    sequence: int
    failure_class: FailureClass
    error: str = ""
    """First `ERROR_HEAD_CHARS_MAX` characters of the error text."""
    retry_after_ms: int | None = None
    """Wait at least this long before the next attempt; None leaves it to the retry policy."""


NO_OUTPUTS: Mapping[int, bytes] = {}


@dataclass(slots=True)
class JobStatus:
    """One report. Never changed after it was built."""

    job_id: str
    domain: str
    partition: int
    """The task that issued the job, copied from it."""
    subject: str
    topology: str
    lambda_id: str
    epoch: int
    attempt: int
    kind: StatusKind = StatusKind.RESULTS
    done: Sequence[int] = ()
    """Sequence ids that succeeded."""
    outputs: Mapping[int, bytes] = field(default_factory=lambda: NO_OUTPUTS)
    """Output per succeeded sequence id, for the lambdas that take it as input."""
    failures: Sequence[EventFailure] = ()
    queued_ms: int = 0
    """How long the job waited in its queue before the worker took it."""
