"""One partition in memory: its bounds, the newest records, and whom to wake."""

from threading import Event

from cape_stream.adapters.embedded.rows import (
    NEWEST_MARKER,
    OFFSET_END,
    RECORD_MARKER,
    TOMBSTONE_MARKER,
    pack_offset,
    place,
)
from cape_stream.ports.log import Record, TopicPartition, TopicSpec

RETENTION_MS = 7 * 24 * 3_600_000
"""Kafka's default for ``retention.ms``."""
TOMBSTONE_RETENTION_MS = 24 * 3_600_000
"""Kafka's default for ``delete.retention.ms``."""
RECORD_OVERHEAD_BYTES = 200
"""What a record in memory takes beside its key and value (CPython 3.11: 194 to 226)."""
TAIL_SLACK = 2
"""The tail is cut to its bound when it has grown to this multiple of it, so cutting is rare."""


class Partition:
    """Changed only under the log's lock; ``low`` and ``high`` may be read without it."""

    __slots__ = (
        "compacted",
        "high",
        "low",
        "name",
        "place",
        "record_bytes_max",
        "record_prefix",
        "retention_ms",
        "tail",
        "tail_bytes",
        "tail_bytes_max",
        "tail_start",
        "tombstone_retention_ms",
        "wakeups",
    )

    def __init__(
        self, spec: TopicSpec, topic_number: int, partition: int, *, record_bytes_max: int
    ) -> None:
        config = spec.config
        self.name = TopicPartition(spec.name, partition)
        self.place = place(topic_number, partition)
        self.record_prefix = RECORD_MARKER + self.place
        self.compacted = "compact" in config.get("cleanup.policy", "delete")
        self.retention_ms = int(config.get("retention.ms", RETENTION_MS))
        """Below zero: for ever."""
        self.tombstone_retention_ms = int(config.get("delete.retention.ms", TOMBSTONE_RETENTION_MS))
        self.record_bytes_max = int(config.get("max.message.bytes", record_bytes_max))
        self.low = 0
        self.high = 0
        self.tail: list[Record] = []
        """Records [tail_start, high), without gaps; empty for compacted topics, which are read
        by restores and not by consumers that keep up."""
        self.tail_start = 0
        self.tail_bytes = 0
        self.tail_bytes_max = 0
        self.wakeups: tuple[Event, ...] = ()
        """Of the members that own it, one per group."""

    def set_bounds(self, low: int, high: int) -> None:
        """As found in the store; nothing is in memory yet."""
        self.low = low
        self.high = self.tail_start = high

    def append(self, records: list[Record]) -> None:
        """Take records that are in the store now."""
        self.high = records[-1].offset + 1
        if self.compacted:
            self.tail_start = self.high
        else:
            self.tail += records
            self.tail_bytes += sum(map(_held_bytes, records))
            if self.tail_bytes > TAIL_SLACK * self.tail_bytes_max:
                self._cut_tail()
        for wakeup in self.wakeups:
            if not wakeup.is_set():
                wakeup.set()

    def _cut_tail(self) -> None:
        """Drop the oldest records until the tail is within its bound."""
        dropped = 0
        for record in self.tail:
            if self.tail_bytes <= self.tail_bytes_max:
                break
            self.tail_bytes -= _held_bytes(record)
            dropped += 1
        del self.tail[:dropped]
        self.tail_start += dropped

    def truncate(self, low: int) -> None:
        """Records below ``low`` are gone from the store."""
        self.low = low
        dropped = low - self.tail_start
        if dropped > 0:
            gone = self.tail[:dropped]
            self.tail_bytes -= sum(map(_held_bytes, gone))
            del self.tail[:dropped]
            self.tail_start = low

    def hot(self, offset: int, limit: int) -> list[Record] | None:
        """Records from ``offset`` if they are in memory; None if they have to be read."""
        start = offset - self.tail_start
        return None if start < 0 else self.tail[start : start + limit]

    def record_key(self, offset: int) -> bytes:
        """Row key of a record."""
        return self.record_prefix + pack_offset(offset)

    @property
    def record_end(self) -> bytes:
        """Behind the row key of every record."""
        return self.record_prefix + OFFSET_END

    @property
    def newest_prefix(self) -> bytes:
        """Front of the row keys that tell the newest record of a key."""
        return NEWEST_MARKER + self.place

    @property
    def tombstone_prefix(self) -> bytes:
        """Front of the row keys that list tombstones."""
        return TOMBSTONE_MARKER + self.place


def _held_bytes(record: Record) -> int:
    """Memory that a record in the tail takes."""
    return RECORD_OVERHEAD_BYTES + size_of(record[4], record[5])


def size_of(key: bytes | None, value: bytes | None) -> int:
    """Bytes of a record as its bounds count them."""
    return (len(key) if key else 0) + (len(value) if value else 0)
