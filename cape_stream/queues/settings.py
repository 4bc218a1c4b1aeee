"""How a processor works: per queue, and as a whole."""

from dataclasses import dataclass

from cape_stream.ports.queue import VISIBILITY_S_MAX, WAIT_S_MAX
from cape_stream.queues.backoff import Backoff

CEILING_S_MAX = 1_800
"""The longest a job may run. Source: the rule of the fleet, thirty minutes."""
BEATS_PER_VISIBILITY = 3
"""A renewal is due when a third of the visibility has passed, so two may fail before it ends."""
AFTER_FAILURE = Backoff()
AFTER_STRANGER = Backoff(first_s=30, max_s=900)
SLACK_S = 5
"""What a grace period needs beyond the longest poll: to finish, hand back and flush."""


@dataclass(slots=True, frozen=True, kw_only=True)
class LaneSettings:
    """How one queue is worked.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    concurrency: int = 10
    """Jobs of this queue at a time, 1 to 1,000."""
    prefetch: int = 10
    """Messages held ready for a slot beyond those that run, 0 to 1,000; they are renewed, too."""
    visibility_s: int = 30
    """Lease of a message, renewed each third of it, 1 to 43,200. Short: a dead worker's messages
    come back soon. Long: fewer renewals."""
    ceiling_s: int = CEILING_S_MAX
    """How long one job may run before it is cancelled and counts as failed, 1 to 1,800."""
    attempts_max: int | None = None
    """Runs of a message before it is parked in the dead-letter queue; runs that a stop interrupted
    do not count. None: the queue's own redrive policy alone decides. Without effect where there is
    no dead-letter queue."""
    backoff: Backoff = AFTER_FAILURE
    """Wait after a failed run."""
    unhandled: Backoff = AFTER_STRANGER
    """Wait of a message that nobody here can handle."""
    pollers_max: int = 4
    """Receives under way at once while the queue is busy, 1 to 20; an idle queue has one."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("concurrency", 1, 1_000),
            ("prefetch", 0, 1_000),
            ("visibility_s", 1, VISIBILITY_S_MAX),
            ("ceiling_s", 1, CEILING_S_MAX),
            ("pollers_max", 1, 20),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
        if self.attempts_max is not None and self.attempts_max < 1:
            raise ValueError(f"attempts_max must be >= 1, not {self.attempts_max}")

    @property
    def visibility_ms(self) -> int:
        """The lease in milliseconds."""
        return self.visibility_s * 1_000


@dataclass(slots=True, frozen=True, kw_only=True)
class ProcessorSettings:
    """How a whole processor works.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    concurrency: int = 100
    """Jobs at a time over all queues, 1 to 10,000; a free slot goes to the queues in turn."""
    wait_s: int = WAIT_S_MAX
    """Longest wait of a receive, 1 to 20. A stop waits for it, for a receive that is cut off may
    have taken a message that nobody gets."""
    grace_ms: int = 90_000
    """From the signal to the end of the process; at least ``wait_s`` and 5 s more. Keep the pod's
    terminationGracePeriodSeconds above it."""
    linger_ms: int = 20
    """How long a delete or a release waits for others to share its call, 0 to 1,000."""
    ceiling_s: int = CEILING_S_MAX
    """Longest run of any job, 1 to 1,800; a queue may have a lower ceiling of its own."""
    visibility_s: int = 0
    """Lease of the messages of all queues, 1 to 43,200; 0: each queue has its own."""
    training_identity: str = ""
    """What the name of our credentials must begin with before a process reads the training queue,
    such as ``arn:aws:sts::111122223333:assumed-role/trainer/``. The training pool needs it."""
    metrics_port: int = 0
    """Port on which Prometheus and KEDA read the state of the queues; 0: none is opened."""
    metrics_host: str = "127.0.0.1"
    """Address that port is opened on; ``0.0.0.0`` inside a pod."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("concurrency", 1, 10_000),
            ("wait_s", 1, WAIT_S_MAX),
            ("linger_ms", 0, 1_000),
            ("ceiling_s", 1, CEILING_S_MAX),
            ("visibility_s", 0, VISIBILITY_S_MAX),
            ("metrics_port", 0, 65_535),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
        needed_ms = (self.wait_s + SLACK_S) * 1_000
        if self.grace_ms < needed_ms:
            raise ValueError(
                f"grace_ms must be >= {needed_ms} (the longest poll and {SLACK_S} s), not"
                f" {self.grace_ms}"
            )
