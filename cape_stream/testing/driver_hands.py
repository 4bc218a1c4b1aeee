"""The hands of a driver: they run the App's handlers as a worker would, in the caller's thread."""

import asyncio

from cape_stream.adapters.simulated import SimClock, Timeline
from cape_stream.errors import Fenced
from cape_stream.ports.contexts import Context, MintedGrant
from cape_stream.runtime.worker_handler import HandlerKey, JobOutcome
from cape_stream.sdk.app import App
from cape_stream.testing.driven_jobs import Delivery, DrivenJob, DriverMisuseError
from cape_stream.testing.recorded_contexts import Published, RecordedContext


class Hands:
    """Run handlers and put down what they did.

    Args:
        app: whose handlers.
        timeline: the clock they see; it stands still meanwhile.
    """

    def __init__(self, app: App, timeline: Timeline) -> None:
        self.deliveries: list[Delivery] = []
        self.published: list[Published] = []
        self.grants: list[MintedGrant] = []
        self._app = app
        self._clock = SimClock(timeline)
        self._handlers = app.job_handlers(self._current_context)
        self._context: RecordedContext | None = None
        self._loop: asyncio.Runner | None = None

    def close(self) -> None:
        """End the event loop, if there was need of one."""
        if self._loop is not None:
            self._loop.close()

    def execute(self, job: DrivenJob) -> JobOutcome:
        """Run the handler of a job to its end."""
        stored, now_ms = job.stored, self._clock.now_ms()
        handler = self._handlers[HandlerKey(job.domain, job.topology, job.handler)]
        deadline_ms = now_ms + stored.timeout_ms
        self._context = RecordedContext(self._app.name, stored, now_ms, self.published, self.grants)
        try:
            if handler.is_async:
                outcome = self._runner().run(handler.run_async(stored, deadline_ms, self._clock))
            else:
                outcome = handler.run(stored, deadline_ms, self._clock)
        finally:
            self._context = None
        failed = {each.sequence: each.failure_class for each in outcome.failures}
        self.deliveries.append(
            Delivery(
                *(now_ms, job.domain, job.subject, job.topology, job.handler, job.attempt),
                *(job.sequences, tuple(outcome.done), failed),
            )
        )
        return outcome

    def _runner(self) -> asyncio.Runner:
        """The one event loop of all asynchronous handlers."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop = self._loop or asyncio.Runner()
            return self._loop
        raise DriverMisuseError(
            "an event loop runs in this thread already: drive asynchronous handlers from a plain"
            " `def` test; the driver has a loop for them"
        )

    def _current_context(self) -> Context:
        if self._context is None:
            raise Fenced("no handler runs here")
        return self._context
