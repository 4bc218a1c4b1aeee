"""Jobs that a killed process had begun, and nobody else."""

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import SimClock, SimLog
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.status import JobStatus, StatusKind
from cape_stream.ports.log import TopicPartition
from cape_stream.roles.backends import Backend
from cape_stream.roles.orphans import Positions, hand_back_orphans
from cape_stream.roles.topics import topic_specs
from cape_stream.runtime.worker_handler import JobOutcome
from cape_stream.runtime.worker_status import bare_status, result_status
from cape_stream.sdk.app import App

CODEC = AvroCodec()
GENERAL = "shop.jobs.general"
STATUSES = "shop.orders.statuses"


def shop() -> App:
    app = App("shop", partitions=2)
    ledger = app.domain("orders", source=MemoryEventSource()).topology("ledger")

    @ledger.handler()
    def book(batch: object) -> None:
        """Nothing runs here."""

    return app


def job(number: int, partition: int = 0) -> Job:
    return Job(
        *(f"{partition}-1-{number}", "orders", partition, f"s{number}", "ledger", "book"),
        *("general", 1, 1, 0, 30_000, [Event(0, b"x")]),
    )


class World:
    """An App's topics on a log, with ``issued`` jobs of which the workers took ``taken``."""

    def __init__(self, issued: int, taken: int) -> None:
        self.app = shop()
        self.log = SimLog()
        self.log.create_topics(topic_specs(self.app))
        self.backend = Backend(
            "embedded", "memory", self.log, CODEC, SimClock(self.log.broker.timeline), 0
        )
        self.producer = self.log.producer()
        for number in range(issued):
            self.send(GENERAL, CODEC.encode_job(job(number)))
        worker = self.log.member("shop.workers", [GENERAL, f"{GENERAL}.backlog"], Positions())
        worker.poll(1, 0)
        worker.commit({TopicPartition(GENERAL, 0): taken})
        worker.close()

    def send(self, topic: str, value: bytes, key: bytes = b"s") -> None:
        self.producer.send(topic, 0, key, value)
        self.producer.flush(0)

    def report(self, status: JobStatus) -> None:
        self.send(STATUSES, CODEC.encode_status(status), status.subject.encode())

    def statuses(self) -> list[JobStatus]:
        return [
            CODEC.decode_status(record.key, record.value)
            for number in range(2)
            for record in self.log.broker.records(STATUSES, number)
        ]


def test_orphans_are_jobs_that_were_taken_and_never_reported() -> None:
    world = World(issued=4, taken=3)
    world.report(result_status(job(0), JobOutcome([0]), 0))

    count = hand_back_orphans(world.app, world.backend)

    assert count == 2
    assert [(each.job_id, each.kind) for each in world.statuses()[1:]] == [
        ("0-1-1", StatusKind.HANDED_BACK),
        ("0-1-2", StatusKind.HANDED_BACK),
    ]


def test_orphans_include_a_job_that_only_ever_gave_signs_of_life() -> None:
    world = World(issued=1, taken=1)
    world.report(bare_status(job(0), StatusKind.HEARTBEAT, 0))

    assert hand_back_orphans(world.app, world.backend) == 1


def test_orphans_are_handed_back_once() -> None:
    world = World(issued=2, taken=2)

    assert [hand_back_orphans(world.app, world.backend) for _ in range(2)] == [2, 0]


def test_orphans_of_the_backlog_lane_are_handed_back_as_well() -> None:
    world = World(issued=1, taken=1)
    backlog = f"{GENERAL}.backlog"
    for number in (7, 8):
        world.send(backlog, CODEC.encode_job(job(number)))
    worker = world.log.member("shop.workers", [GENERAL, backlog], Positions())
    worker.poll(1, 0)
    worker.commit({TopicPartition(backlog, 0): 1})
    worker.close()

    assert hand_back_orphans(world.app, world.backend) == 2
    assert sorted(each.job_id for each in world.statuses()) == ["0-1-0", "0-1-7"]


def test_orphans_are_none_on_a_log_nobody_has_used() -> None:
    world = World(issued=0, taken=0)

    assert hand_back_orphans(world.app, world.backend) == 0
    assert world.statuses() == []


def test_orphans_pass_over_what_is_no_job_and_no_status() -> None:
    world = World(issued=1, taken=2)
    world.send(GENERAL, b"garbage")
    world.send(STATUSES, b"garbage")

    assert hand_back_orphans(world.app, world.backend) == 1


def test_orphans_leave_the_workers_where_they_stood() -> None:
    world = World(issued=4, taken=3)

    hand_back_orphans(world.app, world.backend)

    assert world.log.broker.committed("shop.workers") == {TopicPartition(GENERAL, 0): 3}
