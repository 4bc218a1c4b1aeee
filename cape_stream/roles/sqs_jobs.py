"""Runs Cape jobs that came over SQS, and takes their statuses to the log.

The message is deleted only when the status is in the log, so a job whose worker died comes again.
Statuses of jobs that end together share one flush.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cape_stream.errors import Reject, Retry
from cape_stream.model.job import Job
from cape_stream.model.status import FailureClass, JobStatus, StatusKind
from cape_stream.queues.messages.jobs import JobsHandler
from cape_stream.roles.backends import Backend
from cape_stream.runtime.worker_handler import HandlerKey, JobHandler, JobOutcome
from cape_stream.runtime.worker_status import (
    bare_status,
    failed_outcome,
    result_status,
    without_outputs,
)
from cape_stream.sdk.app import App

HEARTBEATS_PER_TIMEOUT = 3
FLUSH_MS = 10_000
CLOCK_SKEW_MS = 5_000
"""How far the clocks of dispatcher and worker may differ."""

logger = logging.getLogger(__name__)


class StatusSender:
    """Sends statuses from one event loop through one producer.

    Whoever sends may be cancelled at any point; that ends neither the flush nor anybody else's
    wait for it, for it is a task of its own.

    Args:
        app: whose topics.
        backend: its log and codec; stays open.
    """

    def __init__(self, app: App, backend: Backend) -> None:
        self._names = app.topic_names
        self._codec = backend.codec
        self._producer = backend.log.producer()
        self._waiting: list[tuple[JobStatus, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def send(self, status: JobStatus) -> None:
        """Return once the status is in the log.

        Raises:
            Retry: it is not.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((status, stored))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        await stored

    async def close(self) -> None:
        """Let what is being sent arrive, and free all."""
        if self._flushing is not None:
            await self._flushing
        await asyncio.to_thread(self._producer.close)

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                error = await asyncio.to_thread(self._carry, [each for each, _ in batch])
            except Exception as fault:  # whatever it is, nobody may wait for ever
                logger.exception("statuses could not be sent")
                error = repr(fault)
            for _, stored in batch:
                if stored.done():
                    continue  # whoever sent it was cancelled
                if error is None:
                    stored.set_result(None)
                else:
                    stored.set_exception(Retry(error))

    def _carry(self, statuses: list[JobStatus]) -> str | None:
        for status in statuses:
            try:
                self._offer(status)
            except Reject as error:
                self._offer(without_outputs(status, error.reason))
        settled = self._producer.flush(FLUSH_MS)
        failed = self._producer.take_failed()
        if failed:
            return f"{len(failed)} statuses were not stored: {failed[0].reason}"
        return None if settled else f"statuses were not stored within {FLUSH_MS} ms"

    def _offer(self, status: JobStatus) -> None:
        value = self._codec.encode_status(status)
        topic = self._names.statuses(status.domain)
        while not self._producer.send(topic, status.partition, status.subject.encode(), value):
            self._producer.poll(10)


@dataclass(slots=True)
class AppJobRunner:
    """Implements `JobRunner` with the handlers of an App."""

    handlers: Mapping[HandlerKey, JobHandler]
    backend: Backend
    sender: StatusSender

    async def run(self, job: Job, remaining_ms: int) -> None:
        """See `JobRunner.run`."""
        clock = self.backend.clock
        taken_ms = clock.now_ms()
        queued_ms = max(0, taken_ms - job.issued_ms)
        if queued_ms > job.timeout_ms + CLOCK_SKEW_MS:
            # The dispatcher has given it up; this tells it so, in case it has not.
            await self.sender.send(bare_status(job, StatusKind.HANDED_BACK, queued_ms))
            return
        beats = asyncio.create_task(self._beat(job, queued_ms))
        try:
            outcome = await self._outcome(job, taken_ms + min(job.timeout_ms, remaining_ms))
        finally:
            beats.cancel()
        await self.sender.send(result_status(job, outcome, queued_ms))

    async def _outcome(self, job: Job, deadline_ms: int) -> JobOutcome:
        handler = self.handlers.get(HandlerKey(job.domain, job.topology, job.lambda_id))
        if handler is None:
            text = f"no handler for {job.topology}.{job.lambda_id} of domain {job.domain!r} here"
            sequences = [event.sequence for event in job.events]
            return failed_outcome(sequences, FailureClass.TRANSIENT, text)
        if handler.is_async:
            return await handler.run_async(job, deadline_ms, self.backend.clock)
        return await asyncio.to_thread(handler.run, job, deadline_ms, self.backend.clock)

    async def _beat(self, job: Job, queued_ms: int) -> None:
        """Tell the dispatcher that the job still runs, until cancelled."""
        while True:
            await asyncio.sleep(job.timeout_ms / HEARTBEATS_PER_TIMEOUT / 1_000)
            with suppress(Retry):
                await self.sender.send(bare_status(job, StatusKind.HEARTBEAT, queued_ms))


def jobs_handler(
    handlers: Mapping[HandlerKey, JobHandler], backend: Backend, sender: StatusSender
) -> JobsHandler:
    """The handler of the jobs queue for an App."""
    return JobsHandler(backend.codec, AppJobRunner(handlers, backend, sender))
