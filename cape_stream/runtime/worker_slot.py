"""One slot of a worker: runs one job at a time, from its record to its status."""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from cape_stream.errors import Reject
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.job import Job
from cape_stream.model.status import FailureClass, StatusKind
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.clock import Clock
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Record
from cape_stream.runtime.worker_ages import JobAges
from cape_stream.runtime.worker_claims import ClaimDesk, with_missed
from cape_stream.runtime.worker_counters import WorkerCounters
from cape_stream.runtime.worker_executors import (
    ChildProcess,
    LoopThread,
    Sandbox,
    SpawnedSandbox,
)
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobHandler, JobOutcome
from cape_stream.runtime.worker_reports import Reports
from cape_stream.runtime.worker_status import bare_status, failed_outcome, result_status

HEARTBEATS_PER_TIMEOUT = 3


@dataclass(slots=True)
class SlotContext:
    """What all slots of a worker share."""

    codec: Codec
    clock: Clock
    names: TopicNames
    handlers: Mapping[HandlerKey, JobHandler]
    reports: Reports
    loop: LoopThread
    executor: Executor
    """Where synchronous handlers run that do not say."""
    clock_skew_ms: int
    ages: JobAges
    claims: ClaimDesk
    begin_sandbox: Callable[[], Sandbox] = SpawnedSandbox


@dataclass(slots=True)
class Running:
    """The job a slot is at."""

    job: Job
    queued_ms: int
    beat_ms: int
    """When the next heartbeat is due."""


class Slot:
    """Runs jobs one after the other. `beat` and `hand_back` may be called from other threads."""

    def __init__(self, context: SlotContext) -> None:
        self.counters = WorkerCounters()
        self._context = context
        self._child = ChildProcess(context.begin_sandbox)
        self._running: list[Running] = []
        """At most one. Whoever pops it reports the job; the others come too late."""
        self._future: Future[JobOutcome] | None = None

    def serve(self, record: Record) -> None:
        """Run the job in ``record`` and report it; whatever the record holds, the next one can
        follow."""
        job = self._read(record)
        if job is None:
            return
        context = self._context
        taken_ms = context.clock.now_ms()
        queued_ms = context.ages.queued_ms(job, taken_ms)
        if queued_ms > job.timeout_ms + context.clock_skew_ms:
            self.counters.stale += 1
            context.ages.give_back(job, taken_ms)
            context.reports.add(bare_status(job, StatusKind.HANDED_BACK, queued_ms))
            return
        counters = self.counters
        counters.taken += 1
        counters.queued_ms += queued_ms
        third_ms = job.timeout_ms // HEARTBEATS_PER_TIMEOUT
        # A job that waited long has little time left at the dispatcher: tell it at once.
        beat_ms = taken_ms if queued_ms > third_ms else taken_ms + third_ms
        self._running.append(Running(job, queued_ms, beat_ms))
        counters.running = 1
        outcome = self._run(job, taken_ms + job.timeout_ms)
        counters.running = 0
        if outcome is not None and self._claim() is not None:
            self._count(job, outcome)
            context.reports.add(result_status(job, outcome, queued_ms))

    def beat(self, now_ms: int) -> None:
        """Report that the job still runs, if that is due."""
        for running in self._running[:1]:
            if now_ms >= running.beat_ms:
                third_ms = running.job.timeout_ms // HEARTBEATS_PER_TIMEOUT
                running.beat_ms = now_ms + third_ms
                self.counters.heartbeats += 1
                status = bare_status(running.job, StatusKind.HEARTBEAT, running.queued_ms)
                self._context.reports.add(status)

    def hand_back(self) -> None:
        """The worker stops and cannot wait: give the job back, and end it where that is possible.

        A thread cannot be ended: what it still does is covered by the fencing token.
        """
        running = self._claim()
        if running is None:
            return
        self.counters.handed_back += 1
        status = bare_status(running.job, StatusKind.HANDED_BACK, running.queued_ms)
        self._context.reports.add(status)
        if self._future is not None:
            self._future.cancel()
        self._child.kill()

    def close(self) -> None:
        """Free all; nothing may be running."""
        self._child.close()

    def _read(self, record: Record) -> Job | None:
        """Decode the job, or count what is none and put it aside."""
        if record.value is None:
            self.counters.null_records += 1
            return None
        context = self._context
        try:
            return context.codec.decode_job(record.value, context.names.queue_of(record.topic))
        except Reject as error:
            letter = DeadLetter(
                record.topic,
                record.partition,
                record.offset,
                error.reason,
                record.key,
                record.value,
            )
            context.reports.add(letter)
            return None

    def _run(self, job: Job, deadline_ms: int) -> JobOutcome | None:
        """Run the handler on the job with its claims redeemed; None if it was cancelled."""
        context = self._context
        handler = context.handlers.get(HandlerKey(job.domain, job.topology, job.lambda_id))
        if handler is None:
            self.counters.unknown_handlers += 1
            text = (
                f"no handler for {job.topology}.{job.lambda_id} of domain {job.domain!r} in this"
                " worker: deploy the code that declares it"
            )
            sequences = [event.sequence for event in job.events]
            return failed_outcome(sequences, FailureClass.TRANSIENT, text)
        stops = handler.stops_at_failure
        job, missed = context.claims.redeem(job, stops, self.counters)
        if not job.events:
            return JobOutcome((), failures=missed)
        outcome = self._run_handler(handler, job, deadline_ms)
        if outcome is None:
            return None
        outcome = context.claims.deposit(outcome, stops, self.counters)
        return with_missed(outcome, job, missed, stops)

    def _run_handler(self, handler: JobHandler, job: Job, deadline_ms: int) -> JobOutcome | None:
        """Run it where it belongs; None if it was cancelled from outside."""
        context = self._context
        if handler.is_async:
            self._future = context.loop.start(handler.run_async(job, deadline_ms, context.clock))
            if not self._running:
                self._future.cancel()  # handed back before there was anything to cancel
            try:
                return self._future.result()
            except CancelledError:
                return None
            finally:
                self._future = None
        if (handler.executor or context.executor) is Executor.PROCESS:
            return self._child.run(handler, job, deadline_ms, context.clock)
        return handler.run(job, deadline_ms, context.clock)

    def _claim(self) -> Running | None:
        """Take the right to report the running job; list.pop is atomic."""
        try:
            return self._running.pop()
        except IndexError:
            return None

    def _count(self, job: Job, outcome: JobOutcome) -> None:
        counters = self.counters
        counters.events_done += len(outcome.done)
        counters.results_ignored += outcome.results_ignored
        if len(outcome.done) == len(job.events):
            counters.done += 1
            return
        for failure in outcome.failures:
            counters.events_failed[failure.failure_class] += 1
        counters.events_unreached += len(job.events) - len(outcome.done) - len(outcome.failures)
