"""A world for one engine: a plain simulated log, a disk, a source, and a clock moved by hand.

Nothing takes time and nothing fails unless a test says so. The engine, its processor, the codec and
the ports' twins are the real ones.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import (
    Broker,
    BrokerSettings,
    Dice,
    Disk,
    Faults,
    MemoryTable,
    SimClock,
    SimLog,
    SimProcess,
    SimSource,
)
from cape_stream.core.plan import compile_plan
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.operation import AuditEntry, Operation, Verb
from cape_stream.model.ping import Ping
from cape_stream.model.status import EventFailure, FailureClass, JobStatus, StatusKind
from cape_stream.model.subject import partition_of
from cape_stream.model.topic_names import TopicNames
from cape_stream.model.topology import DomainSpec, TopologySpec
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.log import Record, TopicPartition, TopicSpec, Watermarks
from cape_stream.ports.source import EventSource
from cape_stream.runtime.dispatching import DispatchProcessor, Routing, dispatcher_factory
from cape_stream.runtime.loop import Backgrounds, Engine
from cape_stream.runtime.processor import TaskGroup, TaskId
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.task import Task

T = TypeVar("T")

NAMES = TopicNames("app")
DOMAIN = "flights"


class InlinePending(Generic[T]):
    """A piece of work that runs when it is told to; `result` tells it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = False
        self._result: T | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Do the work now, unless it is done."""
        if not self._done:
            try:
                self._result = self._work()
            except Exception as error:
                self._error = error
            self._done = True

    def done(self) -> bool:
        """See `Pending.done`."""
        return self._done

    def result(self) -> T:
        """See `Pending.result`."""
        self.run()
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class InlineBackground(Background):
    """Runs work at once, or, while it ``holds``, when the test calls `release`."""

    def __init__(self) -> None:
        self.holds = False
        self.waiting: list[InlinePending[object]] = []
        self.submitted = 0

    def submit(self, work: Callable[[], T], /) -> Pending[T]:
        """See `Background.submit`."""
        self.submitted += 1
        pending = InlinePending(work)
        if self.holds:
            self.waiting.append(cast("InlinePending[object]", pending))
        else:
            pending.run()
        return pending

    def release(self) -> None:
        """Let everything that waits happen."""
        waiting, self.waiting = self.waiting, []
        for pending in waiting:
            pending.run()

    def close(self) -> None:
        """Nothing to free."""


class EngineWorld:
    """Everything around the dispatcher of one domain.

    Args:
        topologies: of the domain.
        partitions: of every topic.
        settings: of the engine; sweeps are off unless they switch them on.
        scheduler: settings of the schedulers.
        source: in place of a `SimSource`.
        broker: limits of the log.
    """

    def __init__(
        self,
        *topologies: TopologySpec,
        partitions: int = 1,
        settings: EngineSettings | None = None,
        scheduler: SchedulerSettings | None = None,
        source: EventSource | None = None,
        broker: BrokerSettings | None = None,
    ) -> None:
        self.dice = Dice(0)
        self.broker = Broker(None, self.dice, broker)
        self.disk = Disk()
        self.codec = AvroCodec()
        self.plan = compile_plan(DomainSpec(name=DOMAIN, topologies=topologies, page_limit=10))
        self.partitions = partitions
        self.settings = settings or EngineSettings(sweep_interval_ms=0)
        self.scheduler_settings = scheduler
        self.source = SimSource(self.broker.timeline, self.dice)
        self.asked_source: EventSource = source or self.source
        self.commits, self.restores = InlineBackground(), InlineBackground()
        self.sources = InlineBackground()
        self.starts = 0
        self.process = SimProcess(self.broker.timeline, "none")
        self.queues = sorted({entry.queue for entry in self.plan.lambdas})
        topics = [NAMES.pings(DOMAIN), NAMES.statuses(DOMAIN), NAMES.changelog(DOMAIN)]
        topics += [NAMES.operations(DOMAIN), NAMES.audit(DOMAIN)]
        topics += NAMES.job_topics(self.queues)
        topics.append(NAMES.dead_letters)
        self.broker.create_topics(
            [TopicSpec(name=name, partitions=partitions, config={}) for name in topics]
        )

    # --- processes -----------------------------------------------------------------------------

    def group(self) -> TaskGroup:
        """The domain's tasks."""
        routing = Routing(names=NAMES, domain=DOMAIN, partitions=self.partitions)
        make = dispatcher_factory(self.plan, self.codec, routing, self.scheduler_settings)
        return TaskGroup(
            name=DOMAIN,
            inputs=(NAMES.statuses(DOMAIN), NAMES.pings(DOMAIN), NAMES.operations(DOMAIN)),
            changelog=NAMES.changelog(DOMAIN),
            make_processor=make,
            replayed_first=(NAMES.statuses(DOMAIN),),
            always_open=(NAMES.operations(DOMAIN),),
            outputs=NAMES.job_topics(self.queues),
            source=self.asked_source,
        )

    def start(self, groups: Sequence[TaskGroup] | None = None, disk: Disk | None = None) -> Engine:
        """A new process with an engine that has not turned yet."""
        self.starts += 1
        self.process = SimProcess(self.broker.timeline, f"dispatcher-{self.starts}")
        return Engine(
            log=SimLog(self.broker, self.process),
            table=MemoryTable(disk or self.disk, self.process),
            clock=SimClock(self.broker.timeline),
            groups=groups or [self.group()],
            group_id=NAMES.dispatcher_group,
            member_name=self.process.name,
            backgrounds=Backgrounds(
                commits=self.commits, restores=self.restores, sources=self.sources
            ),
            settings=self.settings,
        )

    def running(self) -> Engine:
        """The same, turned until its tasks run."""
        engine = self.start()
        self.turn(engine, 20)
        assert {task.state.value for task in engine.assignment.tasks.values()} == {"running"}
        return engine

    def log(self) -> SimLog:
        """The log as somebody beside the engine sees it."""
        return SimLog(self.broker, SimProcess(self.broker.timeline, "bystander"))

    def kill(self) -> None:
        """kill -9, and the group notices."""
        self.process.kill()
        self.pass_ms(self.broker.settings.session_timeout_ms + 1)

    def turn(self, engine: Engine, turns: int = 10, step_ms: int = 20) -> None:
        """So many turns, with time between them."""
        for _ in range(turns):
            engine.turn()
            self.pass_ms(step_ms)

    def pass_ms(self, passed_ms: int) -> None:
        """Time passes."""
        self.broker.timeline.run_until(self.broker.timeline.now_ms + passed_ms)

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.broker.timeline.now_ms

    @property
    def faults(self) -> Faults:
        """What goes wrong; assign to change it."""
        return self.dice.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self.dice.faults = faults

    # --- what comes in -------------------------------------------------------------------------

    def publish(self, subject: str, *sequences: int) -> None:
        """The source gets events."""
        for sequence in sequences:
            self.source.publish(subject, Event(sequence, b"e%d" % sequence))

    def ping(self, subject: str, latest: int | None = None, partition: int | None = None) -> None:
        """A ping is produced."""
        value = self.codec.encode_ping(Ping(subject, latest))
        self.put_ping(subject.encode(), value, partition)

    def put_ping(
        self, key: bytes | None, value: bytes | None, partition: int | None = None
    ) -> None:
        """Any record in the ping topic."""
        owner = partition_of(key or b"", self.partitions) if partition is None else partition
        self.broker.append(TopicPartition(NAMES.pings(DOMAIN), owner), key, value)

    def report(
        self, job: Job, *, failed: Sequence[int] = (), kind: StatusKind = StatusKind.RESULTS
    ) -> None:
        """A worker's status is produced."""
        status = self.status_of(job, failed, kind)
        key, value = job.subject.encode(), self.codec.encode_status(status)
        self.put_status(key, value, job.partition)

    def put_status(self, key: bytes | None, value: bytes | None, partition: int = 0) -> None:
        """Any record in the status topic."""
        self.broker.append(TopicPartition(NAMES.statuses(DOMAIN), partition), key, value)

    def order(
        self,
        verb: Verb,
        topology: str,
        subject: str | None = None,
        sequence: int | None = None,
        why: str = "a test",
        partition: int | None = None,
    ) -> None:
        """An operator's order is produced, to the owner, or to every partition."""
        operation = Operation(
            operation_id=f"{verb}-{topology}-{subject}-{sequence}",
            verb=verb,
            domain=DOMAIN,
            topology=topology,
            subject=subject,
            sequence=sequence,
            who="ann",
            why=why,
            issued_ms=self.now_ms,
        )
        key = (subject or topology).encode()
        places = [partition_of(key, self.partitions)] if subject else list(range(self.partitions))
        for place in places if partition is None else [partition]:
            self.put_operation(key, self.codec.encode_operation(operation), place)

    def put_operation(self, key: bytes | None, value: bytes | None, partition: int = 0) -> None:
        """Any record in the topic of operators' orders."""
        self.broker.append(TopicPartition(NAMES.operations(DOMAIN), partition), key, value)

    def audit(self) -> list[AuditEntry]:
        """What became of the orders."""
        records = self.records(NAMES.audit(DOMAIN))
        return [self.codec.decode_audit_entry(record.value) for record in records]

    def status_of(
        self, job: Job, failed: Sequence[int] = (), kind: StatusKind = StatusKind.RESULTS
    ) -> JobStatus:
        """A report on a job."""
        ids = [event.sequence for event in job.events]
        ended = kind is StatusKind.RESULTS
        return JobStatus(
            job.job_id,
            job.domain,
            job.partition,
            job.subject,
            job.topology,
            job.lambda_id,
            job.epoch,
            job.attempt,
            kind,
            [each for each in ids if each not in failed] if ended else [],
            {},
            [EventFailure(each, FailureClass.TRANSIENT) for each in failed],
        )

    # --- what came out -------------------------------------------------------------------------

    def jobs(self, queue: str = "general") -> list[Job]:
        """Every job in a queue, partition by partition."""
        found = self.records(NAMES.jobs(queue))
        return [self.codec.decode_job(record.value, queue) for record in found]

    def batches(self, queue: str = "general") -> list[tuple[str, list[int]]]:
        """Their subjects and events."""
        return [(job.subject, [e.sequence for e in job.events]) for job in self.jobs(queue)]

    def letters(self) -> list[DeadLetter]:
        """The dead letters."""
        found = self.records(NAMES.dead_letters)
        return [self.codec.decode_dead_letter(record.value) for record in found]

    def records(self, topic: str) -> list[Record]:
        """Committed records of all partitions."""
        return [
            record
            for partition in range(self.partitions)
            for record in self.broker.records(topic, partition)
        ]

    def stored(self, subject: str) -> CursorInfo | None:
        """What the changelog says of a subject that has ended."""
        rows: dict[bytes | None, bytes | None] = {}
        for record in self.records(NAMES.changelog(DOMAIN)):
            rows[record.key] = record.value
        value = rows.get(b"c" + subject.encode())
        return None if value is None else self.codec.decode_cursors(value)

    def committed(self, topic: str, partition: int = 0) -> int | None:
        """The group's committed offset."""
        offsets = self.broker.committed(NAMES.dispatcher_group)
        return offsets.get(TopicPartition(topic, partition))

    def changelog_end(self, partition: int = 0) -> Watermarks:
        """The kept range of a changelog partition."""
        return self.broker.watermarks(NAMES.changelog(DOMAIN), partition)


def task_of(engine: Engine, partition: int = 0, group: str = DOMAIN) -> Task:
    """One task of an engine."""
    return engine.assignment.tasks[TaskId(group, partition)]


def processor_of(engine: Engine, partition: int = 0) -> DispatchProcessor:
    """Its dispatcher."""
    processor = task_of(engine, partition).processor
    assert isinstance(processor, DispatchProcessor)
    return processor


def delivered(world: EngineWorld, engine: Engine, subject: str, *sequences: int) -> None:
    """These events are published, pinged, issued and done."""
    world.publish(subject, *sequences)
    world.ping(subject, sequences[-1])
    world.turn(engine)
    for job in world.jobs():
        if job.subject == subject:
            world.report(job)
    world.turn(engine)
