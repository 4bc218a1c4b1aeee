"""One partition as a broker keeps it, and the transactions that write to it."""

from bisect import bisect_left
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from cape_stream.ports.log import Record, TopicPartition


class TransactionState(Enum):
    """OPEN, then one of the other two for ever."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    """What one commit writes; readers see all of it or nothing."""

    def __init__(self) -> None:
        self.state = TransactionState.OPEN
        self.partitions: dict[TopicPartition, None] = {}
        """Those written to, in order; each gets a marker at the end."""
        self.offsets: Mapping[TopicPartition, int] = {}
        """What the group's offsets become."""


class Entry(NamedTuple):
    """One offset of a partition."""

    offset: int
    record: Record | None
    """None for the marker that ends a transaction."""
    transaction: Transaction | None


class StoredPartition:
    """Entries ascending by offset, with gaps where records were compacted away."""

    def __init__(self) -> None:
        self.low = 0
        """First offset kept."""
        self.high = 0
        """Next offset to be given."""
        self._entries: list[Entry] = []
        self._open: dict[Transaction, int] = {}

    def append(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        transaction: Transaction | None = None,
    ) -> int:
        """Append one record; returns its offset."""
        offset = self.high
        record = Record(*partition, offset, timestamp_ms, key, value)
        self._entries.append(Entry(offset, record, transaction))
        self.high += 1
        if transaction is not None:
            self._open.setdefault(transaction, offset)
            transaction.partitions[partition] = None
        return offset

    def end_transaction(self, transaction: Transaction) -> None:
        """Append the marker; its records become readable, or never do."""
        if self._open.pop(transaction, None) is not None:
            self._entries.append(Entry(self.high, None, transaction))
            self.high += 1

    @property
    def stable(self) -> int:
        """Offset up to which nothing is undecided: no open transaction wrote below it."""
        return min(self._open.values()) if self._open else self.high

    def read(self, start: int, end: int, records_max: int) -> tuple[list[Record], int]:
        """Committed records in [start, end), at most so many, none beyond `stable`.

        Returns:
            The records and the offset to go on from.
        """
        end = min(end, self.stable)
        records: list[Record] = []
        for index in range(self._index(start), len(self._entries)):
            entry = self._entries[index]
            if entry.offset >= end:
                break
            if entry.record is None or not self._readable(entry):
                continue
            if len(records) == records_max:
                return records, entry.offset
            records.append(entry.record)
        return records, max(start, end)

    def delete_before(self, offset: int) -> None:
        """Retention: records below ``offset`` are gone."""
        self.low = max(self.low, min(offset, self.high))
        del self._entries[: self._index(self.low)]

    def truncate(self, offset: int) -> None:
        """Records from ``offset`` on are lost, as by an unclean election; offsets come again."""
        del self._entries[self._index(offset) :]
        self.high = max(self.low, min(self.high, offset))
        self._open = {open_: first for open_, first in self._open.items() if first < offset}

    def compact(self, tombstones_from_ms: int) -> None:
        """Keep the newest record of each key below `stable`; `low` stays.

        Args:
            tombstones_from_ms: older ones go.
        """
        stable = self.stable
        newest: dict[bytes | None, int] = {}
        for entry in self._entries:
            if entry.offset < stable and entry.record is not None and self._readable(entry):
                newest[entry.record.key] = entry.offset
        self._entries = [
            entry
            for entry in self._entries
            if entry.offset >= stable
            or (
                entry.record is not None
                and (
                    entry.record.value is not None
                    or entry.record.timestamp_ms >= tombstones_from_ms
                )
                and self._readable(entry)
                and newest[entry.record.key] == entry.offset
            )
        ]

    @staticmethod
    def _readable(entry: Entry) -> bool:
        transaction = entry.transaction
        return transaction is None or transaction.state is TransactionState.COMMITTED

    def _index(self, offset: int) -> int:
        if not self._entries or offset > self._entries[-1].offset:
            return len(self._entries)
        return bisect_left(self._entries, offset, key=lambda entry: entry.offset)
