"""What users declare: domains, topologies, lambdas, as plain data that the dispatcher compiles."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cape_stream.model.status import FailureClass

Ordering = Literal["parallel", "ordered"]


@dataclass(slots=True, frozen=True, kw_only=True)
class RetrySpec:
    """Exponential backoff with full jitter, for ever.

    The wait before attempt n + 1 is drawn from [0, min(max_ms, first_ms * 2 ** (n - 1))], never
    below ``floor_ms``. Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    first_ms: int = 1_000
    max_ms: int = 300_000
    floor_ms: int = 10


@dataclass(slots=True, frozen=True, kw_only=True)
class LambdaSpec:
    """One callback of a topology, invoked with batches of events of one subject."""

    lambda_id: str
    queue: str = "general"
    """Worker queue its jobs go to."""
    inputs: tuple[str, ...] = ()
    """Lambda ids of the same topology whose outputs it takes, event by event."""
    max_batch: int = 50
    """Most events in one job; 1 to 10,000."""
    timeout_ms: int = 30_000
    """How long one job may run before it is given up and retried."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TopologySpec:
    """A user application subscribed to a domain."""

    name: str
    lambdas: tuple[LambdaSpec, ...]
    ordering: Ordering = "parallel"
    """``parallel``: several jobs of a subject may run. ``ordered``: one at a time, stop at the
    first failing event."""
    after: tuple[str, ...] = ()
    """Topologies of the domain that must have done an event first."""
    start: int = 0
    """First sequence id it wants; 0 is the earliest."""
    from_latest: bool = False
    """True: of each subject it wants what is newer than the domain has seen when a dispatcher that
    has the topology first looks at the subject; see `cape_stream.core.beginnings`."""
    formerly: tuple[str, ...] = ()
    """Names it had before, newest first: where it has no cursor, it goes on from theirs."""
    window: int = 1_000
    """Most events of a subject between the cursor and the newest issued one (parallel only)."""
    retry: RetrySpec = field(default_factory=RetrySpec)
    in_flight_max: int | None = None
    """Most jobs out at a time, over all partitions; each has an equal share. None: as many as its
    queues take."""
    jobs_per_s_max: float | None = None
    """Most jobs a second, likewise, with bursts of up to a second's worth."""
    quarantine_after: Mapping[FailureClass, int] = field(default_factory=dict)
    """Failure class → the failed attempt with which an event that failed so is put into quarantine,
    where it waits for a person; a class that is not named is retried for ever. What follows the
    event in its subject waits too where the order says so: nothing is skipped by itself."""


@dataclass(slots=True, frozen=True, kw_only=True)
class DomainSpec:
    """A namespace of events with one source and the topologies subscribed to it."""

    name: str
    topologies: tuple[TopologySpec, ...]
    page_limit: int = 100
    """Most events one event query may return; the source's capacity bounds it."""
