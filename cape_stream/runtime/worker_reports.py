"""Takes a worker's reports to the log: statuses to their task's partition, and dead letters."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from cape_stream.errors import Reject
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.status import JobStatus
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import FailedSend, Log
from cape_stream.runtime.worker_counters import WorkerCounters
from cape_stream.runtime.worker_status import without_outputs

BACKLOG_MAX = 10_000
"""Reports that may wait here before slots stop taking jobs."""

SENDS_PER_REPORT_MAX = 3
"""So often a report the client gave up is offered in all. A status is a fact that the dispatcher
takes late as well, and running the job again costs more than sending it again; yet a record the log
will never take must come to an end."""

FULL_POLL_MS = 10


class Reports:
    """Owns the producer. `add` may be called from any thread, everything else from one.

    Args:
        log: where the reports go.
        codec: how they are written.
        names: the App's topics.
    """

    def __init__(self, log: Log, codec: Codec, names: TopicNames) -> None:
        self.counters = WorkerCounters()
        self._producer = log.producer()
        self._codec = codec
        self._names = names
        self._waiting: SimpleQueue[JobStatus | DeadLetter | None] = SimpleQueue()
        self._again: Counter[tuple[str, int, bytes | None]] = Counter()
        """Records the client gave up, by what they are; empty unless the log is in trouble."""
        self._closing = False

    def add(self, report: JobStatus | DeadLetter) -> None:
        """Queue one report."""
        self._waiting.put(report)

    @property
    def is_full(self) -> bool:
        """True when the log is too slow: take no more jobs for now."""
        return self._waiting.qsize() > BACKLOG_MAX

    def wake(self) -> None:
        """Make `pump` return early."""
        self._waiting.put(None)

    def pump(self, timeout_ms: int) -> None:
        """Send what is queued, waiting for the first one at most so long."""
        if timeout_ms:
            with suppress(Empty):
                self._send(self._waiting.get(timeout=timeout_ms / 1_000))
        for _ in range(self._waiting.qsize()):
            self._send(self._waiting.get_nowait())
        self._producer.poll(0)
        failed = self._producer.take_failed()
        for each in failed:
            self._resend(each)
        if self._again and not failed and self._producer.sent == self._producer.settled:
            self._again.clear()

    def hurry(self) -> None:
        """From any thread: stop waiting for room in the client's queue; the worker closes."""
        self._closing = True

    def close(self, flush_timeout_ms: int) -> None:
        """Send everything, wait for the log's answers at most so long, and free all."""
        self.hurry()
        self.pump(0)
        self._producer.flush(flush_timeout_ms)
        self.counters.statuses_lost += len(self._producer.take_failed())
        self._producer.close()

    def _send(self, report: JobStatus | DeadLetter | None) -> None:
        """Send a report, or what is left of it when the log says that it is too large."""
        if isinstance(report, JobStatus):
            self.counters.statuses_sent += 1
            try:
                self._send_status(report)
            except Reject as error:
                self._send_status(without_outputs(report, error.reason))
        elif isinstance(report, DeadLetter):
            self.counters.dead_letters += 1
            try:
                self._send_letter(report)
            except Reject as error:
                reason = f"{report.reason} (value not kept: {error.reason})"
                self._send_letter(replace(report, value=None, reason=reason))

    def _send_status(self, status: JobStatus) -> None:
        value = self._codec.encode_status(status)
        topic = self._names.statuses(status.domain)
        self._offer(topic, status.partition, status.subject.encode(), value)

    def _send_letter(self, letter: DeadLetter) -> None:
        value = self._codec.encode_dead_letter(letter)
        self._offer(self._names.dead_letters, letter.partition, letter.key, value)

    def _offer(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Send one record, waiting for room; a worker that is closing does not wait."""
        while not self._producer.send(topic, partition, key, value):
            if self._closing:
                self.counters.statuses_lost += 1
                return
            self._producer.poll(FULL_POLL_MS)

    def _resend(self, failed: FailedSend) -> None:
        name = (failed.topic, failed.partition, failed.value)
        self._again[name] += 1
        if self._again[name] < SENDS_PER_REPORT_MAX:
            self.counters.statuses_resent += 1
            self._offer(failed.topic, failed.partition, failed.key, failed.value)
        else:
            del self._again[name]
            self.counters.statuses_lost += 1
