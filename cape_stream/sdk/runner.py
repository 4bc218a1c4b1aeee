"""Runs a handler on a job and works out, event by event, what became of it.

A handler answers in one of three ways: it returns None (every event is done), it raises (every
event without a result has failed that way), or it yields results. What it yielded before it crashed
counts. In an ordered topology nothing runs after the first failing event: the handler is stopped
at its ``yield``, and the rest of the batch is reported as not reached.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Protocol

from cape_stream.model.job import Job
from cape_stream.model.topology import LambdaSpec
from cape_stream.ports.clock import Clock
from cape_stream.ports.contexts import Context, ContextSource
from cape_stream.runtime.worker_handler import Executor, JobOutcome
from cape_stream.sdk.batch import Batch, EventResult
from cape_stream.sdk.failures import HandlerMisuseError
from cape_stream.sdk.tally import Tally, TallyRules, shorten

Answer = (
    Iterator[EventResult] | list[EventResult] | Awaitable[None] | AsyncIterator[EventResult] | None
)


class ContextHandler(Protocol):
    """A handler that takes a context."""

    def __call__(self, batch: Batch, /, *, ctx: Context) -> Answer:
        """Work on a batch; `ctx` may be a positional parameter, too."""
        ...


HandlerFunction = Callable[[Batch], Answer] | ContextHandler
"""Every shape a handler may have: function, generator, async function, async generator; each of
them may take a context beside the batch."""


@dataclass(slots=True, frozen=True, kw_only=True)
class BoundHandler:
    """A handler function and what its declaration says of it; a `JobHandler`."""

    function: HandlerFunction
    spec: LambdaSpec
    rules: TallyRules
    is_async: bool
    executor: Executor | None = None
    contexts: ContextSource | None = None
    """Where its `ctx` comes from; None if it takes none."""

    @property
    def stops_at_failure(self) -> bool:
        """See `JobHandler.stops_at_failure`."""
        return self.rules.stops_at_failure

    def run(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """Run a synchronous handler to its end."""
        batch = Batch(job, clock, deadline_ms, self.spec.inputs)
        with Tally(job, batch, self.rules) as tally:
            returned = self._called(batch)
            if returned is None:
                return _all_done(job)
            _drive(returned, tally)
        return tally.outcome()

    async def run_async(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """Run an asynchronous handler to its end, unless it is cancelled from outside."""
        batch = Batch(job, clock, deadline_ms, self.spec.inputs)
        with Tally(job, batch, self.rules) as tally:
            try:
                returned = self._called(batch)
                if isawaitable(returned):
                    returned = await returned
                if returned is None:
                    return _all_done(job)
                if isinstance(returned, AsyncIterator):
                    await _drive_async(returned, tally)
                else:
                    _drive(returned, tally)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                tally.crash(error)
        return tally.outcome()

    def _called(self, batch: Batch) -> object:
        function: Callable[..., Any] = self.function
        return function(batch) if self.contexts is None else function(batch, ctx=self.contexts())


def _all_done(job: Job) -> JobOutcome:
    return JobOutcome([event.sequence for event in job.events])


def _drive(returned: object, tally: Tally) -> None:
    if isinstance(returned, Coroutine):
        returned.close()
    if not isinstance(returned, Iterator | list | tuple):
        raise HandlerMisuseError(
            f"the handler returned {shorten(returned)}: return None when all events are done, or"
            " yield a result for each; an async handler must be visible as `async def`"
        )
    try:
        for result in returned:
            if not tally.add(result):
                break
    finally:
        close = getattr(returned, "close", None)
        if close is not None:
            close()


async def _drive_async(returned: AsyncIterator[object], tally: Tally) -> None:
    try:
        async for result in returned:
            if not tally.add(result):
                break
    finally:
        close = getattr(returned, "aclose", None)
        if close is not None:
            await close()
