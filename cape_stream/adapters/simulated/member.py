"""A member of a simulated consumer group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cape_stream.adapters.simulated.broker import Broker
from cape_stream.adapters.simulated.group import Seat
from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.errors import Fenced, Retry
from cape_stream.ports.log import MemberListener, Record, TopicPartition, Watermarks


@dataclass(slots=True, frozen=True)
class SimOwnership:
    """Implements `Ownership`: the seat a member had when it was asked."""

    member: "SimMember"
    seat: Seat


class SimMember:
    """Implements `Member`; heartbeats go out, and are answered, during `poll`.

    Args:
        broker: the log.
        process: whose member it is.
        group_name: the group to join.
        topics: what it wants partitions of.
        listener: told about them.
    """

    def __init__(
        self,
        broker: Broker,
        process: SimProcess,
        group_name: str,
        topics: Sequence[str],
        listener: MemberListener,
    ) -> None:
        self.group = broker.group(group_name)
        self.group_name = group_name
        self._broker = broker
        self._process = process
        self._topics = tuple(topics)
        self._listener = listener
        self.seat = Seat(0, topics, broker.timeline.now_ms)
        """The present membership: not valid before the first poll, a new one after it was lost."""
        self.seat.valid = False
        self._owned: dict[TopicPartition, int] = {}
        """What the process knows to be its own, with the next offset to deliver."""
        self._paused: set[TopicPartition] = set()
        self._storing: dict[TopicPartition, int] = {}
        self._heartbeat_ms = 0
        """When it speaks to the group next."""
        self._answer: tuple[int, bool] | None = None
        """When it hears what the group said to its last heartbeat, and whether it was a member
        then; None while it does not wait for an answer."""
        self._closed = False

    def poll(self, max_records: int, timeout_ms: int) -> list[Record]:
        """See `Member.poll`; outside a fiber it never waits."""
        self._process.touch()
        self._check_up()
        timeline = self._broker.timeline
        deadline_ms = timeline.now_ms + timeout_ms
        if self._broker.dice.happens(self._broker.dice.faults.poll_short):
            max_records = self._broker.dice.random.randint(1, max_records)
        while True:
            self._heartbeat()
            records = self._fetch(max_records)
            wait_ms = deadline_ms - timeline.now_ms
            if records or wait_ms <= 0 or timeline.current is None:
                return records
            self._broker.changed.wait(wait_ms, self._has_news)
            if timeline.now_ms < deadline_ms:
                timeline.sleep(self._broker.dice.draw_ms(self._broker.dice.faults.fetch_ms))
            if not self._broker.up:
                return []

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """See `Member.pause`."""
        self._process.touch()
        self._paused.update(partition for partition in partitions if partition in self._owned)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """See `Member.resume`."""
        self._process.touch()
        self._paused.difference_update(partitions)

    def position(self, partition: TopicPartition) -> int | None:
        """See `Member.position`."""
        self._process.touch()
        return self._owned.get(partition)

    def ownership(self) -> SimOwnership:
        """See `Member.ownership`. A member that was put out and does not know it yet has one."""
        if self._closed or not self.seat.number:
            raise Fenced(f"not a member of {self.group_name}")
        return SimOwnership(self, self.seat)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Member.commit`; stored after a while, lost if the process dies first."""
        self._process.touch()
        self._storing.update(offsets)
        delay_ms = self._broker.dice.draw_ms(self._broker.dice.faults.offsets_ms)
        if delay_ms and self._broker.timed:
            self._broker.timeline.after(delay_ms, self._store_unless_gone)
        else:
            self._store()

    def close(self) -> None:
        """See `Member.close`."""
        if self._closed or not self._process.alive:
            return
        self._process.touch()
        self._put_out_silent()
        if self.seat.valid:
            self._let_go(set(self._owned))
            self._store()
            self.group.leave(self.seat)
        else:
            self._lose_all()
        self._closed = True
        self._broker.changed.notify()

    def owns(self, partition: TopicPartition) -> bool:
        """Whether the process believes that ``partition`` is its own."""
        return partition in self._owned

    def _check_up(self) -> None:
        self._broker.check_up()
        if self._broker.dice.happens(self._broker.dice.faults.poll_retry):
            raise Retry("the simulated log does not answer this poll")

    def _heartbeat(self) -> None:
        """Speak to the group, and hear what it answered.

        The answer takes its time, so a process that was stopped for too long goes on for a while
        with partitions that others own already, as with any real client.
        """
        self._put_out_silent()
        now_ms = self._broker.timeline.now_ms
        if self._answer is not None and now_ms >= self._answer[0]:
            (_, still_in), self._answer = self._answer, None
            self._hear(still_in=still_in)
        if self._answer is None and now_ms >= self._heartbeat_ms:
            faults, dice = self._broker.dice.faults, self._broker.dice
            self.seat.seen_ms = now_ms
            self._heartbeat_ms = now_ms + dice.draw_ms(faults.heartbeat_ms)
            delay_ms = dice.draw_ms(faults.answer_ms) if self._owned else 0
            if delay_ms:
                self._answer = now_ms + delay_ms, self.seat.valid
            else:
                self._hear(still_in=self.seat.valid)

    def _hear(self, *, still_in: bool) -> None:
        """Do what the group wants: leave, join anew, let go, take.

        ``still_in``: whether we were members when the heartbeat got there; what has become of us
        since then, the next one will tell.
        """
        broker = self._broker
        if not still_in:
            self._lose_all()
            with broker.lock:
                self.seat = self.group.join(self._topics, broker.timeline.now_ms)
            broker.changed.notify()
        if not self.seat.valid:
            return
        target = self.group.target(self.seat)
        if leaving := set(self._owned) - target:
            self._let_go(leaving)
        self._take_free(target)

    def _take_free(self, target: set[TopicPartition]) -> None:
        """Take what nobody holds, unless the group has put us out while we let go."""
        # A position is known once no open transaction can still move the committed offset.
        arriving = [p for p in self.group.free(target) if not self.group.undecided(p)]
        dice = self._broker.dice
        if len(arriving) > 1 and dice.happens(dice.faults.assign_part):
            arriving = sorted(dice.random.sample(arriving, dice.random.randrange(len(arriving))))
        if self.seat.valid and arriving:
            self._take(arriving)

    def _take(self, arriving: Sequence[TopicPartition]) -> None:
        committed: dict[TopicPartition, int] = {}
        for partition in arriving:
            low = self._kept(partition).low
            committed[partition] = self.group.offsets.get(partition, low)
        self.seat.owned.update(arriving)
        self._owned.update(
            {partition: self._within(partition, at) for partition, at in committed.items()}
        )
        self._paused.update(arriving)
        self._note("assigned", arriving)
        self._listener.assigned(arriving)
        for partition, at in committed.items():
            if at != self._within(partition, at):
                self._listener.repositioned(partition, at, self._kept(partition))

    def _let_go(self, leaving: set[TopicPartition]) -> None:
        if not leaving:
            return
        self._note("revoked", sorted(leaving))
        self._listener.revoked(sorted(leaving))
        self._store()
        self._forget(leaving)
        self.seat.owned -= leaving
        self._broker.changed.notify()

    def _lose_all(self) -> None:
        lost = sorted(self._owned)
        self._forget(set(lost))
        self._storing.clear()
        if lost:
            self._note("lost", lost)
            self._listener.lost(lost)

    def _forget(self, partitions: set[TopicPartition]) -> None:
        for partition in partitions:
            self._owned.pop(partition, None)
        self._paused -= partitions

    def _put_out_silent(self) -> None:
        with self._broker.lock:
            put_out = self.group.put_out_silent(self._broker.timeline.now_ms)
        if put_out:
            self._broker.timeline.note(
                "broker", "put out", f"{len(put_out)} silent of {self.group_name}"
            )
            self._broker.changed.notify()

    def _has_news(self) -> bool:
        """Whether a fetch would find records; what the group decides is seen by the next poll."""
        return bool(self._with_news())

    def _with_news(self) -> list[TopicPartition]:
        """Unpaused partitions whose position is not where their readable records end."""
        return [
            partition
            for partition, position in self._owned.items()
            if partition not in self._paused
            and position != self._broker.partition(partition).stable
        ]

    def _fetch(self, max_records: int) -> list[Record]:
        ready = self._with_news()
        self._broker.dice.random.shuffle(ready)
        records: list[Record] = []
        for partition in ready:
            before = self._owned[partition]
            position = self._within(partition, before)
            if position != before:
                self._listener.repositioned(partition, before, self._kept(partition))
            with self._broker.lock:
                stored = self._broker.partition(partition)
                found, self._owned[partition] = stored.read(
                    position, stored.high, max_records - len(records)
                )
            records += found
            if len(records) == max_records:
                break
        return records

    def _within(self, partition: TopicPartition, position: int) -> int:
        kept = self._kept(partition)
        return position if kept.low <= position <= kept.high else kept.low

    def _kept(self, partition: TopicPartition) -> Watermarks:
        stored = self._broker.partition(partition)
        return Watermarks(stored.low, stored.high)

    def _store_unless_gone(self) -> None:
        if self._process.alive:
            self._store()

    def _store(self) -> None:
        if self.seat.valid:
            self.group.offsets.update(self._storing)
        self._storing.clear()

    def _note(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        detail = " ".join(f"{topic}/{number}" for topic, number in partitions)
        self._broker.timeline.note(self._process.name, what, detail)
