"""A partitioned log with consumer groups and transactions: Kafka, or a twin of it.

Every implementation passes the contract suite in ``tests/contract``. All methods are called from
one thread per object unless they say otherwise; different objects may be used from
different threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class TopicPartition(NamedTuple):
    """Names one partition of one topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One record as it lies in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Write(NamedTuple):
    """One record to be appended in a commit; a None value is a tombstone."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


class FailedSend(NamedTuple):
    """A record the producer gave up. It will not be sent any more; it may be in the log all the
    same if its acknowledgement was lost."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    reason: str
    lasting: bool = False
    """True if the log will never take this record, such as one over its topic's size limit."""


class Watermarks(NamedTuple):
    """Kept range of a partition: offsets in [low, high)."""

    low: int
    high: int


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicSpec:
    """A topic as it shall be."""

    name: str
    partitions: int
    config: Mapping[str, str]
    """Kafka topic settings, such as ``{"cleanup.policy": "compact"}``."""
    replication: int | None = None
    """Copies of each partition, >= 1; None: as the cluster is set up. Without meaning for a log
    of one process."""


class Ownership(Protocol):
    """Opaque proof of a membership at one moment.

    A commit that carries it is refused once the group has moved on, even if the same member has
    joined again since.
    """


class MemberListener(Protocol):
    """Told about partitions from inside `Member.poll` and `Member.close`, never in between."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These are ours now, in addition to what we have. They start paused."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These leave us when this call returns; a last commit is still accepted inside it."""
        ...

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are no longer ours: somebody else may own them already. Write nothing."""
        ...

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        """The committed offset lay outside what the log keeps; reading starts at ``kept.low``."""
        ...


class Member(Protocol):
    """One member of a consumer group."""

    def poll(self, max_records: int, timeout_ms: int) -> list[Record]:
        """Records of assigned, unpaused partitions: waits up to ``timeout_ms`` for the first one,
        then takes what is there, at most ``max_records``. In offset order within a partition.
        Only records of committed transactions. Each partition starts at the group's committed
        offset, or at the earliest kept record when there is none or it is out of range.

        Raises:
            Retry: the log is away for now; call again.
            Fatal: the membership cannot go on (for instance, access refused); stop.
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop delivering these; records already polled stay with the caller."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Deliver these (again), from where they stopped."""
        ...

    def position(self, partition: TopicPartition) -> int | None:
        """Next offset that `poll` would deliver of an assigned partition, paused or not; None if
        it is not ours. Known as soon as `MemberListener.assigned` is called for it."""
        ...

    def ownership(self) -> Ownership:
        """The present membership, for `Committer.commit`. Take it together with the state that is
        to be committed: the proof must not be younger than what it vouches for.

        Raises:
            Fenced: there is no membership now.
        """
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store next offsets for the group, in the background, outside any transaction.

        For readers whose progress is not part of a transaction, such as workers.
        """
        ...

    def close(self) -> None:
        """Leave the group at once (`MemberListener.revoked` is called first) and free all."""
        ...


class Producer(Protocol):
    """Sends records at once: idempotent, in order per partition, acknowledged in the background."""

    sent: Mapping[TopicPartition, int]
    """Records accepted by `send` so far, per partition."""
    settled: Mapping[TopicPartition, int]
    """Of those, how many the log has acknowledged or the producer has given up, in order."""
    acked_offset: Mapping[TopicPartition, int]
    """Offset of the newest acknowledged record per partition."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> bool:
        """Queue one record. False: the local queue is full; `poll`, then offer it again.

        Raises:
            Reject: the record can never be sent, such as one over the log's size limit.
        """
        ...

    def poll(self, timeout_ms: int) -> None:
        """Update the counters above from what the log has answered."""
        ...

    def take_failed(self) -> list[FailedSend]:
        """Records given up since the last call."""
        ...

    def flush(self, timeout_ms: int) -> bool:
        """Wait until everything sent is settled; False if the time ran out first."""
        ...

    def close(self) -> None:
        """Flush for a bounded time and free all."""
        ...


class Committer(Protocol):
    """Appends records and stores a member's offsets in one atomic step."""

    def commit(
        self,
        writes: Sequence[Write],
        offsets: Mapping[TopicPartition, int],
        ownership: Ownership,
    ) -> Mapping[TopicPartition, int]:
        """All or nothing; may be called from another thread than the member's.

        Returns:
            For each partition written, the offset of its last record.

        Raises:
            Retry: nothing was stored; the same commit may be tried again.
            Fenced: nothing was stored: the member's ownership is out of date. Do not try the
                same commit again; partitions that are still ours go into the next one.
            Fatal: the committer is unusable; stop the process.
        """
        ...

    def close(self) -> None:
        """Abort what is open and free all."""
        ...


class Reader(Protocol):
    """Reads partitions outside any group, for restore and for tools."""

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        """The kept range now. Raises Retry while the log is away."""
        ...

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Next offset that ``group`` has stored for a partition; None if it has stored none, or
        there is no such group. What has just been stored may show a moment later. Raises Retry
        while the log is away."""
        ...

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        """Committed records with offset in [start, end), in batches, then stop.

        Gaps (transaction markers, compacted records) are skipped silently.

        Raises:
            Corrupt: ``start`` is below what the log keeps: rebuild from `Watermarks.low`.
            Retry: the log is away for now; what was yielded stands, go on from there.
        """
        ...

    def close(self) -> None:
        """Free all."""
        ...


class Log(Protocol):
    """The factory of all of the above, and the topics themselves. Safe to share by threads."""

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """Create those that do not exist; leaves the others as they are."""
        ...

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Number of partitions of each topic that exists; the others are left out."""
        ...

    def member(self, group: str, topics: Sequence[str], listener: MemberListener) -> Member:
        """Join ``group``. The same partition number of all ``topics`` lands on one member when
        they have equal partition counts."""
        ...

    def producer(self) -> Producer:
        """A new producer."""
        ...

    def committer(self, name: str) -> Committer:
        """A new committer; ``name`` is unique to this process and start."""
        ...

    def reader(self) -> Reader:
        """A new reader."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """How long a silent member keeps its partitions; the lease is half of it."""
        ...

    def close(self) -> None:
        """Free all; members, producers and the rest must be closed before."""
        ...
