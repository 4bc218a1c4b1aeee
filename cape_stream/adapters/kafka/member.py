"""A member of a consumer group.

Life of a partition here: given by the group → *unknown start*, held paused inside, nobody is told →
start found (`start_positions`), of the same number of the other topics too, and sought → the
listener's ``assigned`` → ``resume`` by the caller → records → ``revoked`` or ``lost``. One that
leaves while its start is unknown was never told about.

Everything runs in the thread that calls `poll`, the client's callbacks too. What the two group
protocols are and do is in `group_protocol`.
"""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from cape_stream.adapters.kafka.client_log import LOGGER, ClientLog
from cape_stream.adapters.kafka.failures import MISCONFIGURED, REFUSED, kafka_error
from cape_stream.adapters.kafka.group_protocol import ClassicProtocol, ConsumerProtocol
from cape_stream.adapters.kafka.offset_commits import OffsetCommits
from cape_stream.adapters.kafka.ownership import KafkaOwnership, epoch_of
from cape_stream.adapters.kafka.positions import Positions
from cape_stream.adapters.kafka.records import records_of
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.adapters.kafka.start_positions import Start, StartPositions
from cape_stream.errors import Fatal, Fenced
from cape_stream.ports.log import MemberListener, Record, TopicPartition, Watermarks

UNKNOWN_START_WAIT_S = 0.002
"""How often `poll` looks for answers while a partition's start is unknown."""
LEAVE_WAIT_S = 5.0
LEAVE_POLL_S = 0.02


class KafkaMember:
    """See `cape_stream.ports.log.Member`."""

    def __init__(
        self,
        settings: KafkaSettings,
        admin: AdminClient,
        group: str,
        topics: Sequence[str],
        listener: MemberListener,
    ) -> None:
        self._settings = settings
        self._group = group
        self._topics = list(topics)
        self._listener = listener
        self._positions = Positions()
        self._log = ClientLog(f"member of {group}", self._positions.fell)
        self._commits = OffsetCommits(self._log)
        self._starts = StartPositions(admin, group, settings.request_timeout_ms, self._log)
        self._found: list[Start] = []
        self._owned: frozenset[TopicPartition] = frozenset()
        self._left: set[TopicPartition] = set()
        """Partitions that left during the present `poll`."""
        self._has_news = False
        """The listener was called during the present `poll`."""
        self._fatal: Fatal | None = None
        self._refusal: str | None = None
        """Why the broker does not let us use the protocol it may not know."""
        self._may_fall_back = settings.group_protocol == "auto"
        self._is_closed = False
        self._protocol: ClassicProtocol | ConsumerProtocol
        if settings.group_protocol == "classic":
            self._protocol = ClassicProtocol(settings)
        else:
            self._protocol = ConsumerProtocol(settings, admin, group)
        self._consumer = self._join()

    def poll(self, max_records: int, timeout_ms: int) -> list[Record]:
        """See `Member.poll`."""
        deadline_s = time.monotonic() + timeout_ms / 1_000
        self._left.clear()
        self._has_news = False
        while True:
            self._serve()
            left_ms = math.ceil((deadline_s - time.monotonic()) * 1_000)
            # The client counts in whole milliseconds: less than one would be a spin, not a wait.
            records = self._fetch(max_records, max(0, left_ms) / 1_000)
            if self._positions.has_fallen:
                self._report_resets()
            if self._fatal is not None:
                raise self._fatal
            if self._refusal is not None:
                self._fall_back(self._refusal)
            if records or self._has_news or time.monotonic() >= deadline_s:
                return records

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """See `Member.pause`; partitions that have left meanwhile are ignored."""
        if mine := self._still_owned(partitions, "pause"):
            self._consumer.pause(mine)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """See `Member.resume`; partitions that have left meanwhile are ignored."""
        if mine := self._still_owned(partitions, "resume"):
            self._consumer.resume(mine)

    def position(self, partition: TopicPartition) -> int | None:
        """See `Member.position`."""
        if partition not in self._owned:
            return None
        return self._positions.of(self._consumer, partition)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Member.commit`; partitions that have left meanwhile are ignored."""
        mine = self._still_owned(offsets, "commit")
        ours = [TopicPartition(p.topic, p.partition) for p in mine]
        if ours:
            self._commits.send(self._consumer, {p: offsets[p] for p in ours})

    def ownership(self) -> KafkaOwnership:
        """See `Member.ownership`."""
        if self._is_closed:
            raise Fenced(f"the member of {self._group} has left")
        return KafkaOwnership.of(self._consumer.consumer_group_metadata(), self._owned)

    def close(self) -> None:
        """See `Member.close`."""
        if self._is_closed:
            return
        try:
            self._leave()
        finally:
            self._is_closed = True
            self._consumer.close()

    def _leave(self) -> None:
        try:
            self._consumer.unsubscribe()
        except KafkaException as exception:  # The client has failed for good.
            LOGGER.debug("%s: %s", self._group, kafka_error(exception).str())
        deadline_s = time.monotonic() + LEAVE_WAIT_S
        while self._consumer.assignment() and time.monotonic() < deadline_s:
            self._consumer.poll(LEAVE_POLL_S)
        if self._owned:
            self._drop(sorted(self._owned), is_lost=True)

    def _join(self) -> Consumer:
        config = {
            **self._settings.consumer(),
            **self._protocol.config(),
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": self._settings.max_poll_interval_ms,
            "error_cb": self._on_error,
            "on_commit": self._commits.answered,
        }
        consumer = Consumer(config, logger=self._log)
        consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        return consumer

    def _fall_back(self, refusal: str) -> None:
        """The broker does not offer the new protocol: begin again with the classic one."""
        LOGGER.warning(
            "%s: the broker refuses group.protocol=consumer, so each change of members will stop "
            "all of them for a moment: %s",
            *(self._group, refusal),
        )
        self._refusal = None
        self._may_fall_back = False
        self._consumer.close()
        self._protocol = ClassicProtocol(self._settings)
        self._consumer = self._join()

    def _serve(self) -> None:
        """Do what callbacks and answers have left for us, and tell the listener."""
        if self._positions.has_fallen:
            self._report_resets()
        self._commits.send_again(self._consumer)
        if not self._starts.is_idle:
            self._found += self._starts.found()
        if self._found and self._protocol.is_checked():
            self._begin()

    def _fetch(self, max_records: int, wait_s: float) -> list[Record]:
        """What is there; if nothing is, waits for the first and takes what came with it."""
        consumer = self._consumer
        messages = consumer.consume(max_records, 0)
        if not messages:
            if self._has_news:
                return []
            if self._found or not self._starts.is_idle:
                wait_s = min(wait_s, UNKNOWN_START_WAIT_S)
            first = consumer.poll(wait_s)
            if first is None:
                return []
            messages = [first]
            if max_records > 1:
                messages += consumer.consume(max_records - 1, 0)
        records = records_of(messages)
        if len(records) < len(messages):
            self._serve_errors(messages)
        if self._left:
            records = [r for r in records if (r.topic, r.partition) not in self._left]
        return records

    def _begin(self) -> None:
        """Make the partitions whose start was found ours, and say so."""
        # The same number of all topics is one task: it begins when all of it is ready.
        unready = self._starts.wanted_numbers
        for start in self._found:
            try:
                self._consumer.seek(KafkaPartition(*start.partition, start.offset))
            except KafkaException:  # The client is not through with the assignment yet.
                unready.add(start.partition.partition)
        begun = [start for start in self._found if start.partition.partition not in unready]
        self._found = [start for start in self._found if start.partition.partition in unready]
        if not begun:
            return
        self._positions.begin({start.partition: start.offset for start in begun})
        self._owned |= {start.partition for start in begun}
        self._may_fall_back = False
        self._has_news = True
        self._listener.assigned(sorted(start.partition for start in begun))
        for start in begun:
            if start.committed is not None and start.offset != start.committed:
                self._reposition(start.partition, start.committed, start.kept)

    def _report_resets(self) -> None:
        for reset in self._positions.resets(self._consumer):
            self._has_news = True
            self._reposition(*reset)

    def _reposition(self, partition: TopicPartition, at: int, kept: Watermarks) -> None:
        LOGGER.warning(
            "%s: offset %d of %s [%d] is outside the kept range from %d to %d: reading on at %d",
            *(self._group, at, partition.topic, partition.partition, kept.low, kept.high, kept.low),
        )
        self._listener.repositioned(partition, at, kept)

    def _still_owned(
        self, partitions: Iterable[TopicPartition], action: str
    ) -> list[KafkaPartition]:
        mine = []
        for partition in partitions:
            if partition in self._owned:
                mine.append(KafkaPartition(*partition))
            else:
                LOGGER.debug("%s: %s of %s ignored, it has left", self._group, action, partition)
        return mine

    def _on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        # From offset 0 and paused until the start is known.
        given = [KafkaPartition(p.topic, p.partition, 0) for p in partitions]
        self._protocol.assign(consumer, given)
        if given:
            consumer.pause(given)
            self._starts.find(_ours(given))

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        # A member that polled too late has left the group already, and is told so by this callback.
        is_lost = epoch_of(consumer.consumer_group_metadata()) <= 0
        self._drop(_ours(partitions), is_lost=is_lost)
        self._protocol.unassign(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._drop(_ours(partitions), is_lost=True)
        self._protocol.unassign(consumer, partitions)

    def _drop(self, partitions: list[TopicPartition], *, is_lost: bool) -> None:
        """Tell the listener, if it knew of them, and forget all about them."""
        self._left.update(partitions)
        self._starts.forget(partitions)
        self._found = [start for start in self._found if start.partition not in partitions]
        known = [partition for partition in partitions if partition in self._owned]
        if known:
            self._has_news = True
            if is_lost:
                self._owned -= set(known)
                self._listener.lost(known)
            else:  # Ours until the listener is done: it may want a last commit.
                self._listener.revoked(known)
                self._owned -= set(known)
        self._positions.forget(partitions)
        self._commits.forget(partitions)

    def _serve_errors(self, messages: list[Message]) -> None:
        for message in messages:
            if (error := message.error()) is not None:
                self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        """An error of the client as a whole, or one that came in the place of a record."""
        # Fatal errors of the group come as a message with the cause in its text only.
        is_fatal = error.fatal() or error.code() == KafkaError._FATAL
        if is_fatal and self._may_fall_back:
            self._refusal = error.str()
        elif is_fatal or error.code() in REFUSED or error.code() in MISCONFIGURED:
            self._fatal = Fatal(f"member of {self._group}: {error.name()}: {error.str()}")
        else:
            self._log.say(logging.WARNING, error.name(), error.str())


def _ours(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
    return sorted(TopicPartition(p.topic, p.partition) for p in partitions)
