"""What the tests on a real Kafka share: members with a memory, and waiting for them."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.errors import Retry
from cape_stream.ports.log import Producer, Record, TopicPartition, TopicSpec, Watermarks

WAIT_S = 45.0
"""How long the tests wait for a thing that takes seconds on an idle machine."""


def settings(bootstrap: str, **changes: Any) -> KafkaSettings:
    """Settings for a test broker."""
    return KafkaSettings(bootstrap_servers=bootstrap, **changes)


def new_name(kind: str) -> str:
    """A name nobody else uses on the shared broker."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"


def new_topic(log: KafkaLog, partitions: int = 1, **config: str) -> str:
    """Create a topic under a name of its own."""
    name = new_name("topic")
    spec = {key.replace("_", "."): value for key, value in config.items()}
    log.create_topics([TopicSpec(name=name, partitions=partitions, config=spec)])
    return name


class Seat:
    """A member that notes what it is told and, unless told otherwise, reads all it is given."""

    def __init__(
        self, log: KafkaLog, group: str, topics: Sequence[str], *, resumes: bool = True
    ) -> None:
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.repositions: list[tuple[TopicPartition, int, Watermarks]] = []
        self.owned: set[TopicPartition] = set()
        self.records: list[Record] = []
        self.on_revoked: Callable[[], object] | None = None
        self._resumes = resumes
        self.member = log.member(group, topics, self)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("assigned", list(partitions)))
        self.owned |= set(partitions)
        if self._resumes:
            self.member.resume(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("revoked", list(partitions)))
        if self.on_revoked is not None:
            self.on_revoked()
        self.owned -= set(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("lost", list(partitions)))
        self.owned -= set(partitions)

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        self.repositions.append((partition, committed, kept))

    def poll(self, timeout_ms: int = 20) -> list[Record]:
        records = self.member.poll(500, timeout_ms)
        self.records += records
        return records

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    @property
    def numbers(self) -> set[int]:
        """Partition numbers owned, of all topics."""
        return {partition.partition for partition in self.owned}


def poll_until(done: Callable[[], bool], *seats: Seat, wait_s: float = WAIT_S) -> None:
    """Poll ``seats`` in turn until ``done``; fails when that takes too long."""
    deadline_s = time.monotonic() + wait_s
    while not done():
        told = [seat.events for seat in seats]
        assert time.monotonic() < deadline_s, f"still waiting, seats were told {told}"
        for seat in seats:
            seat.poll()


def wait_until(done: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Ask until ``done``; fails when that takes too long."""
    deadline_s = time.monotonic() + wait_s
    while not done():
        assert time.monotonic() < deadline_s, "still waiting"
        time.sleep(0.02)


def read_values(log: KafkaLog, topic: str) -> list[bytes | None]:
    """All committed values of the topic's only partition, once the log lets us read it."""
    partition, found = TopicPartition(topic, 0), list[bytes | None]()
    reader = log.reader()

    def is_read() -> bool:
        found.clear()
        try:
            kept = reader.watermarks(partition)
            for batch in reader.read(partition, kept.low, kept.high):
                found.extend(record.value for record in batch)
        except Retry:
            return False
        return True

    wait_until(is_read)
    reader.close()
    return found


def send_all(log: KafkaLog, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Append ``values`` and wait until they are acknowledged."""
    producer = log.producer()
    for value in values:
        assert producer.send(topic, partition, b"key", value)
    assert producer.flush(10_000)
    assert producer.take_failed() == []
    producer.close()


def settle(producer: Producer) -> None:
    """Wait until everything sent is acknowledged or given up."""

    def is_settled() -> bool:
        producer.poll(20)
        return dict(producer.sent) == dict(producer.settled)

    wait_until(is_settled)


def arrival(producer: Producer, topic: str, value: bytes) -> Callable[[], bool]:
    """Sends the record; whether it arrived. Again and again, on a machine that is slow today."""

    def arrives() -> bool:
        assert producer.send(topic, 0, b"key", value)
        settle(producer)
        return not producer.take_failed()

    return arrives
