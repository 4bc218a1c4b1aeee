"""Members, producers and commits, played against a log from one thread."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Self

from cape_stream.errors import Retry
from cape_stream.ports.log import (
    Committer,
    Log,
    Ownership,
    Producer,
    Record,
    TopicPartition,
    TopicSpec,
    Watermarks,
    Write,
)
from tests.contract.log_implementations import LogUnderTest

PATIENCE_S = 40.0
"""How long something that must happen may take before a test gives it up for lost."""
POLL_MS = 20


@dataclass(slots=True, frozen=True)
class Told:
    """One call of a listener: ``assigned``, ``revoked`` or ``lost``."""

    who: str
    what: str
    partitions: frozenset[TopicPartition]


@dataclass(slots=True, frozen=True)
class Repositioned:
    """One call of `MemberListener.repositioned`."""

    partition: TopicPartition
    committed: int
    kept: Watermarks


class Consumer:
    """A member with its listener; resumes what it is assigned unless told otherwise."""

    def __init__(
        self, stage: "Stage", name: str, group: str, topics: Sequence[str], *, resumes: bool
    ) -> None:
        self.name = name
        self.owned: set[TopicPartition] = set()
        self.records: list[Record] = []
        self.repositions: list[Repositioned] = []
        self.positions_when_assigned: dict[TopicPartition, int | None] = {}
        self.when_revoked: Callable[[frozenset[TopicPartition]], None] = lambda _: None
        self._told = stage.told
        self._resumes = resumes
        self._to_resume: list[TopicPartition] = []
        self.member = stage.log.member(group, topics, self)

    def step(self, max_records: int = 100, timeout_ms: int = POLL_MS) -> list[Record]:
        """One poll; what it brings is kept in `records`, too."""
        try:
            records = self.member.poll(max_records, timeout_ms)
        except Retry:
            return []
        self.records += records
        if self._to_resume:
            self.member.resume([name for name in self._to_resume if name in self.owned])
            self._to_resume = []
        return records

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Values received from a partition, in the order they came."""
        return [record.value for record in self.records if record[:2] == (topic, partition)]

    def numbers(self) -> set[int]:
        """Partition numbers it owns, of whatever topic."""
        return {name.partition for name in self.owned}

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.owned.isdisjoint(partitions), "assigned twice"
        self.owned.update(partitions)
        for name in partitions:
            self.positions_when_assigned[name] = self.member.position(name)
        if self._resumes:
            self._to_resume += partitions
        self._told.append(Told(self.name, "assigned", frozenset(partitions)))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.owned.issuperset(partitions), "revoked what it did not have"
        self.when_revoked(frozenset(partitions))
        self.owned.difference_update(partitions)
        self._told.append(Told(self.name, "revoked", frozenset(partitions)))

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.owned.issuperset(partitions), "lost what it did not have"
        self.owned.difference_update(partitions)
        self._told.append(Told(self.name, "lost", frozenset(partitions)))

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        self.repositions.append(Repositioned(partition, committed, kept))


class Stage:
    """One log under test and everything a test opens on it; closes all of it at the end."""

    def __init__(self, under_test: LogUnderTest) -> None:
        self.under_test = under_test
        self.told: list[Told] = []
        """Calls of all listeners, in the order they happened."""
        self._exits = ExitStack()
        self._run = uuid.uuid4().hex[:12]
        self._names = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.close()

    @property
    def log(self) -> Log:
        return self.under_test.log

    def name(self, kind: str) -> str:
        """A name that no other test uses."""
        self._names += 1
        return f"contract-{self._run}-{self._names}-{kind}"

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic."""
        spec = TopicSpec(name=self.name("topic"), partitions=partitions, config=config or {})
        self.log.create_topics([spec])
        return spec.name

    def join(
        self, group: str, topics: Sequence[str], *, name: str = "A", resumes: bool = True
    ) -> Consumer:
        """A new member; it gets partitions while it is polled."""
        consumer = Consumer(self, name, group, topics, resumes=resumes)
        self._exits.callback(consumer.member.close)
        return consumer

    def producer(self) -> Producer:
        producer = self.log.producer()
        self._exits.callback(producer.close)
        return producer

    def committer(self) -> Committer:
        committer = self.log.committer(self.name("committer"))
        self._exits.callback(committer.close)
        return committer

    def drive(self, *consumers: Consumer, until: Callable[[], bool]) -> None:
        """Poll the consumers in turn until it is so."""
        deadline_s = monotonic() + PATIENCE_S
        while not until():
            assert monotonic() < deadline_s, f"it never happened; listeners were told {self.told}"
            for consumer in consumers:
                consumer.step()

    def own(self, consumer: Consumer, *names: TopicPartition) -> None:
        """Poll until it owns all of these."""
        self.drive(consumer, until=lambda: consumer.owned.issuperset(names))

    def receive(self, consumer: Consumer, count: int) -> list[Record]:
        """Poll until it has received ``count`` records in all."""
        self.drive(consumer, until=lambda: len(consumer.records) >= count)
        return consumer.records

    def idle(self, *consumers: Consumer, rounds: int = 15) -> None:
        """Poll for a while, so that what must not come has had its chance."""
        for _ in range(rounds):
            for consumer in consumers:
                consumer.step()

    def send(
        self, topic: str, values: Iterable[bytes | None], partition: int = 0, key: bytes = b"k"
    ) -> None:
        """Append records by a producer of its own, acknowledged when this returns."""
        producer = self.log.producer()
        for value in values:
            while not producer.send(topic, partition, key, value):
                producer.poll(POLL_MS)
        assert producer.flush(int(PATIENCE_S * 1_000))
        assert producer.take_failed() == []
        producer.close()

    def commit(
        self,
        committer: Committer,
        writes: Sequence[Write],
        offsets: Mapping[TopicPartition, int],
        ownership: Ownership,
    ) -> Mapping[TopicPartition, int]:
        """A commit, repeated for as long as the log says that this may help."""
        deadline_s = monotonic() + PATIENCE_S
        while True:
            try:
                return committer.commit(writes, offsets, ownership)
            except Retry:
                assert monotonic() < deadline_s, "the log wants this commit repeated for ever"

    def watermarks(self, topic: str, partition: int = 0) -> Watermarks:
        reader = self.log.reader()
        try:
            return reader.watermarks(TopicPartition(topic, partition))
        finally:
            reader.close()

    def read(
        self, topic: str, partition: int = 0, start: int | None = None, end: int | None = None
    ) -> list[Record]:
        """What a reader finds in [start, end), by default in all that is kept."""
        reader = self.log.reader()
        try:
            name = TopicPartition(topic, partition)
            kept = reader.watermarks(name)
            start = kept.low if start is None else start
            end = kept.high if end is None else end
            return [record for batch in reader.read(name, start, end) for record in batch]
        finally:
            reader.close()


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Values that show their order."""
    return [b"%06d" % number for number in range(start, start + count)]
