"""What a worker needs to know of a user's callback: how to run it on a job, and what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from cape_stream.model.job import Job
from cape_stream.model.status import NO_OUTPUTS, EventFailure
from cape_stream.ports.clock import Clock


class Executor(StrEnum):
    """Where a synchronous handler runs. Asynchronous ones share one event loop thread."""

    THREAD = "thread"
    """A thread of the worker: for handlers that wait for something."""
    PROCESS = "process"
    """A child process beside each slot: for handlers that compute, or that may crash."""


class HandlerKey(NamedTuple):
    """Names one lambda among all of an App."""

    domain: str
    topology: str
    lambda_id: str


@dataclass(slots=True)
class JobOutcome:
    """What one run of a handler did. Never changed after it was built."""

    done: Sequence[int]
    """Sequence ids that succeeded, ascending."""
    outputs: Mapping[int, bytes] = field(default_factory=lambda: NO_OUTPUTS)
    """Output per succeeded sequence id, if another lambda takes it."""
    failures: Sequence[EventFailure] = ()
    """Events that failed; an event in neither `done` nor here was not reached."""
    results_ignored: int = 0
    """Results for events the job does not have, or second results for one event."""


class JobHandler(Protocol):
    """A user's callback, ready to run. Neither method raises for what the callback does.

    With `Executor.PROCESS` it is pickled, so it must be importable by name.
    """

    @property
    def is_async(self) -> bool:
        """True: only `run_async` may be used, on an event loop. False: only `run`."""
        ...

    @property
    def executor(self) -> Executor | None:
        """Where to run it; None leaves the choice to the worker. Ignored when `is_async`."""
        ...

    @property
    def stops_at_failure(self) -> bool:
        """True if nothing may run after the first failing event of a job: the order matters."""
        ...

    def run(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """Run on ``job``, which should be finished at ``deadline_ms`` by ``clock``."""
        ...

    async def run_async(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """The same, on an event loop; raises CancelledError when it is cancelled from outside."""
        ...
