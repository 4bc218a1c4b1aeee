"""The dispatcher as a `Processor`: records in, decoded and routed to the scheduler; jobs out.

Knows topics, keys and bytes; decides nothing about jobs. Row keys: ``a`` + subject for an active
row; ``c`` + subject for a cursor info; ``p`` + subject for the full row of one that sleeps, and
``d`` + its wake-up time + subject to find it by. ``a`` alone is the task's own row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeGuard
from zlib import crc32

from cape_stream.core.beginnings import lags
from cape_stream.core.carrying import holds_unserved
from cape_stream.core.effects import OversizedEvent
from cape_stream.core.plan import DomainPlan
from cape_stream.core.rows import Stored
from cape_stream.core.scheduler import Scheduler, SchedulerSettings
from cape_stream.errors import Corrupt, Reject
from cape_stream.model.active_row import NEVER_MS, ActiveRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.job import BACKLOG, LIVE, Job
from cape_stream.model.operation import AuditEntry, Operation
from cape_stream.model.ping import Ping
from cape_stream.model.request import EventPage, QueryFault
from cape_stream.model.status import JobStatus
from cape_stream.model.subject import partition_of
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import FailedSend, Record, Write
from cape_stream.runtime.active_rows import decode_active_row, encode_active_row
from cape_stream.runtime.due_index import due_key
from cape_stream.runtime.processor import Effects, RowReader, TaskId
from cape_stream.runtime.task_row import decode_task_row, encode_task_row

ACTIVE_PREFIX = b"a"
CURSOR_PREFIX = b"c"
ASLEEP_PREFIX = b"p"
DUE_PREFIX = b"d"


@dataclass(slots=True)
class IntakeCounters:
    """Records that were not what they should be; each grows only."""

    dead_letters: int = 0
    null_values: int = 0
    """Records with a key and no value: skipped, they say nothing."""
    forwarded_pings: int = 0
    """Pings on a partition that does not own their subject: sent to the one that does."""
    operations: int = 0
    """Operators' orders decided."""
    forwarded_operations: int = 0
    """Orders on a partition that does not own their subject: sent to the one that does."""
    swept_subjects: int = 0
    """Subjects a sweep found lagging though nothing was under way for them."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Routing:
    """Names and numbers a dispatcher needs to route records."""

    names: TopicNames
    domain: str
    partitions: int


class DispatchProcessor:
    """One task of a dispatcher. Implements `cape_stream.runtime.processor.Processor`."""

    def __init__(
        self,
        plan: DomainPlan,
        codec: Codec,
        routing: Routing,
        task: TaskId,
        epoch: int,
        settings: SchedulerSettings | None = None,
    ) -> None:
        self.scheduler = Scheduler(
            plan,
            partition=task.partition,
            epoch=epoch,
            settings=settings,
            partitions=routing.partitions,
        )
        self._codec = codec
        self._routing = routing
        self._partition = task.partition
        self._pings = routing.names.pings(routing.domain)
        self._job_topics = {
            (entry.queue, lane): routing.names.jobs(entry.queue, lane)
            for entry in plan.lambdas
            for lane in (LIVE, BACKLOG)
        }
        self._operations = routing.names.operations(routing.domain)
        self._intake = IntakeCounters()
        self._stored_paused: frozenset[str] = frozenset()

    # --- restart -------------------------------------------------------------------------------

    def restore(self, rows: Iterator[tuple[bytes, bytes]], now_ms: int) -> None:
        """Active rows of the table."""
        self.scheduler.restore(self._active_rows(rows), now_ms)

    def _active_rows(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[ActiveRow]:
        for key, value in rows:
            if key == ACTIVE_PREFIX:
                self._stored_paused = decode_task_row(value)
                self.scheduler.paused.update(self._stored_paused)
            else:
                yield decode_active_row(value)

    def adopt(self, outputs: Sequence[Record], read_rows: RowReader, now_ms: int) -> int:
        """Jobs this task or an earlier owner of it has issued."""
        jobs: list[Job] = []
        for record in outputs:
            if record.value is None:
                continue
            try:
                job = self._codec.decode_job(
                    record.value, self._routing.names.queue_of(record.topic)
                )
            except Reject:
                continue
            if job.domain == self._routing.domain and job.partition == self._partition:
                jobs.append(job)
        stored = self._stored((job.subject for job in jobs), read_rows)
        for job in jobs:
            self.scheduler.adopt(job, stored.get(job.subject), now_ms)
        return max((job.epoch for job in jobs), default=0)

    def catch_up(self, records: Sequence[Record], read_rows: RowReader, now_ms: int) -> Effects:
        """Statuses that were waiting when the task was restored."""
        effects = Effects()
        statuses = self._decoded_statuses(records, effects)
        stored = self._stored((status.subject for status in statuses), read_rows)
        for status in statuses:
            self.scheduler.settle_only(status, stored.get(status.subject), now_ms)
        return effects

    def resume(self, now_ms: int) -> Effects:
        """Everything restored goes on."""
        self.scheduler.resume(now_ms)
        return self._effects(Effects())

    # --- running -------------------------------------------------------------------------------

    def step(self, records: Sequence[Record], read_rows: RowReader, now_ms: int) -> Effects:
        """Pings, statuses and operators' orders."""
        effects = Effects()
        values: list[Ping | JobStatus | Operation] = []
        for record in records:
            value = self._decode(record, effects)
            if value is not None:
                values.append(value)
        stored = self._stored((value.subject for value in values if value.subject), read_rows)
        scheduler = self.scheduler
        for value in values:
            if isinstance(value, Ping):
                scheduler.on_ping(value.subject, value.latest, stored.get(value.subject), now_ms)
            elif isinstance(value, JobStatus):
                scheduler.on_status(value, stored.get(value.subject), now_ms)
            else:
                self._carry_out(value, stored, effects, now_ms)
        return self._effects(effects)

    def answer(self, answers: Sequence[EventPage | QueryFault], now_ms: int) -> Effects:
        """Answers of the source."""
        for answer in answers:
            if isinstance(answer, EventPage):
                self.scheduler.on_page(answer, now_ms)
            else:
                self.scheduler.on_fault(answer, now_ms)
        return self._effects(Effects())

    def undelivered(self, failed: Sequence[FailedSend], now_ms: int) -> Effects:
        """Jobs the client gave up or refused; forwarded pings need no mending: any may be lost."""
        for send in failed:
            if send.topic in self._job_topics.values() and send.value is not None:
                job = self._codec.decode_job(send.value, "")
                if job.domain == self._routing.domain and job.partition == self._partition:
                    refusal = send.reason if send.lasting else None
                    self.scheduler.on_undelivered(job.job_id, refusal, now_ms)
        return self._effects(Effects())

    def tick(self, now_ms: int) -> Effects:
        """Expiries and due times."""
        self.scheduler.on_tick(now_ms)
        return self._effects(Effects())

    def next_ms(self) -> int | None:
        """When something expires or is due."""
        return self.scheduler.next_ms()

    def sweep(
        self, rows: Iterable[tuple[bytes, bytes]], read_rows: RowReader, now_ms: int
    ) -> Effects:
        """Cursor infos: ping every subject with a lagging topology that nothing is done for."""
        shown = (self._cursors(value) for _, value in rows)
        lagging = [info.subject for info in shown if self._lags(info)]
        for subject, info in self._stored(lagging, read_rows).items():
            if isinstance(info, ActiveRow):
                if holds_unserved(self.scheduler.plan, info, self.scheduler.paused):
                    self.scheduler.on_wake(info, now_ms)
            elif self._lags(info):
                self._intake.swept_subjects += 1
                self.scheduler.on_ping(subject, info.latest, info, now_ms)
        return self._effects(Effects())

    def wake(self, keys: Sequence[bytes], read_rows: RowReader, now_ms: int) -> Effects:
        """Subjects whose wake-up time has come; one that is awake or gone by now is left alone."""
        for value in read_rows([ASLEEP_PREFIX + key for key in keys]):
            if value is not None:
                self.scheduler.on_wake(decode_active_row(value), now_ms)
        return self._effects(Effects())

    def _lags(self, info: CursorInfo | None) -> TypeGuard[CursorInfo]:
        """True if some topology is not where the subject's newest event is."""
        scheduler = self.scheduler
        return info is not None and lags(scheduler.plan, info, scheduler.takes)

    def changes(self, now_ms: int) -> dict[bytes, bytes | None]:
        """Rows as of this moment."""
        changes = self.scheduler.take_changes(now_ms)
        rows: dict[bytes, bytes | None] = {}
        if self.scheduler.paused != self._stored_paused:
            self._stored_paused = frozenset(self.scheduler.paused)
            rows[ACTIVE_PREFIX] = encode_task_row(self._stored_paused)
        for subject, wake_ms in changes.woken:
            rows[ASLEEP_PREFIX + subject.encode()] = None
            if wake_ms != NEVER_MS:
                rows[due_key(DUE_PREFIX, wake_ms, subject.encode())] = None
        for subject in changes.had_row:
            rows[ACTIVE_PREFIX + subject.encode()] = None
        for row in changes.active:
            rows[ACTIVE_PREFIX + row.subject.encode()] = encode_active_row(row)
        for row in changes.asleep:
            rows[ASLEEP_PREFIX + row.subject.encode()] = encode_active_row(row)
            if row.wake_ms != NEVER_MS:
                rows[due_key(DUE_PREFIX, row.wake_ms, row.subject.encode())] = b""
        encode_cursors = self._codec.encode_cursors
        for info in changes.finished:
            rows[CURSOR_PREFIX + info.subject.encode()] = encode_cursors(info)
        return rows

    def load(self) -> int:
        """Jobs that are out and subjects in memory."""
        return self.scheduler.open_jobs + self.scheduler.active_subjects

    def counters(self) -> Mapping[str, int]:
        """Scheduler's and intake's counters."""
        return asdict(self.scheduler.counters) | asdict(self._intake)

    # --- inside --------------------------------------------------------------------------------

    def _carry_out(
        self,
        operation: Operation,
        stored: Mapping[str, Stored | None],
        effects: Effects,
        now_ms: int,
    ) -> None:
        """Decide an order; what became of it goes out with the state it changed."""
        ruling = self.scheduler.on_operation(operation, stored.get(operation.subject or ""), now_ms)
        self._intake.operations += 1
        effects.sweep = effects.sweep or ruling.sweep
        entry = AuditEntry(operation, self._partition, ruling.outcome, ruling.detail, now_ms)
        topic = self._routing.names.audit(self._routing.domain)
        key = (operation.subject or operation.topology).encode()
        value = self._codec.encode_audit_entry(entry)
        effects.committed.append(Write(topic, self._partition, key, value))

    def _decode(self, record: Record, effects: Effects) -> Ping | JobStatus | Operation | None:
        """The record's value, or None after it was dead-lettered, skipped or forwarded."""
        topic, _, _, _, key, value = record
        if value is None and key is not None:
            self._intake.null_values += 1
            return None
        try:
            if value is None:
                raise Reject("null key and null value")
            if topic == self._pings:
                ping = self._codec.decode_ping(key, value)
                assert key is not None, "the codec refuses a ping without a key"
                owner = crc32(key) % self._routing.partitions
                if owner != self._partition:
                    self._intake.forwarded_pings += 1
                    effects.outputs.append(Write(topic, owner, key, value))
                    return None
                return ping
            if topic == self._operations:
                return self._decode_operation(record, effects)
            status = self._codec.decode_status(key, value)
            if status.partition != self._partition or status.domain != self._routing.domain:
                raise Reject(
                    f"status of task {status.domain}-{status.partition} on the partition of"
                    f" task {self._routing.domain}-{self._partition}"
                )
            return status
        except Reject as error:
            self._bury(record, error.reason, effects)
            return None

    def _decode_operation(self, record: Record, effects: Effects) -> Operation | None:
        """An order, or None after it was sent on: with the commit, for it must not be lost, nor be
        there twice."""
        key = record.key
        operation = self._codec.decode_operation(key, record.value)
        if operation.domain != self._routing.domain:
            raise Reject(f"order about domain {operation.domain} in that of {self._routing.domain}")
        if operation.subject is None:
            return operation
        owner = partition_of(operation.subject.encode(), self._routing.partitions)
        if owner == self._partition:
            return operation
        self._intake.forwarded_operations += 1
        assert record.value is not None, "decoded just now"
        effects.committed.append(Write(record.topic, owner, key, record.value))
        return None

    def _decoded_statuses(self, records: Sequence[Record], effects: Effects) -> list[JobStatus]:
        values = (self._decode(record, effects) for record in records)
        return [value for value in values if isinstance(value, JobStatus)]

    def _bury(self, record: Record, reason: str, effects: Effects) -> None:
        """Keep an unusable record, unchanged, where people can find it."""
        self._intake.dead_letters += 1
        letter = DeadLetter(
            record.topic, record.partition, record.offset, reason, record.key, record.value
        )
        effects.committed.append(self._dead_letter_write(letter))

    def _dead_letter_write(self, letter: DeadLetter) -> Write:
        value = self._codec.encode_dead_letter(letter)
        return Write(self._routing.names.dead_letters, letter.partition, letter.key, value)

    def _stored(self, subjects: Iterable[str], read_rows: RowReader) -> dict[str, Stored | None]:
        """What is stored of the subjects that are not in memory."""
        holds = self.scheduler.holds
        cold = list(dict.fromkeys(subject for subject in subjects if not holds(subject)))
        if not cold:
            return {}
        keys = [subject.encode() for subject in cold]
        values = read_rows([p + key for p in (ASLEEP_PREFIX, CURSOR_PREFIX) for key in keys])
        return {
            subject: self._cursors(cursors) if row is None else decode_active_row(row)
            for subject, row, cursors in zip(cold, values, values[len(cold) :], strict=False)
        }

    def _cursors(self, value: bytes | None) -> CursorInfo | None:
        return None if value is None else self.decode_cursor_row(value)

    def decode_cursor_row(self, value: bytes) -> CursorInfo:
        """A row of cursors, or `Corrupt` if the bytes are none."""
        try:
            return self._codec.decode_cursors(value)
        except Reject as error:
            raise Corrupt(f"cursor row does not decode: {error.reason}") from error

    def _effects(self, effects: Effects) -> Effects:
        """Turn what the scheduler wants into records and questions."""
        wanted = self.scheduler.take_effects()
        encode_job = self._codec.encode_job
        topics = self._job_topics
        outputs = effects.outputs
        for job in wanted.jobs:
            partition = self._partition if job.attempt == 1 else self._other_partition(job)
            key = job.subject.encode()
            outputs.append(Write(topics[job.queue, job.lane], partition, key, encode_job(job)))
        for event in wanted.oversized:
            self._bury_oversized(event, effects)
        effects.queries.extend(wanted.queries)
        effects.sweep = effects.sweep or wanted.sweep
        return effects

    def _bury_oversized(self, event: OversizedEvent, effects: Effects) -> None:
        """Its bytes stay at the source: they fit no record."""
        plan = self.scheduler.plan.lambdas[event.lambda_index]
        reason = (
            f"event {event.sequence} has {event.size} bytes for {plan.topology}/{plan.lambda_id},"
            " more than a job may have"
        )
        topic = self._job_topics[plan.queue, LIVE]
        letter = DeadLetter(topic, self._partition, -1, reason, event.subject.encode(), None)
        self._intake.dead_letters += 1
        effects.committed.append(self._dead_letter_write(letter))

    def _other_partition(self, job: Job) -> int:
        """Where a reissue goes: away from a partition whose worker may be stuck."""
        partitions = self._routing.partitions
        if partitions == 1:
            return 0
        step = 1 + partition_of(job.job_id.encode(), partitions - 1)
        return (self._partition + step) % partitions


def dispatcher_factory(
    plan: DomainPlan,
    codec: Codec,
    routing: Routing,
    settings: SchedulerSettings | None = None,
) -> Callable[[TaskId, int], DispatchProcessor]:
    """``make_processor`` of a `TaskGroup` for one domain."""

    def make(task: TaskId, epoch: int) -> DispatchProcessor:
        return DispatchProcessor(plan, codec, routing, task, epoch, settings)

    return make
