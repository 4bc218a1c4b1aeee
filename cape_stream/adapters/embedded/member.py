"""A member of a group: fetches, and follows its assignment from inside its own poll."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from time import monotonic

from cape_stream.adapters.embedded.group import Group
from cape_stream.adapters.embedded.partition import Partition
from cape_stream.adapters.embedded.state import State
from cape_stream.errors import Fatal, Fenced
from cape_stream.ports.log import MemberListener, Record, TopicPartition, Watermarks

COLD_ROWS = 1_000
"""Most records of one read from the store, so that a lagging partition delays the others little."""


class _Reading:
    """An owned partition and where this member stands in it."""

    __slots__ = ("partition", "paused", "position")

    def __init__(self, partition: Partition, position: int) -> None:
        self.partition = partition
        self.position = position
        self.paused = True


@dataclass(slots=True, frozen=True)
class EmbeddedOwnership:
    """`cape_stream.ports.log.Ownership`: the membership, and how many claims it had seen."""

    group: Group
    member_id: int
    claims: int


class EmbeddedMember:
    """`cape_stream.ports.log.Member`, for one thread at a time."""

    def __init__(
        self, state: State, group: str, topics: Sequence[str], listener: MemberListener
    ) -> None:
        self.topics: Collection[str] = tuple(topics)
        self._state = state
        self._listener = listener
        self._wakeup = Event()
        self._readings: dict[TopicPartition, _Reading] = {}
        self._active: list[_Reading] = []
        self._turn = 0
        self._seen_version = -1
        self._closed = False
        self.silent_since_ms: int | None = state.now_ms()
        with state.lock:
            self.group = state.group(group)
            self.member_id = self.group.join(self, state.partition_counts)

    # -- the port

    def poll(self, max_records: int, timeout_ms: int) -> list[Record]:
        """Records of unpaused partitions; returns as soon as there is one."""
        if self._closed:
            raise Fatal(f"member of group {self.group.name} was closed")
        self._state.store.check()
        deadline = monotonic() + timeout_ms / 1_000
        while True:
            self._wakeup.clear()
            self.silent_since_ms = self._state.now_ms()
            if self._seen_version != self.group.version:
                self._follow_assignment()
            records = self._fetch(max_records)
            if records:
                return records
            remaining = deadline - monotonic()
            if remaining <= 0:
                return records
            self.silent_since_ms = None
            self._wakeup.wait(remaining)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop delivering these; names that are not ours are passed over."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Deliver these again; names that are not ours are passed over."""
        self._set_paused(partitions, False)

    def position(self, partition: TopicPartition) -> int | None:
        """Next offset that poll would deliver."""
        reading = self._readings.get(partition)
        return None if reading is None else reading.position

    def ownership(self) -> EmbeddedOwnership:
        """The present membership; Fenced when the group went on without us."""
        with self._state.lock:
            if not self._is_joined():
                raise Fenced(f"group {self.group.name} goes on without this member")
            return EmbeddedOwnership(self.group, self.member_id, self.group.claims)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store what is still ours, at once and durably; the rest is its new owner's."""
        with self._state.lock:
            owners = self.group.owners
            ours = {
                name: offset
                for name, offset in offsets.items()
                if owners.get(name) == self.member_id
            }
            self._state.append((), self.group, ours)

    def close(self) -> None:
        """Leave the group; may be called twice."""
        if self._closed:
            return
        self._closed = True
        names = list(self._readings)
        if names and self._is_joined():
            self._listener.revoked(names)
        elif names:
            self._listener.lost(names)
        self._forget(names)
        with self._state.lock:
            if self._is_joined():
                self.group.leave(self.member_id, self._state.partition_counts)

    # -- for the group

    def wake(self) -> None:
        """End the wait in poll."""
        self._wakeup.set()

    # -- assignment

    def _is_joined(self) -> bool:
        return self.member_id in self.group.members

    def _follow_assignment(self) -> None:
        """Give up what shall go, then take what is free; callbacks run without the lock."""
        version = self.group.version  # before looking: a change from here on means another round
        if not self._is_joined():
            self._rejoin()
        self._give_up()
        self._take()
        self._seen_version = version

    def _rejoin(self) -> None:
        """The group went on without us: whatever we had may be somebody else's already."""
        names = list(self._readings)
        self._forget(names)
        with self._state.lock:
            self.member_id = self.group.join(self, self._state.partition_counts)
        if names:
            self._listener.lost(names)

    def _give_up(self) -> None:
        target = self.group.target
        names = [name for name in self._readings if target.get(name) != self.member_id]
        if not names:
            return
        self._listener.revoked(names)
        self._forget(names)
        with self._state.lock:
            self.group.release(self.member_id, names)

    def _take(self) -> None:
        outside: list[tuple[TopicPartition, int, Watermarks]] = []
        with self._state.lock:
            names = self.group.claim(self.member_id) if self._is_joined() else []
            for name in names:
                partition = self._state.partitions[name]
                committed = self.group.committed.get(name)
                kept = Watermarks(partition.low, partition.high)
                position = kept.low
                if committed is not None and kept.low <= committed <= kept.high:
                    position = committed
                elif committed is not None:
                    outside.append((name, committed, kept))
                self._readings[name] = _Reading(partition, position)
                partition.wakeups += (self._wakeup,)
        if names:
            self._listener.assigned(names)
        for name, committed, kept in outside:
            self._listener.repositioned(name, committed, kept)

    def _forget(self, names: Sequence[TopicPartition]) -> None:
        with self._state.lock:
            for name in names:
                partition = self._readings.pop(name).partition
                partition.wakeups = tuple(
                    wakeup for wakeup in partition.wakeups if wakeup is not self._wakeup
                )
        self._refresh_active()

    # -- fetching

    def _set_paused(self, partitions: Sequence[TopicPartition], paused: bool) -> None:
        for name in partitions:
            if name in self._readings:
                self._readings[name].paused = paused
        self._refresh_active()

    def _refresh_active(self) -> None:
        self._active = [reading for reading in self._readings.values() if not reading.paused]

    def _fetch(self, max_records: int) -> list[Record]:
        """What is there, beginning with another partition every time."""
        active = self._active
        if not active:
            return []
        self._turn = turn = (self._turn + 1) % len(active)
        records: list[Record] = []
        for reading in active[turn:] + active[:turn]:
            if reading.position < reading.partition.high:
                records += self._read(reading, max_records - len(records))
                if len(records) >= max_records:
                    break
        return records

    def _read(self, reading: _Reading, limit: int) -> list[Record]:
        partition = reading.partition
        with self._state.lock:
            low, high = partition.low, partition.high
            position = reading.position
            records = partition.hot(position, limit) if position >= low else []
        if position < low:
            reading.position = low
            self._listener.repositioned(partition.name, position, Watermarks(low, high))
            return []
        if records is None:
            found = self._state.read(partition, position, high, min(limit, COLD_ROWS))
            if found is None:
                return []  # truncated meanwhile: the next round repositions
            records, reading.position = found
        else:
            reading.position = position + len(records)
        return records
