"""Where a worker's jobs come from: its group membership and a small buffer in front of the slots.

A record stays uncommitted until a slot takes it. So whatever is still in the buffer when the worker
stops, dies, or loses the partition is read by the next owner at once, and needs no hand-back; what
a slot has taken is never read again, for from there on it is the dispatcher who retries.

Each lane has its own bound. Live records are taken before backlog ones, but for a small share: a
queue whose live jobs never end would else hold a backfill up for ever. A slot that is kept for live
jobs takes no others, so that fresh news finds one free while long backlog jobs fill the rest.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from cape_stream.model.job import BACKLOG
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.log import Log, Member, Record, TopicPartition, Watermarks

PATIENCE_MS = 10
"""How long the loop waits for slots to make room before it pauses a lane: pausing makes a client
drop what it has fetched, so it is for jobs that take long, not for every full buffer."""

BUSY_WAIT_MS = 100
"""How long the loop waits between two polls when every lane is full; bounds how late the group
hears from it."""

FULL_PERCENT = 100

_log = logging.getLogger("cape_stream.worker")


class Lane:
    """Records of one kind that wait for a slot."""

    __slots__ = ("partitions", "paused", "records")

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.partitions: set[TopicPartition] = set()
        """Assigned partitions that feed it."""
        self.paused = False


class Intake:
    """Owns the member. `fill` and `close` belong to the loop's thread, `take` to any thread.

    Args:
        log: where the jobs are.
        names: the App's topics and groups.
        queues: the queues to serve.
        prefetch: most records of a lane that wait in the buffer, give or take one poll; >= 1.
        backlog_percent: share of backlog records among those taken while both lanes wait, 0 to 50.
    """

    def __init__(
        self,
        log: Log,
        names: TopicNames,
        queues: Sequence[str],
        prefetch: int,
        backlog_percent: int,
    ) -> None:
        self._names = names
        self._prefetch = prefetch
        self._backlog_percent = backlog_percent
        self._owed_percent = 0
        """What the backlog lane is owed: its share of every record taken while both waited."""
        self._live_takers = 0
        """Slots that wait for a live record and take no other."""
        self._live = Lane()
        self._backlog = Lane()
        self._taken: dict[TopicPartition, int] = {}
        """Next offset per partition, of what slots took since the last commit."""
        self._arrived: list[TopicPartition] = []
        """Assigned in this poll; resumed after it."""
        self._closed = False
        lock = threading.Lock()
        self._ready = threading.Condition(lock)
        self._room = threading.Condition(lock)
        topics = names.job_topics(queues)
        self._member: Member = log.member(names.worker_group, topics, self)

    def fill(self, timeout_ms: int) -> None:
        """Get more records, waiting for the first one at most so long.

        Raises:
            Retry: the log is away; nothing is lost, call again later.
            Fatal: the membership cannot go on.
        """
        self._balance()
        paused = self._live.paused + self._backlog.paused
        wait_ms = (timeout_ms, min(timeout_ms, PATIENCE_MS), 0)[paused]
        records = self._member.poll(self._prefetch, wait_ms)
        self._resume_arrived()
        if records:
            with self._ready:
                for record in records:
                    self._lane(record.topic).records.append(record)
                self._ready.notify(len(records) + self._live_takers)

    def take(self, *, live_only: bool = False) -> Record | None:
        """The next record, or the next live one, waiting for it; None after `stop`."""
        with self._ready:
            self._live_takers += live_only
            while not self._closed and not (
                self._live.records or (self._backlog.records and not live_only)
            ):
                self._ready.wait()
            self._live_takers -= live_only
            return self._pop(live_only=live_only)

    def take_now(self) -> Record | None:
        """The next record if there is one; None after `stop`."""
        with self._ready:
            return self._pop()

    @property
    def waiting(self) -> int:
        """Records in the buffer; from any thread."""
        return len(self._live.records) + len(self._backlog.records)

    def commit(self) -> None:
        """Store what was taken since the last call, so that nobody reads it again."""
        with self._ready:
            taken, self._taken = self._taken, {}
        if taken:
            self._member.commit(taken)

    def stop(self) -> None:
        """Give out no more records; wakes whoever waits in `take`."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
            self._room.notify_all()

    def close(self) -> None:
        """Leave the group, which commits what was taken (see `revoked`); call `stop` first."""
        self._member.close()

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        for partition in partitions:
            self._lane(partition.topic).partitions.add(partition)
        self._arrived += partitions

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`: a last commit, and the next owner reads the rest."""
        leaving = set(partitions)
        kept = self._forget(leaving)
        if kept:
            self._member.commit(kept)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        self._forget(set(partitions))

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        """See `MemberListener`: what is gone will time out and be issued again."""
        _log.warning(
            "%s-%d: the committed offset %d is outside what the log keeps, [%d, %d); jobs in"
            " between are issued again after their timeout",
            *(partition.topic, partition.partition, committed, kept.low, kept.high),
        )

    def _forget(self, leaving: set[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Drop the buffered records of partitions that leave; return what was taken of them."""
        taken: dict[TopicPartition, int] = {}
        with self._ready:
            for lane in (self._live, self._backlog):
                lane.partitions -= leaving
                lane.records = deque(
                    record
                    for record in lane.records
                    if TopicPartition(record.topic, record.partition) not in leaving
                )
            for partition in leaving & self._taken.keys():
                taken[partition] = self._taken.pop(partition)
        self._arrived = [each for each in self._arrived if each not in leaving]
        return taken

    def _pop(self, *, live_only: bool = False) -> Record | None:
        lane = self._live if live_only else self._next_lane()
        if self._closed or not lane.records:
            return None
        record = lane.records.popleft()
        self._taken[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if self._is_drained(lane):
            self._room.notify()
        return record

    def _next_lane(self) -> Lane:
        """Live before backlog, unless the backlog's share is due."""
        if not self._live.records or not self._backlog.records:
            return self._live if self._live.records else self._backlog
        self._owed_percent += self._backlog_percent
        if self._owed_percent < FULL_PERCENT:
            return self._live
        self._owed_percent -= FULL_PERCENT
        return self._backlog

    def _lane(self, topic: str) -> Lane:
        return self._backlog if self._names.lane_of(topic) == BACKLOG else self._live

    def _resume_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        ready = [each for each in arrived if not self._lane(each.topic).paused]
        if ready:
            self._member.resume(ready)

    def _balance(self) -> None:
        """Wait a little where a lane is full, then pause it; resume it when it is half empty."""
        lanes = (self._live, self._backlog)
        with self._room:
            if all(each.paused or not each.partitions for each in lanes):
                self._room.wait_for(self._any_drained, BUSY_WAIT_MS / 1_000)
            else:
                self._room.wait_for(self._none_full, PATIENCE_MS / 1_000)
            full = [each for each in lanes if not each.paused and self._is_full(each)]
            free = [each for each in lanes if each.paused and self._is_drained(each)]
        for lane in full:
            lane.paused = True
            self._member.pause(sorted(lane.partitions))
        for lane in free:
            lane.paused = False
            self._member.resume(sorted(lane.partitions))

    def _is_full(self, lane: Lane) -> bool:
        return len(lane.records) >= self._prefetch

    def _is_drained(self, lane: Lane) -> bool:
        return len(lane.records) <= self._prefetch // 2

    def _none_full(self) -> bool:
        lanes = (self._live, self._backlog)
        return self._closed or not any(self._is_full(each) for each in lanes if not each.paused)

    def _any_drained(self) -> bool:
        """Tell whether a paused lane may go on; True if none is paused."""
        paused = [each for each in (self._live, self._backlog) if each.paused]
        return self._closed or not paused or any(self._is_drained(each) for each in paused)
