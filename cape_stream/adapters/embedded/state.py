"""What all parts of an embedded log share: topics, groups, and the one way to append.

One lock guards it. It is never held while a listener is called or while lagging consumers read.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock

from rocksdict import WriteBatch

from cape_stream.adapters.embedded.group import Group
from cape_stream.adapters.embedded.partition import Partition
from cape_stream.adapters.embedded.rows import (
    BOUNDS_MARKER,
    COMMITTED_MARKER,
    NEWEST_MARKER,
    PLACE_BYTES,
    RECORD_MARKER,
    TOPIC_MARKER,
    committed_prefix,
    decode_bounds,
    decode_records,
    decode_topic,
    encode_bounds,
    encode_record,
    encode_topic,
    new_record,
    offset_of,
    pack_offset,
    split_committed,
)
from cape_stream.adapters.embedded.settings import EmbeddedSettings
from cape_stream.adapters.embedded.store import Store
from cape_stream.ports.log import Record, TopicPartition, TopicSpec

SCAN_ROWS = 10_000
TAIL_BYTES_MIN = 64 << 10

Append = tuple[Partition, bytes | None, bytes | None]
"""Partition, key, value of a record to be appended."""


class State:
    """Attributes are for the modules of this package; change them under ``lock``."""

    def __init__(self, path: Path, settings: EmbeddedSettings, now_ms: Callable[[], int]) -> None:
        self.settings = settings
        self.now_ms = now_ms
        self.lock = Lock()
        self.store = Store(path, settings)
        self.topics: dict[str, TopicSpec] = {}
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.groups: dict[str, Group] = {}
        self._topic_names: dict[int, str] = {}
        self._load_topics()
        self._load_committed()

    # -- topics

    def create_topic(self, spec: TopicSpec) -> None:
        """Create it durably unless it exists. Under the lock."""
        if spec.name in self.topics:
            return
        number = max(self._topic_names, default=0) + 1
        batch = WriteBatch(raw_mode=True)
        batch.put(TOPIC_MARKER + spec.name.encode(), encode_topic(number, spec))
        self.store.write(batch)
        self._add_topic(number, spec)
        for group in self.groups.values():
            group.rebalance(self.partition_counts)

    @property
    def partition_counts(self) -> dict[str, int]:
        """Topic → number of partitions."""
        return {name: spec.partitions for name, spec in self.topics.items()}

    def _add_topic(self, number: int, spec: TopicSpec) -> None:
        self.topics[spec.name] = spec
        self._topic_names[number] = spec.name
        for index in range(spec.partitions):
            partition = Partition(
                spec, number, index, record_bytes_max=self.settings.record_bytes_max
            )
            self.partitions[partition.name] = partition
        share = max(TAIL_BYTES_MIN, self.settings.tail_bytes_max // len(self.partitions))
        for partition in self.partitions.values():
            partition.tail_bytes_max = share

    def _load_topics(self) -> None:
        for row_key, row in self.scan_all(TOPIC_MARKER):
            number, spec = decode_topic(row_key, row)
            self._add_topic(number, spec)
        for partition in self.partitions.values():
            stored = self.store.get_many([BOUNDS_MARKER + partition.place])[0]
            low, high = decode_bounds(stored) if stored else (0, 0)
            last = self.store.last_key(partition.record_key(low), partition.record_end)
            if last is not None:
                high = max(high, offset_of(last) + 1)
            partition.set_bounds(low, high)

    def _load_committed(self) -> None:
        for row_key, row in self.scan_all(COMMITTED_MARKER):
            group, number, index = split_committed(row_key)
            name = TopicPartition(self._topic_names[number], index)
            self.group(group).committed[name] = offset_of(row)

    def scan_all(self, prefix: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Every row whose key begins with ``prefix``."""
        lower, upper = prefix, prefix[:-1] + bytes((prefix[-1] + 1,))
        while rows := self.store.scan(lower, upper, SCAN_ROWS):
            yield from rows
            lower = rows[-1][0] + b"\x00"

    # -- groups

    def group(self, name: str) -> Group:
        """The group, made when first named. Under the lock."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name)
        return group

    # -- appending

    def append(
        self,
        appends: Iterable[Append],
        group: Group | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> dict[Partition, list[Record]]:
        """Append and store the group's offsets in one write batch. Under the lock.

        Returns:
            What each partition got, in order, never empty.
        """
        batch = WriteBatch(raw_mode=True)
        staged = self._stage(batch, appends)
        if group is not None and offsets:
            prefix = committed_prefix(group.name)
            for name, offset in offsets.items():
                batch.put(prefix + self.partitions[name].place, pack_offset(offset))
        if batch.is_empty():
            return {}
        self.store.write(batch)
        if group is not None and offsets:
            group.committed.update(offsets)
        for partition, records in staged.items():
            partition.append(records)
        return staged

    def _stage(self, batch: WriteBatch, appends: Iterable[Append]) -> dict[Partition, list[Record]]:
        """Put the records into ``batch`` and return them by partition."""
        timestamp_ms = self.now_ms()
        staged: dict[Partition, list[Record]] = {}
        keyed: dict[bytes, int] = {}
        put = batch.put  # hot: one put per record
        for partition, key, value in appends:
            records = staged.get(partition)
            if records is None:
                records = staged[partition] = []
            offset = partition.high + len(records)
            row_key = partition.record_prefix + pack_offset(offset)
            put(row_key, encode_record(timestamp_ms, key, value))
            topic, index = partition.name
            records.append(new_record(Record, (topic, index, offset, timestamp_ms, key, value)))
            if partition.compacted and key is not None:
                self._supersede(batch, partition, keyed, key, offset)
                if value is None:
                    put(partition.tombstone_prefix + pack_offset(offset), key)
        self._drop_superseded(batch, keyed)
        return staged

    @staticmethod
    def _supersede(
        batch: WriteBatch, partition: Partition, keyed: dict[bytes, int], key: bytes, offset: int
    ) -> None:
        """Note the newest offset of a key; an older one of the same batch goes at once."""
        newest_key = partition.newest_prefix + key
        earlier = keyed.get(newest_key)
        if earlier is not None:
            batch.delete(partition.record_key(earlier))
        keyed[newest_key] = offset

    def _drop_superseded(self, batch: WriteBatch, keyed: Mapping[bytes, int]) -> None:
        """Compaction: of the keys written now, delete the record that was the newest so far."""
        if not keyed:
            return
        place_end = len(NEWEST_MARKER) + PLACE_BYTES
        for newest_key, earlier in zip(keyed, self.store.get_many(keyed), strict=True):
            if earlier is not None:
                place = newest_key[len(NEWEST_MARKER) : place_end]
                batch.delete(RECORD_MARKER + place + earlier)
        for newest_key, offset in keyed.items():
            batch.put(newest_key, pack_offset(offset))

    def truncate(self, partition: Partition, low: int) -> None:
        """Delete every record below ``low``, at once whatever their number. Under the lock."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(partition.record_key(partition.low), partition.record_key(low))
        batch.put(BOUNDS_MARKER + partition.place, encode_bounds(low, partition.high))
        self.store.write(batch)
        partition.truncate(low)

    # -- reading

    def read(
        self, partition: Partition, offset: int, end: int, limit: int
    ) -> tuple[list[Record], int] | None:
        """Records in [offset, end) from the store, at most ``limit``, and where to go on.

        Called without the lock. None: records from ``offset`` on were truncated meanwhile.
        """
        rows = self.store.scan(partition.record_key(offset), partition.record_key(end), limit)
        with self.lock:  # a truncation under way ends first: its records are missing already
            if partition.low > offset:
                return None
        records = decode_records(*partition.name, rows)
        return records, (records[-1].offset + 1 if len(records) == limit else end)
