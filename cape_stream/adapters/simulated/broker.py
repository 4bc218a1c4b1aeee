"""The state that outlives every process: topics, groups and open transactions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import RLock

from cape_stream.adapters.simulated.faults import Dice
from cape_stream.adapters.simulated.group import Group
from cape_stream.adapters.simulated.partition import (
    StoredPartition,
    Transaction,
    TransactionState,
)
from cape_stream.adapters.simulated.timeline import Scheduled, Signal, Timeline
from cape_stream.errors import Retry
from cape_stream.ports.log import Record, TopicPartition, TopicSpec, Watermarks


@dataclass(slots=True, frozen=True, kw_only=True)
class BrokerSettings:
    """Limits of the simulated log, with the values our Kafka adapter asks for."""

    session_timeout_ms: int = 6_000
    """How long a silent member keeps its partitions."""
    message_timeout_ms: int = 2_500
    """A producer gives up what it could not hand over for so long; below half a session."""
    transaction_timeout_ms: int = 10_000
    """The log aborts a transaction that its process does not end."""
    delete_retention_ms: int = 0
    """How long the cleaner leaves tombstones to readers that are behind."""
    record_bytes_max: int = 1_048_576
    """Largest value of a record."""
    producer_records_max: int = 100_000
    """Most records in one producer's local queue."""


class Broker:
    """The simulated cluster; tests and worlds use it to look inside and to do harm.

    Args:
        timeline: virtual time of a world; None for a plain twin that knows no time, in which
            everything happens at once.
        dice: what goes wrong and how long it takes.
        settings: the limits.
    """

    def __init__(
        self,
        timeline: Timeline | None = None,
        dice: Dice | None = None,
        settings: BrokerSettings | None = None,
    ) -> None:
        self.timed = timeline is not None
        self.timeline = timeline or Timeline()
        self.dice = dice or Dice(0)
        self.settings = settings or BrokerSettings()
        self.lock = RLock()
        """Held while anything below changes; the plain twin may be used from several threads."""
        self.changed = Signal(self.timeline)
        """Notified when there may be something new to poll, read or own."""
        self._topics: dict[str, list[StoredPartition]] = {}
        self._groups: dict[str, Group] = {}
        self._up_ms = 0

    # What processes use.

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """Create those that do not exist."""
        with self.lock:
            for topic in topics:
                if topic.name not in self._topics:
                    self._topics[topic.name] = [StoredPartition() for _ in range(topic.partitions)]
        self.changed.notify()

    def partition_count(self, topic: str) -> int:
        """0 while the topic does not exist."""
        return len(self._topics.get(topic, ()))

    def partition(self, partition: TopicPartition) -> StoredPartition:
        """Raises Retry while it does not exist."""
        stored = self._topics.get(partition.topic, ())
        if not 0 <= partition.partition < len(stored):
            raise Retry(f"{partition.topic} has no partition {partition.partition} (yet)")
        return stored[partition.partition]

    def group(self, name: str) -> Group:
        """The group, made on first use."""
        with self.lock:
            if name not in self._groups:
                self._groups[name] = Group(self.partition_count, self.settings.session_timeout_ms)
            return self._groups[name]

    def append(self, to: TopicPartition, key: bytes | None, value: bytes | None) -> int:
        """Append one record outside any transaction; returns its offset."""
        with self.lock:
            offset = self.partition(to).append(to, key, value, self.timeline.now_ms)
        self.changed.notify()
        return offset

    def end(self, transaction: Transaction, group: Group, state: TransactionState) -> None:
        """Commit or abort; does nothing if that has been decided."""
        with self.lock:
            if transaction.state is not TransactionState.OPEN:
                return
            transaction.state = state
            for partition in transaction.partitions:
                self.partition(partition).end_transaction(transaction)
            group.end(transaction, committed=state is TransactionState.COMMITTED)
        self.changed.notify()

    def timeout(self, transaction: Transaction, group: Group) -> Scheduled:
        """Abort the transaction when its time is over, unless cancelled; only on virtual time."""

        def abort() -> None:
            self.end(transaction, group, TransactionState.ABORTED)

        if not self.timed:
            return Scheduled(abort)
        return self.timeline.after(self.settings.transaction_timeout_ms, abort)

    def check_up(self) -> None:
        """Raises Retry during an outage."""
        if not self.up:
            raise Retry("the simulated log is down")

    @property
    def up(self) -> bool:
        """False during an outage."""
        return self.timeline.now_ms >= self._up_ms

    @property
    def up_ms(self) -> int:
        """When the last outage ends or ended."""
        return self._up_ms

    # What tests and worlds use.

    def records(self, topic: str, partition: int) -> list[Record]:
        """All committed records that are kept."""
        stored = self.partition(TopicPartition(topic, partition))
        return stored.read(stored.low, stored.high, stored.high)[0]

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        """The kept range; its end counts records of open transactions too."""
        stored = self.partition(TopicPartition(topic, partition))
        return Watermarks(stored.low, stored.high)

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        """The group's committed offsets."""
        return self.group(group).offsets

    def set_committed(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Move a committed offset by hand, such as out of range."""
        self.group(group).offsets[partition] = offset

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Retention drops what is below ``before``."""
        with self.lock:
            self.partition(TopicPartition(topic, partition)).delete_before(before)

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """An unclean election loses everything from ``offset`` on."""
        with self.lock:
            self.partition(TopicPartition(topic, partition)).truncate(offset)

    def compact(self, topic: str) -> None:
        """The cleaner keeps the newest record of each key and drops old tombstones."""
        from_ms = self.timeline.now_ms - self.settings.delete_retention_ms + 1
        with self.lock:
            for stored in self._topics[topic]:
                stored.compact(from_ms)

    def recreate(self, topic: str) -> None:
        """The topic is deleted and made again: empty, and no group has offsets for it."""
        with self.lock:
            self._topics[topic] = [StoredPartition() for _ in self._topics[topic]]
            for group in self._groups.values():
                for partition in [p for p in group.offsets if p.topic == topic]:
                    del group.offsets[partition]

    def grow(self, topic: str, partitions: int) -> None:
        """Somebody adds partitions, up to ``partitions``."""
        with self.lock:
            stored = self._topics[topic]
            stored.extend(StoredPartition() for _ in range(partitions - len(stored)))
        self.changed.notify()

    def go_down(self, duration_ms: int) -> None:
        """An outage; when it ends every session begins anew."""
        self._up_ms = max(self._up_ms, self.timeline.now_ms + duration_ms)
        self.timeline.note("broker", "down", f"{duration_ms} ms")
        for group in self._groups.values():
            group.excuse_all(self._up_ms)
        self.timeline.at(self._up_ms, self.changed.notify)
