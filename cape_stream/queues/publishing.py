"""Fills SQS queues from job topics: batches by real bytes, claim checks, at least once.

An offset is committed only when everything before it has been taken by its queue, so a crash sends
some jobs twice and loses none; workers are idempotent. More partitions and more publishers make it
faster: each owns some partitions of every topic.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cape_stream.errors import CapeError, Reject, Retry
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Log, Member, Record, TopicPartition, Watermarks
from cape_stream.ports.object_store import ObjectStore
from cape_stream.ports.queue import FailureKind, OutgoingMessage, Queue
from cape_stream.queues.messages.jobs import TYPE, JobRecord, claim_of, digest_of, in_place
from cape_stream.queues.packing import batches, size_of

POLL_RECORDS = 500
BATCHES_AT_ONCE = 8
"""Sends under way at once."""
WAITING_MAX = 2_000
"""Records in memory, sent or not, behind one that cannot be sent now; no more are polled then."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
PAUSE_S_MAX = 10.0
LOOK_S = 0.2
"""How often the log is asked for more while something waits for its next try."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PublisherCounters:
    """What happened so far; each grows only."""

    sent: int = 0
    """Taken by a queue."""
    claims: int = 0
    """Of those, by claim check."""
    retried: int = 0
    """Entries that a queue did not take at once."""
    dead_letters: int = 0
    """Records that no queue can take."""
    nulls: int = 0


@dataclass(slots=True)
class _Ready:
    """One record on its way."""

    record: Record
    queue: str
    tenant: str
    """Its subject: a subject with many jobs does not starve the others."""
    message: OutgoingMessage
    is_done: bool = False
    is_tried: bool = False
    """It could not be sent, and waits for the next try of all such."""


@dataclass(slots=True, frozen=True, kw_only=True)
class PublisherSettings:
    """How a publisher works."""

    claim_bucket: str = ""
    """Bucket of jobs too large for their queue; empty: those become dead letters. Let a lifecycle
    rule of some weeks clean it."""
    claim_prefix: str = "jobs/"
    """What the keys of those objects begin with."""


@dataclass(slots=True)
class Publisher:
    """Carries jobs from topics to queues. One thread; `step` again and again, then `close`.

    Args:
        log: where the topics are; stays open.
        codec: reads jobs, writes dead letters.
        names: the App's topics.
        queues: worker queue → the SQS queue it goes to.
        store: for claim checks.
        settings: see there.
    """

    log: Log
    codec: Codec
    names: TopicNames
    queues: Mapping[str, Queue]
    store: ObjectStore | None
    settings: PublisherSettings
    counters: PublisherCounters = field(default_factory=PublisherCounters)
    _member: Member = field(init=False)
    _assigned: set[TopicPartition] = field(default_factory=set)
    _waiting: deque[_Ready] = field(default_factory=deque)
    """In the order of polling; what is done stays until everything before it is."""
    _pause_s: float = 0.0
    _again_s: float = 0.0
    """When what could not be sent is tried again, by the clock of the loop."""

    def __post_init__(self) -> None:
        topics = self.names.job_topics(self.queues)
        self._member = self.log.member(self.names.publisher_group, topics, self)

    async def step(self, timeout_ms: int) -> None:
        """Poll, send, commit. What could not be sent is tried again after a pause that grows, and
        holds up nothing else until too much waits behind it.

        Raises:
            Fatal: the membership cannot go on.
        """
        try:
            self._poll(timeout_ms)
        except Retry as error:
            logger.warning("the log does not answer: %s", error.reason)
            await asyncio.sleep((error.after_ms or 500) / 1_000)
            return
        await asyncio.sleep(0)  # polling blocks the loop, which has other things to do as well
        now_s = asyncio.get_running_loop().time()
        is_time = now_s >= self._again_s
        due = [
            each for each in self._waiting if not each.is_done and (is_time or not each.is_tried)
        ]
        if due:
            await self._send(due)
            self._commit()
        failed = [each for each in due if not each.is_done]
        if failed:
            self._pause(failed, is_time=is_time)
        elif is_time:
            self._pause_s = 0.0
        if self._waiting:
            await asyncio.sleep(LOOK_S)

    def _pause(self, failed: Sequence[_Ready], *, is_time: bool) -> None:
        """Let what failed wait for its next try."""
        for each in failed:
            each.is_tried = True
        if is_time:
            self._pause_s = min(PAUSE_S_MAX, max(LOOK_S, self._pause_s * 2))
            self._again_s = asyncio.get_running_loop().time() + self._pause_s

    def close(self) -> None:
        """Leave the group; what was not sent is read again by the next owner."""
        self._member.close()

    # --- the membership ------------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        self._assigned.update(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        self._commit()
        self.lost(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        leaving = set(partitions)
        self._assigned -= leaving
        self._waiting = deque(
            each for each in self._waiting if _partition(each.record) not in leaving
        )

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        """See `MemberListener`: what is gone will time out and be issued again."""
        logger.warning(
            "%s-%d: the committed offset %d is outside what the log keeps, [%d, %d)",
            *(partition.topic, partition.partition, committed, kept.low, kept.high),
        )

    def _poll(self, timeout_ms: int) -> None:
        """Keep the membership alive; take records only while there is room."""
        before = set(self._assigned)
        if self._is_full():
            self._member.pause(sorted(self._assigned))
            records = self._member.poll(1, 0)
        else:
            self._member.resume(sorted(self._assigned))
            records = self._member.poll(POLL_RECORDS, 0 if self._waiting else timeout_ms)
        arrived = sorted(self._assigned - before)
        if arrived:
            self._member.resume(arrived)
        self._waiting.extend(self._ready(each) for each in records)

    def _is_full(self) -> bool:
        size = sum(len(each.record.value or b"") for each in self._waiting)
        return len(self._waiting) >= WAITING_MAX or size >= WAITING_BYTES_MAX

    def _commit(self) -> None:
        """Commit up to the first record of each partition that is not done."""
        offsets: dict[TopicPartition, int] = {}
        blocked: set[TopicPartition] = set()
        left: deque[_Ready] = deque()
        for each in self._waiting:
            partition = _partition(each.record)
            if not each.is_done:
                blocked.add(partition)
            if partition in blocked:
                left.append(each)
            else:
                offsets[partition] = each.record.offset + 1
        self._waiting = left
        if offsets:
            self._member.commit(offsets)

    # --- sending -------------------------------------------------------------------------------

    def _ready(self, record: Record) -> _Ready:
        queue = self.names.queue_of(record.topic)
        if record.value is None:
            self.counters.nulls += 1
            return _Ready(record, queue, "", OutgoingMessage(""), is_done=True)
        tenant = (record.key or b"").decode(errors="replace")
        message = _outgoing(in_place(queue, record.value), digest_of(record.value), tenant)
        return _Ready(record, queue, tenant, message)

    async def _send(self, waiting: Sequence[_Ready]) -> None:
        """Send what can be sent; the rest stays."""
        limit = asyncio.Semaphore(BATCHES_AT_ONCE)
        work = []
        for name, queue in self.queues.items():
            mine = [each for each in waiting if each.queue == name]
            fitting = await self._fitted(queue, mine)
            by_message = {id(each.message): each for each in fitting}
            for batch in batches([each.message for each in fitting], queue.traits.bytes_max):
                entries = [by_message[id(message)] for message in batch]
                work.append(self._send_batch(queue, entries, limit))
        await asyncio.gather(*work)

    async def _fitted(self, queue: Queue, waiting: Sequence[_Ready]) -> list[_Ready]:
        """Those that fit their queue, in place or by claim check."""
        bytes_max = queue.traits.bytes_max
        return [
            each
            for each in waiting
            if size_of(each.message) <= bytes_max or await self._claimed(each)
        ]

    async def _claimed(self, ready: _Ready) -> bool:
        """Put a record that is too large into the store; False if it cannot go, or not now."""
        value = ready.record.value
        assert value is not None, "an empty record fits"
        bucket = self.settings.claim_bucket
        if self.store is None or not bucket:
            size = size_of(ready.message)
            await self._bury(
                ready, f"{size} bytes are over the limit of its queue, and there is no claim bucket"
            )
            return False
        claim = claim_of(bucket, self.settings.claim_prefix, value)
        try:
            await self.store.put(bucket, claim.key, value)
        except CapeError as error:
            logger.warning("a claim cannot be stored, trying on: %s", error.reason)
            return False
        self.counters.claims += 1
        record = JobRecord(queue=ready.queue, claim=claim)
        ready.message = _outgoing(record, claim.sha256, ready.tenant)
        return True

    async def _send_batch(
        self, queue: Queue, entries: Sequence[_Ready], limit: asyncio.Semaphore
    ) -> None:
        async with limit:
            try:
                answers = await queue.send([each.message for each in entries])
            except Reject as error:
                if len(entries) == 1:
                    await self._bury(entries[0], error.reason)
                    return
                for each in entries:  # one of them spoils the batch: find out which
                    await self._send_alone(queue, each)
                return
            except CapeError as error:
                logger.warning("%s takes no jobs, trying on: %s", queue.traits.name, error.reason)
                return
            for each, failure in zip(entries, answers, strict=True):
                if failure is None:
                    each.is_done = True
                    self.counters.sent += 1
                elif failure.kind is FailureKind.REFUSED:
                    await self._bury(each, failure.reason)
                else:
                    self.counters.retried += 1

    async def _send_alone(self, queue: Queue, entry: _Ready) -> None:
        await self._send_batch(queue, [entry], asyncio.Semaphore(1))

    async def _bury(self, ready: _Ready, reason: str) -> None:
        """Put a record aside that no queue can take."""
        record = ready.record
        letter = DeadLetter(
            record.topic, record.partition, record.offset, reason, record.key, record.value
        )
        producer = self.log.producer()
        try:
            value = self.codec.encode_dead_letter(letter)
            try:
                producer.send(self.names.dead_letters, record.partition, record.key, value)
            except Reject as error:
                small = DeadLetter(
                    record.topic,
                    record.partition,
                    record.offset,
                    f"{reason} (value not kept: {error.reason})",
                    record.key,
                    None,
                )
                value = self.codec.encode_dead_letter(small)
                producer.send(self.names.dead_letters, record.partition, record.key, value)
            if producer.flush(10_000) and not producer.take_failed():
                ready.is_done = True
                self.counters.dead_letters += 1
        finally:
            producer.close()


def _partition(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _outgoing(record: JobRecord, digest: str, tenant: str) -> OutgoingMessage:
    """Named by its content, so that a FIFO queue drops what a crash sends twice."""
    return TYPE.outgoing(record, message_id=digest, tenant=tenant, bytes_max=1 << 40)
