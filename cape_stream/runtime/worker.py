"""The worker: takes jobs from its queues, runs their handlers in slots, reports what came out.

    group member ──▶ buffer (live before backlog) ──▶ slots ──▶ reports ──▶ statuses topic
      loop's thread                                   N threads    reporter's thread

A slow job holds its own slot and nothing else. Inline, one thread does all of it, job after job.
Nothing here decides about retries: a job's fate is the dispatcher's, a worker says what it saw.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from cape_stream.errors import Fatal, Retry
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.claims import ClaimStore
from cape_stream.ports.clock import Clock
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Log
from cape_stream.runtime.worker_ages import JobAges
from cape_stream.runtime.worker_claims import ClaimDesk
from cape_stream.runtime.worker_counters import WorkerCounters, total
from cape_stream.runtime.worker_executors import (
    LoopThread,
    Sandbox,
    SpawnedSandbox,
    check_picklable,
)
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobHandler
from cape_stream.runtime.worker_intake import Intake
from cape_stream.runtime.worker_reports import Reports
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.runtime.worker_slot import Slot, SlotContext

POLL_MS = 50
"""How long one `Worker.step` of `Worker.run` waits for a job; bounds how late it sees a stop."""
COMMIT_INTERVAL_MS = 50
BEAT_SCAN_MS = 100
"""How often running jobs are looked at for heartbeats; shorter timeouts get none."""
PUMP_INTERVAL_MS = 5
"""Inline: statuses wait at most this long (and one job) for those of the same poll."""
RETRY_MS = 500
"""Wait when the log is away and does not say how long."""
FLUSH_MS = 10_000
JOIN_MS = 1_000

_log = logging.getLogger("cape_stream.worker")


class Worker:
    """Serves the queues of one App until it is told to stop.

    Use `run` (which blocks) and `stop` (from another thread or a signal handler), or, to stay in
    control, `step` again and again and then `close`.

    Args:
        log: where jobs come from and statuses go to; stays open.
        codec: how they are written.
        clock: the steady clock of the process.
        names: the App's topics and groups.
        handlers: every lambda this worker has code for; jobs for others fail as transient.
        settings: see there.
        claims: where outputs over ``settings.output_bytes_max`` go; stays open.
        begin_sandbox: makes the child process of a slot, or takes one that is ready.

    Raises:
        Fatal: a handler is to run in a child process and cannot be sent there.
    """

    def __init__(
        self,
        log: Log,
        codec: Codec,
        clock: Clock,
        names: TopicNames,
        handlers: Mapping[HandlerKey, JobHandler],
        settings: WorkerSettings,
        claims: ClaimStore | None = None,
        begin_sandbox: Callable[[], Sandbox] = SpawnedSandbox,
    ) -> None:
        check_picklable(_for_processes(handlers, settings), clock)
        self._clock = clock
        self._settings = settings
        self._loop = LoopThread()
        self._reports = Reports(log, codec, names)
        context = SlotContext(
            codec=codec,
            clock=clock,
            names=names,
            handlers=handlers,
            reports=self._reports,
            loop=self._loop,
            executor=settings.executor,
            clock_skew_ms=settings.clock_skew_ms,
            ages=JobAges(),
            claims=ClaimDesk(claims, settings.output_bytes_max),
            begin_sandbox=begin_sandbox,
        )
        self._slots = [Slot(context) for _ in range(settings.concurrency)]
        self._counters = WorkerCounters()
        self._intake = Intake(
            log, names, settings.queues, settings.prefetch, settings.backlog_percent
        )
        self._threads: list[threading.Thread] = []
        self._reporters: list[threading.Thread] = []
        self._stopping = False
        self._reporting = True
        self._committed_ms = 0
        self._pumped_ms = 0

    def run(self) -> None:
        """Work until `stop`, then close.

        Raises:
            Fatal: the worker cannot go on; it has closed.
        """
        try:
            while not self._stopping:
                self.step(POLL_MS)
        finally:
            self.close()

    def stop(self) -> None:
        """Make `run` end: what runs may finish within the grace period, the rest is handed back."""
        self._stopping = True

    def step(self, timeout_ms: int) -> None:
        """One round: get jobs, waiting for the first at most so long; inline, also run them.

        Raises:
            Fatal: the worker cannot go on; close it.
        """
        if not self._settings.inline and not self._threads:
            self._start_threads()
        if any(not thread.is_alive() for thread in (*self._threads, *self._reporters)):
            raise Fatal("a thread of the worker ended by an error of its own; see the log")
        try:
            self._intake.fill(timeout_ms)
        except Retry as error:
            self._counters.polls_failed += 1
            _log.warning("the log does not answer, will ask again: %s", error.reason)
            self._clock.sleep_ms(error.after_ms or RETRY_MS)
        if self._settings.inline:
            self._serve_inline()
        self._commit(self._clock.now_ms())

    def counters(self) -> WorkerCounters:
        """What happened so far, summed over all parts; from any thread."""
        parts = [self._counters, self._reports.counters, *(slot.counters for slot in self._slots)]
        counters = total(parts)
        counters.waiting = self._intake.waiting
        return counters

    def close(self) -> None:
        """Stop gracefully: leave the group, finish or hand back what runs, flush, free all."""
        self._stopping = True
        self._intake.stop()
        self._intake.close()  # at once, so that others get the waiting jobs while ours finish
        deadline_ms = self._clock.now_ms() + self._settings.grace_ms
        self._join_slots(deadline_ms)
        for slot in self._slots:
            slot.hand_back()
        self._join_slots(self._clock.now_ms() + JOIN_MS)
        self._stop_reporter()
        self._loop.close(JOIN_MS)
        if not any(thread.is_alive() for thread in self._threads):
            for slot in self._slots:
                slot.close()
        self._reports.close(FLUSH_MS)

    def _start_threads(self) -> None:
        live_slots = min(self._settings.live_slots, len(self._slots) - 1)
        for number, slot in enumerate(self._slots):
            thread = threading.Thread(
                target=self._serve,
                args=(slot, number < live_slots),
                name=f"cape-slot-{number}",
                daemon=True,
            )
            self._threads.append(thread)
        reporter = threading.Thread(target=self._report, name="cape-reporter", daemon=True)
        self._reporters.append(reporter)
        for thread in (*self._threads, reporter):
            thread.start()

    def _serve(self, slot: Slot, live_only: bool) -> None:
        while (record := self._intake.take(live_only=live_only)) is not None:
            slot.serve(record)
            while self._reports.is_full and not self._stopping:
                self._clock.sleep_ms(POLL_MS)

    def _serve_inline(self) -> None:
        (slot,) = self._slots
        while not self._stopping and (record := self._intake.take_now()) is not None:
            slot.serve(record)
            now_ms = self._clock.now_ms()
            if now_ms - self._pumped_ms >= PUMP_INTERVAL_MS:
                self._pumped_ms = now_ms
                self._reports.pump(0)
                self._commit(now_ms)
        self._reports.pump(0)

    def _report(self) -> None:
        beat_ms = 0
        while self._reporting:
            self._reports.pump(BEAT_SCAN_MS)
            now_ms = self._clock.now_ms()
            if now_ms >= beat_ms:
                beat_ms = now_ms + BEAT_SCAN_MS
                for slot in self._slots:
                    slot.beat(now_ms)

    def _commit(self, now_ms: int) -> None:
        if now_ms - self._committed_ms >= COMMIT_INTERVAL_MS:
            self._committed_ms = now_ms
            self._intake.commit()

    def _join_slots(self, deadline_ms: int) -> None:
        for thread in self._threads:
            thread.join(max(0, deadline_ms - self._clock.now_ms()) / 1_000)

    def _stop_reporter(self) -> None:
        self._reporting = False
        self._reports.wake()
        for reporter in self._reporters:
            reporter.join(FLUSH_MS / 1_000)
            self._reports.hurry()
            reporter.join()


def _for_processes(
    handlers: Mapping[HandlerKey, JobHandler], settings: WorkerSettings
) -> Iterator[tuple[HandlerKey, JobHandler]]:
    for key, handler in handlers.items():
        executor = handler.executor or settings.executor
        if executor is Executor.PROCESS and not handler.is_async:
            yield key, handler
