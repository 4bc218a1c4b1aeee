"""A member of a consumer group.

Protocols. With ``group.protocol=consumer`` (KIP-848) the broker assigns, and its ``range`` assignor
gives the same partition number of all topics to one member when their counts are equal; partitions
move one by one while the others go on. A broker that does not offer it gets the classic protocol
with the ``range`` strategy of librdkafka, which also keeps the partition numbers together but is
eager: each change of members takes all partitions from all members for a moment. The incremental
strategy of the classic protocol, ``cooperative-sticky``, does not keep them together, so it is no
choice for us.

Life of a partition here: given by the group → *unknown start*, held paused inside, nobody is told →
start found (`start_positions`), sought → the listener's ``assigned`` → ``resume`` by the caller →
records → ``revoked`` or ``lost``. One that leaves while its start is unknown was never told about.

Everything runs in the thread that calls `poll`, the callbacks too.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource

from cape_stream.adapters.kafka.client_log import LOGGER, ClientLog
from cape_stream.adapters.kafka.failures import (
    MISCONFIGURED,
    NO_PROTOCOL,
    OUTDATED_MEMBERSHIP,
    REFUSED,
    kafka_error,
)
from cape_stream.adapters.kafka.ownership import KafkaOwnership
from cape_stream.adapters.kafka.settings import ClientConfig, KafkaSettings
from cape_stream.adapters.kafka.start_positions import Start, StartPositions
from cape_stream.errors import Fatal, Fenced
from cape_stream.ports.log import MemberListener, Record, TopicPartition, Watermarks

UNKNOWN_START_WAIT_S = 0.002
"""How often `poll` looks for answers while a partition's start is unknown."""
RESET_WAIT_S = 1.0
COMMIT_AGAIN_AFTER_S = 0.1
LEAVE_WAIT_S = 5.0
SESSION_TIMEOUT_CONFIG = "consumer.session.timeout.ms"


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
        self._admin = admin
        self._group = group
        self._topics = list(topics)
        self._listener = listener
        self._log = ClientLog(f"member of {group}", self._on_reset)
        self._starts = StartPositions(admin, group, settings.request_timeout_ms, self._log)
        self._owned: frozenset[TopicPartition] = frozenset()
        self._start: dict[TopicPartition, int] = {}
        self._void_position: dict[TopicPartition, int] = {}
        self._found: list[Start] = []
        self._left: set[TopicPartition] = set()
        self._resets: dict[TopicPartition, int] = {}
        self._has_news = False
        self._fatal: Fatal | None = None
        self._falls_back = False
        self._commits: dict[TopicPartition, int] = {}
        self._commit_again: dict[TopicPartition, int] = {}
        self._commit_again_s = 0.0
        self._is_closed = False
        self._is_incremental = settings.group_protocol != "classic"
        self._session: Future[dict[str, ConfigEntry]] | None = None
        self._consumer = self._open()

    def poll(self, max_records: int, timeout_ms: int) -> list[Record]:
        """See `Member.poll`."""
        consumer = self._consumer
        deadline_s = time.monotonic() + timeout_ms / 1_000
        self._left.clear()
        self._has_news = False
        while True:
            self._serve()
            messages = consumer.consume(max_records, 0)
            if not messages and not self._has_news:
                wait_s = max(0.0, deadline_s - time.monotonic())
                if not self._starts.is_idle or self._found:
                    wait_s = min(wait_s, UNKNOWN_START_WAIT_S)
                first = consumer.poll(wait_s)
                if first is not None:
                    messages = [first]
                    if max_records > 1:
                        messages += consumer.consume(max_records - 1, 0)
            records = self._records(messages) if messages else []
            if self._resets:
                self._report_resets()
            if self._fatal is not None:
                raise self._fatal
            if self._falls_back:
                self._fall_back()
                return records
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
        reached = self._consumer.position([KafkaPartition(*partition)])[0].offset
        if reached < 0 or reached == self._void_position.get(partition):
            return self._start[partition]
        return reached

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Member.commit`; partitions that have left meanwhile are ignored."""
        mine = {
            partition: offset for partition, offset in offsets.items() if partition in self._owned
        }
        if len(mine) < len(offsets):
            LOGGER.debug("%s: commit of partitions that have left ignored", self._group)
        if not mine:
            return
        self._commits.update(mine)
        try:
            self._consumer.commit(
                offsets=[KafkaPartition(*partition, mine[partition]) for partition in mine],
                asynchronous=True,
            )
        except KafkaException as exception:
            self._on_commit(kafka_error(exception), [KafkaPartition(*p, mine[p]) for p in mine])

    def ownership(self) -> KafkaOwnership:
        """See `Member.ownership`."""
        if self._is_closed:
            raise Fenced(f"the member of {self._group} has left")
        return KafkaOwnership.of(self._consumer.consumer_group_metadata(), self._owned)

    def close(self) -> None:
        """See `Member.close`."""
        if self._is_closed:
            return
        consumer = self._consumer
        consumer.unsubscribe()
        deadline_s = time.monotonic() + LEAVE_WAIT_S
        while consumer.assignment() and time.monotonic() < deadline_s:
            consumer.poll(0.02)
        if self._owned:
            self._drop(sorted(self._owned), is_lost=True)
        self._is_closed = True
        consumer.close()

    def _open(self) -> Consumer:
        config: ClientConfig = {
            **self._settings.consumer(),
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": self._settings.max_poll_interval_ms,
        }
        if self._is_incremental:
            config |= {"group.protocol": "consumer", "group.remote.assignor": "range"}
            self._session = self._ask_session_timeout()
        else:
            session_ms = self._settings.session_timeout_ms
            config |= {
                "group.protocol": "classic",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": min(3_000, session_ms // 4),
            }
            self._session = None
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        consumer = Consumer({**config, **callbacks}, logger=self._log)
        consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        return consumer

    def _ask_session_timeout(self) -> "Future[dict[str, ConfigEntry]]":
        resource = ConfigResource(ConfigResource.Type.GROUP, self._group)
        asked = self._admin.describe_configs(
            [resource], request_timeout=self._settings.request_timeout_ms / 1_000
        )
        return asked[resource]

    def _fall_back(self) -> None:
        """The broker does not know the new protocol: begin again with the classic one."""
        LOGGER.info(
            "%s: the broker does not offer group.protocol=consumer; using the classic protocol, "
            "which stops all members for each change of members",
            self._group,
        )
        self._falls_back = False
        self._is_incremental = False
        self._consumer.close()
        self._consumer = self._open()

    def _serve(self) -> None:
        """Do what callbacks and answers have left for us, and tell the listener."""
        if self._resets:  # Those whose kept range could not be asked at once.
            self._report_resets()
        if self._commit_again and time.monotonic() >= self._commit_again_s:
            again, self._commit_again = self._commit_again, {}
            self.commit(again)
        if self._starts.is_idle and not self._found:
            return
        self._found += self._starts.found()
        if self._found and self._session_is_checked():
            self._begin()

    def _session_is_checked(self) -> bool:
        """Whether the broker's session timeout is known to be long enough for our lease.

        Raises:
            Fatal: it is shorter than we were told, so a lease would outlive the ownership.
        """
        if self._session is None:
            return True
        if not self._session.done():
            return False
        asked, self._session = self._session, None
        least_ms = self._settings.session_timeout_ms
        try:
            entry = asked.result().get(SESSION_TIMEOUT_CONFIG)
            given_ms = int(entry.value) if entry is not None and entry.value else None
        except KafkaException as exception:
            LOGGER.warning(
                "%s: cannot read %s, so make sure yourself that it is not below %d: %s",
                *(self._group, SESSION_TIMEOUT_CONFIG, least_ms, kafka_error(exception).str()),
            )
            return True
        if given_ms is not None and given_ms < least_ms:
            raise Fatal(
                f"{SESSION_TIMEOUT_CONFIG} of group {self._group} is {given_ms}, below our "
                f"session_timeout_ms of {least_ms}: set the one higher or the other lower"
            )
        return True

    def _begin(self) -> None:
        """Make the partitions whose start was found ours, and say so."""
        begun, self._found = [], self._found
        later = []
        for start in self._found:
            try:
                self._consumer.seek(KafkaPartition(*start.partition, start.offset))
                begun.append(start)
            except KafkaException:  # The client is not through with the assignment yet.
                later.append(start)
        self._found = later
        if not begun:
            return
        self._start.update((start.partition, start.offset) for start in begun)
        self._owned |= {start.partition for start in begun}
        self._has_news = True
        self._listener.assigned(sorted(start.partition for start in begun))
        for start in begun:
            if start.is_out_of_range and start.committed is not None:
                self._reposition(start.partition, start.committed, start.kept)

    def _reposition(self, partition: TopicPartition, at: int, kept: Watermarks) -> None:
        LOGGER.warning(
            "%s: offset %d of %s [%d] is outside the kept range from %d to %d: reading on at %d",
            *(self._group, at, partition.topic, partition.partition, kept.low, kept.high, kept.low),
        )
        self._listener.repositioned(partition, at, kept)

    def _report_resets(self) -> None:
        """Tell about positions that fell out of the log while we were reading."""
        resets, self._resets = self._resets, {}
        for partition, at in resets.items():
            if partition not in self._owned:
                continue
            asked = KafkaPartition(*partition)
            try:
                kept = Watermarks(*self._consumer.get_watermark_offsets(asked, RESET_WAIT_S))
            except (KafkaException, TypeError):  # None is how a timeout is told.
                self._resets[partition] = at
                continue
            self._start[partition] = kept.low
            reached = self._consumer.position([asked])[0].offset
            if not kept.low <= reached <= kept.high:
                self._void_position[partition] = reached
            self._has_news = True
            self._reposition(partition, at, kept)

    def _records(self, messages: list[Message]) -> list[Record]:
        # Hot: one tuple per record. `Record(...)` itself would cost 0.4 us more than this spelling.
        new, kind = tuple.__new__, Record
        records: list[Record] = [
            new(kind, (m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value()))
            for m in messages
            if m.error() is None
        ]
        if len(records) < len(messages):
            for message in messages:
                if (error := message.error()) is not None:
                    self._on_error(error)
        if self._left:
            records = [r for r in records if (r.topic, r.partition) not in self._left]
        return records

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
        if self._is_incremental:
            consumer.incremental_assign(given)
        else:
            consumer.assign(given)
        if given:
            consumer.pause(given)
            self._starts.find(_ours(given))

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._drop(_ours(partitions), is_lost=False)
        self._unassign(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._drop(_ours(partitions), is_lost=True)
        self._unassign(consumer, partitions)

    def _unassign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        if self._is_incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def _drop(self, partitions: list[TopicPartition], *, is_lost: bool) -> None:
        """Tell the listener, if it knew of them, and forget all about them."""
        self._left.update(partitions)
        self._starts.forget(partitions)
        self._found = [start for start in self._found if start.partition not in self._left]
        known = [partition for partition in partitions if partition in self._owned]
        if known:
            self._has_news = True
            if is_lost:
                self._owned -= set(known)
                self._listener.lost(known)
            else:  # Ours until the listener is done: it may want a last commit.
                self._listener.revoked(known)
                self._owned -= set(known)
        for partition in partitions:
            for memory in (
                self._start,
                self._void_position,
                self._resets,
                self._commits,
                self._commit_again,
            ):
                memory.pop(partition, None)

    def _on_commit(self, error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
        """An answer to `commit`: what failed for now, and is still the newest, is stored again."""
        for partition in partitions:
            failure = partition.error or error
            if failure is None:
                continue
            if failure.code() in OUTDATED_MEMBERSHIP:
                LOGGER.debug("%s: commit refused: %s", self._group, failure.str())
                continue
            ours = TopicPartition(partition.topic, partition.partition)
            if self._commits.get(ours) == partition.offset:
                self._log.say(logging.WARNING, failure.name(), f"commit: {failure.str()}")
                self._commit_again[ours] = partition.offset
                self._commit_again_s = time.monotonic() + COMMIT_AGAIN_AFTER_S

    def _on_error(self, error: KafkaError) -> None:
        """An error of the client as a whole, or one that came in the place of a record."""
        code = error.code()
        if (
            code in NO_PROTOCOL
            and self._is_incremental
            and self._settings.group_protocol == "auto"
            and not self._owned
        ):
            self._falls_back = True
        elif error.fatal() or code in REFUSED or code in MISCONFIGURED:
            self._fatal = Fatal(f"member of {self._group}: {error.name()}: {error.str()}")
        else:
            self._log.say(logging.WARNING, error.name(), error.str())

    def _on_reset(self, partition: TopicPartition, at: int) -> None:
        self._resets[partition] = at


def _ours(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
    return sorted(TopicPartition(p.topic, p.partition) for p in partitions)
