"""What an embedded log throws away, and whom a group stops waiting for. Run once a second."""

from rocksdict import WriteBatch

from cape_stream.adapters.embedded.partition import Partition
from cape_stream.adapters.embedded.rows import (
    BOUNDS_MARKER,
    OFFSET_END,
    encode_bounds,
    offset_of,
    timestamp_of,
)
from cape_stream.adapters.embedded.state import State
from cape_stream.ports.log import TopicPartition

RETENTION_PERIOD_MS_MAX = 60_000
TOMBSTONES_PER_ROUND = 1_000


class Housekeeping:
    """Retention, tombstones and silent members; `run` may be called as often as one likes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._opened_ms = state.now_ms()
        self._next_retention_ms = self._opened_ms
        self._marks: dict[TopicPartition, tuple[int, int]] = {}
        """An offset below which all groups were done, and when that was seen."""

    def run(self) -> None:
        """Do what is due."""
        now_ms = self._state.now_ms()
        self._drop_silent_members(now_ms)
        if now_ms >= self._next_retention_ms:
            period_ms = min(self._state.settings.consumed_retention_ms, RETENTION_PERIOD_MS_MAX)
            self._next_retention_ms = now_ms + period_ms
            for partition in list(self._state.partitions.values()):
                if partition.compacted:
                    self._drop_tombstones(partition, now_ms)
                else:
                    self._truncate(partition, now_ms)

    def _drop_silent_members(self, now_ms: int) -> None:
        state = self._state
        with state.lock:
            for group in state.groups.values():
                for member_id in group.silent(now_ms, state.settings.session_timeout_ms):
                    member = group.members[member_id]
                    group.leave(member_id, state.partition_counts)
                    member.wake()

    def _truncate(self, partition: Partition, now_ms: int) -> None:
        """Move the low watermark over what is consumed since a while, or simply too old."""
        state = self._state
        aged = self._first_younger(partition, now_ms)
        with state.lock:
            low = max(aged, self._consumed_before(partition, now_ms))
            if low > partition.low:
                state.truncate(partition, low)

    def _consumed_before(self, partition: Partition, now_ms: int) -> int:
        """Offset that every group had passed at least one retention time ago."""
        mark = self._marks.get(partition.name)
        if mark is not None and now_ms - mark[1] < self._state.settings.consumed_retention_ms:
            return 0
        passed = [
            offset
            for group in self._state.groups.values()
            if (offset := group.consumed(partition.name)) is not None
        ]
        self._marks[partition.name] = (min(passed, default=0), now_ms)
        return min(mark[0], partition.high) if mark is not None else 0

    def _first_younger(self, partition: Partition, now_ms: int) -> int:
        """First offset within ``retention.ms``, by bisection: offsets have no gaps here."""
        if partition.retention_ms < 0:
            return 0
        low, high = partition.low, partition.high
        while low < high:
            middle = (low + high) // 2
            row = self._state.store.get_many([partition.record_key(middle)])[0]
            if row is not None and timestamp_of(row) >= now_ms - partition.retention_ms:
                high = middle
            else:
                low = middle + 1
        return low

    def _drop_tombstones(self, partition: Partition, now_ms: int) -> None:
        """Forget keys that were deleted long ago, with their tombstones."""
        state = self._state
        if now_ms - self._opened_ms < state.settings.tombstone_grace_ms:
            return
        prefix = partition.tombstone_prefix
        rows = state.store.scan(prefix, prefix + OFFSET_END, TOMBSTONES_PER_ROUND)
        with state.lock:
            batch = WriteBatch(raw_mode=True)
            for tombstone_key, key in rows:
                offset = offset_of(tombstone_key)
                newest_key = partition.newest_prefix + key
                newest, row = state.store.get_many([newest_key, partition.record_key(offset)])
                if (
                    row is not None
                    and now_ms - timestamp_of(row) < partition.tombstone_retention_ms
                ):
                    break
                batch.delete(tombstone_key)
                batch.delete(partition.record_key(offset))
                if newest is not None and offset_of(newest) == offset:
                    batch.delete(newest_key)
            if not batch.is_empty():
                batch.put(
                    BOUNDS_MARKER + partition.place, encode_bounds(partition.low, partition.high)
                )
                state.store.write(batch)
