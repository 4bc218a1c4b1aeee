"""Small Apps and jobs that the tests of this folder share."""

from collections.abc import Sequence

from cape_stream.adapters.simulated import SimClock, Timeline
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.topology import Ordering
from cape_stream.ports.contexts import ContextSource
from cape_stream.runtime.worker_handler import HandlerKey, JobHandler
from cape_stream.sdk import App, Domain, Topology
from cape_stream.sdk.runner import HandlerFunction


def flights(app: App | None = None) -> Domain:
    """The domain of the first example."""
    app = app or App("flight-ops")
    return app.domain("flights", source=MemoryEventSource())


def clock() -> SimClock:
    """A clock that stands still until it is moved."""
    return SimClock(Timeline(start_ms=1_000_000))


def job(
    sequences: Sequence[int] = (1, 2, 3),
    *,
    lambda_id: str = "work",
    payload: bytes = b"{}",
    attempt: int = 1,
    epoch: int = 1,
) -> Job:
    """A job of topology ``delays`` for aircraft N1."""
    return Job(
        job_id="0-1-1",
        domain="flights",
        partition=0,
        subject="N1",
        topology="delays",
        lambda_id=lambda_id,
        queue="general",
        epoch=epoch,
        attempt=attempt,
        issued_ms=1_000_000,
        timeout_ms=30_000,
        events=[Event(sequence, payload) for sequence in sequences],
    )


def bound(
    function: HandlerFunction,
    ordering: Ordering = "parallel",
    contexts: ContextSource | None = None,
) -> JobHandler:
    """The handler as a worker gets it, alone in topology ``delays`` under the name ``work``."""
    app = App("flight-ops")
    flights(app).topology("delays", ordering=ordering).handler(name="work")(function)
    return app.job_handlers(contexts)[HandlerKey("flights", "delays", "work")]


def fed_topology() -> tuple[App, Topology]:
    """An App whose topology ``delays`` the caller fills."""
    app = App("flight-ops")
    return app, flights(app).topology("delays")
