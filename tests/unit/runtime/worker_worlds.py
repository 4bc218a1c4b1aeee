"""A log with job topics, a way to issue jobs into it, and a look at what workers reported."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.adapters.simulated import Broker, BrokerSettings, Dice, Faults, SimClock, SimLog
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.event import Event
from cape_stream.model.job import BACKLOG, LIVE, Job
from cape_stream.model.status import JobStatus, StatusKind
from cape_stream.model.topology import Ordering
from cape_stream.ports.claims import ClaimStore
from cape_stream.ports.clock import Clock
from cape_stream.ports.log import Log, Record, TopicPartition, TopicSpec
from cape_stream.runtime.steady import SteadyClock
from cape_stream.runtime.worker import Worker
from cape_stream.runtime.worker_counters import WorkerCounters
from cape_stream.runtime.worker_handler import HandlerKey, JobHandler
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.sdk import App
from cape_stream.sdk.runner import HandlerFunction
from cape_stream.sdk.topology import ExecutorName

PARTITIONS = 2
DEADLINE_S = 20.0
"""How long a test waits for something that must happen; never how fast it has to be."""


class WorkerWorld:
    """Everything around a worker of App ``flight-ops`` with domain ``flights``."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.log = log
        self.clock = clock
        self.codec = AvroCodec()
        self.app = App("flight-ops", partitions=PARTITIONS)
        self.names = self.app.topic_names
        self._domain = self.app.domain("flights", source=MemoryEventSource())
        self._producer = log.producer()
        self._issued = 0
        topics = [self.names.statuses("flights"), self.names.dead_letters]
        topics += self.names.job_topics(("general", "bulk"))
        log.create_topics(
            [TopicSpec(name=topic, partitions=PARTITIONS, config={}) for topic in topics]
        )

    def handle(
        self,
        name: str,
        function: HandlerFunction,
        *,
        ordering: Ordering = "parallel",
        executor: ExecutorName | None = None,
        timeout_ms: int = 30_000,
    ) -> None:
        """Declare topology ``name`` with ``function`` as its lambda ``work``."""
        topology = self._domain.topology(name, ordering=ordering)
        timeout = timedelta(milliseconds=timeout_ms)
        topology.handler(name="work", executor=executor, timeout=timeout)(function)

    def handlers(self) -> dict[HandlerKey, JobHandler]:
        return self.app.job_handlers()

    def worker(self, settings: WorkerSettings, claims: ClaimStore | None = None) -> Worker:
        handlers = self.handlers()
        return Worker(self.log, self.codec, self.clock, self.names, handlers, settings, claims)

    def job(
        self, topology: str, subject: str = "N1", *, waited_ms: int = 0, timeout_ms: int = 30_000
    ) -> Job:
        """The next job: events 1 and 2 of ``subject``, issued ``waited_ms`` ago."""
        self._issued += 1
        return Job(
            job_id=f"0-1-{self._issued}",
            domain="flights",
            partition=self._issued % PARTITIONS,
            subject=subject,
            topology=topology,
            lambda_id="work",
            queue="general",
            epoch=3,
            attempt=2,
            issued_ms=self.clock.now_ms() - waited_ms,
            timeout_ms=timeout_ms,
            events=[Event(1, b"one"), Event(2, b"two")],
        )

    def issue(self, job: Job, *, queue: str = "general", backlog: bool = False) -> Job:
        """Put a job into its queue."""
        value = self.codec.encode_job(job)
        self.put(value, queue=queue, backlog=backlog, partition=job.partition)
        return job

    def put(
        self,
        value: bytes | None,
        *,
        queue: str = "general",
        backlog: bool = False,
        partition: int = 0,
        key: bytes | None = b"N1",
    ) -> None:
        """Put any record into a job topic."""
        topic = self.names.jobs(queue, BACKLOG if backlog else LIVE)
        assert self._producer.send(topic, partition, key, value)
        assert self._producer.flush(5_000)

    def records(self, topic: str) -> list[Record]:
        """All records of a topic, partition by partition."""
        reader = self.log.reader()
        found: list[Record] = []
        for partition in range(PARTITIONS):
            name = TopicPartition(topic, partition)
            kept = reader.watermarks(name)
            for batch in reader.read(name, kept.low, kept.high):
                found += batch
        reader.close()
        return found

    def statuses(self, kind: StatusKind | None = None) -> list[JobStatus]:
        """What workers reported, of one kind or all; each lies in its task's partition."""
        found = []
        for record in self.records(self.names.statuses("flights")):
            assert record.value is not None
            status = self.codec.decode_status(record.key, record.value)
            assert status.partition == record.partition
            if kind in (None, status.kind):
                found.append(status)
        return found

    def done(self) -> list[str]:
        """Ids of jobs reported as done in full."""
        return [each.job_id for each in self.statuses(StatusKind.RESULTS) if not each.failures]

    def letters(self) -> list[DeadLetter]:
        return [
            self.codec.decode_dead_letter(each.value)
            for each in self.records(self.names.dead_letters)
        ]


class PlainWorld(WorkerWorld):
    """On the simulated log without time: an inline worker does one thing after the other."""

    def __init__(
        self, faults: Faults | None = None, settings: BrokerSettings | None = None
    ) -> None:
        dice = Dice(0, faults) if faults else None
        self.broker = Broker(dice=dice, settings=settings)
        super().__init__(SimLog(self.broker), SimClock(self.broker.timeline))

    def inline(self, *, clock_skew_ms: int = 5_000) -> Worker:
        """An inline worker of queue ``general`` that has its partitions."""
        worker = self.worker(
            WorkerSettings(
                queues=("general",), inline=True, concurrency=1, clock_skew_ms=clock_skew_ms
            )
        )
        worker.step(0)
        return worker

    def committed(self, *, backlog: bool = False) -> list[int]:
        """Next offset of the worker group, partition by partition."""
        offsets = self.broker.committed(self.names.worker_group)
        topic = self.names.jobs("general", BACKLOG if backlog else LIVE)
        return [offsets.get(TopicPartition(topic, each), 0) for each in range(PARTITIONS)]


@contextmanager
def threaded_world(folder: Path) -> Iterator[WorkerWorld]:
    """On the embedded log in ``folder``, with real time and threads."""
    log = EmbeddedLog(folder / "log")
    try:
        yield WorkerWorld(log, SteadyClock())
    finally:
        log.close()


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """Run the worker on a thread; stop it and wait for its end."""
    thread = Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the worker did not stop"


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for what must happen."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.005)


def wait_for(worker: Worker, reached: Callable[[WorkerCounters], bool]) -> None:
    """Wait until the worker has counted so far."""
    wait_until(lambda: reached(worker.counters()))
