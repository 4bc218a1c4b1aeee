"""How a worker works: one field, one reason."""

import re
from dataclasses import dataclass

from cape_stream.runtime.worker_handler import Executor

OUTPUT_BYTES_MAX = 1_000_000
"""No larger output fits a record of the log, whatever the settings."""
FILE_CLAIMS = "file:"
S3_CLAIMS = "s3://"

_RANGES = (
    ("concurrency", 1, 1_000),
    ("prefetch", 1, 10_000),
    ("live_slots", 0, 1_000),
    ("backlog_percent", 0, 50),
    ("sandboxes_ready", 0, 1_000),
    ("output_bytes_max", 1, OUTPUT_BYTES_MAX),
)
_CLAIMS = re.compile(r"file:/.|s3://[a-z0-9][a-z0-9.-]+(/|\Z)")


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker works.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    queues: tuple[str, ...]
    """Queues to serve, at least one."""
    concurrency: int = 8
    """Jobs at a time, 1 to 1,000; 1 when `inline`."""
    inline: bool = False
    """Run handlers in the loop's own thread: no hop, for handlers of microseconds. Jobs wait for
    one another then, and get no heartbeats."""
    executor: Executor = Executor.THREAD
    """Where synchronous handlers run that do not say themselves."""
    prefetch: int = 64
    """Records a lane may hold ready for the slots, 1 to 10,000."""
    live_slots: int = 1
    """Jobs at a time, of `concurrency`, that are live ones always: so fresh news finds a slot while
    long backlog jobs have taken the others. 0 to 1,000; all but one at most, so none if there is
    only one."""
    backlog_percent: int = 5
    """Share of backlog jobs among those taken while live ones wait too, 0 to 50: a backfill goes on
    slowly where live jobs never end. Otherwise live jobs go first."""
    sandboxes_ready: int = 0
    """Child processes kept ready for handlers with ``executor="process"``, the handlers' modules
    imported, for all workers of the App on this machine, 0 to 1,000; recent demand may ask for
    more. 0: each begins when it is needed. Only on Linux, and only with `CAPE_VALKEY_URL`."""
    grace_ms: int = 30_000
    """How long running jobs may go on after a stop before they are handed back, >= 0."""
    clock_skew_ms: int = 5_000
    """How far the clocks of dispatcher and worker may differ unnoticed. A job that has queued for
    more than its timeout and this is handed back without being run: the dispatcher has given it up,
    or issues it again at once; which also tells the worker when its own clock is that far ahead."""
    output_bytes_max: int = 16_384
    """Most bytes of one event's output that travel in the status and in the next lambda's job, 1 to
    1,000,000. Fifty of the default, as many as a job has events by default, fit one record. A
    larger output goes to `claims`, or, without it, fails its event as ``invalid``."""
    claims: str = ""
    """Where larger outputs wait for the next lambda, the same for every worker of the App:
    ``file:/folder`` or ``s3://bucket/prefix``; empty: nowhere. Whoever keeps the place deletes what
    is older than the oldest event still to be done, such as 30 days: a lifecycle rule of the
    bucket, or ``find /folder -type f -mtime +30 -delete``."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise ValueError("queues is empty: a worker needs a queue to serve")
        if self.inline and self.concurrency != 1:
            raise ValueError(f"concurrency must be 1 when inline, not {self.concurrency}")
        for name, low, high in _RANGES:
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {getattr(self, name)}")
        for name in ("grace_ms", "clock_skew_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, not {getattr(self, name)}")
        if self.claims and not _CLAIMS.match(self.claims):
            raise ValueError(
                f"claims must be file:/folder or s3://bucket/prefix, not {self.claims!r}"
            )
