"""A Kafka topic as the event store of a domain, by way of a local index; docs/kafka-source.md."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Condition, Thread

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cape_stream.adapters.kafka.client_log import ClientLog
from cape_stream.adapters.kafka.event_index import EventIndex, Indexed
from cape_stream.adapters.kafka.event_records import BadRecordError, Keys, event_of
from cape_stream.adapters.kafka.failures import kafka_error, typed
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.errors import CapeError, Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault, query_refusal
from cape_stream.ports.source import Changes

BATCH_RECORDS_MAX = 2_000
LOOK_S = 0.05
AGAIN_S = 0.5
VERSION = 1
TOLD_MAX = 100
"""Bad records that are named in the log."""

logger = logging.getLogger("cape_stream.sources")


class KafkaEventSource:
    """Implements `EventSource` over a topic that keeps its records. Thread-safe.

    A thread of its own reads the topic, committed records only, into an index in a local file. A
    question waits until the index has everything that was in the topic when it was asked. The
    index holds a copy of each payload, as Kafka cannot look up single records fast.

    Args:
        settings: of the cluster.
        topic: what holds the events.
        folder: where the index lies; it may be deleted while nobody uses it.
        keys: ``subject``: the key is the subject, for a topic with retention. A topic that is
            compacted keeps one record a key, so there it is ``subject/sequence``, such as
            ``order-7/3``; a tombstone then takes the event away.
        sequence_header: with ``subject``, the header that holds the sequence id in digits; None:
            the record's offset, which is one.
        wait_ms: how long a question waits for the index, > 0.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        folder: Path,
        *,
        keys: Keys = "subject",
        sequence_header: str | None = None,
        wait_ms: int = 3_000,
    ) -> None:
        if keys not in ("subject", "subject/sequence") or wait_ms <= 0:
            raise ValueError("keys must be subject or subject/sequence, and wait_ms above 0")
        if keys != "subject" and sequence_header is not None:
            raise ValueError("the sequence id is in the key or in a header, not in both")
        self._settings, self._topic, self._folder = settings, topic, folder
        self._keys, self._sequence_header = keys, sequence_header
        self._wait_s = wait_ms / 1_000
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._admin = AdminClient(settings.connection())
        self._moved = Condition()
        self._thread: Thread | None = None
        self._stopping = False
        self._index: EventIndex | None = None
        self._identity = ""
        self._positions: dict[int, int] = {}
        self._failure: CapeError | None = None
        self.bad_records = 0
        self.repeated_records = 0
        """Records of a (subject, sequence id) that was there already; the first one counts."""
        self.late_records = 0
        """Records below the newest event of their subject: dispatchers may have passed them by."""

    # --- an event source -----------------------------------------------------------------------

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `cape_stream.ports.source.EventSource`.

        Raises:
            Retry: the cluster is away, or the index has not caught up yet; the message says how
                far it is.
            Fatal: there is no such topic, or access is refused.
        """
        index = self._caught_up()
        answers: list[EventPage | QueryFault] = []
        for query in queries:
            refusal = query_refusal(query)
            answers.append(
                EventPage(query, index.events(query))
                if refusal is None
                else QueryFault(query, refusal)
            )
        return answers

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `cape_stream.ports.source.EventSource`; raises as `fetch_many`. A watermark is good
        for every index of the same topic."""
        index = self._caught_up()
        starts = self._decode(watermark)
        newest: dict[str, int] = {}
        left = limit
        for partition in sorted(self._positions):
            rows = index.since(partition, starts.get(partition, 0), left) if left else []
            for subject, sequence, offset in rows:
                newest[subject] = max(sequence, newest.get(subject, 0))
                starts[partition] = offset + 1
            left -= len(rows)
        return Changes(list(newest.items()), self._encode(starts), more=left == 0)

    def _encode(self, starts: Mapping[int, int]) -> str:
        return json.dumps({"version": VERSION, "topic": self._identity, "next": starts})

    def _decode(self, watermark: str | None) -> dict[int, int]:
        """Partition → offset; nothing for a watermark that is not ours: the sweep starts over."""
        try:
            read = json.loads(watermark or "null")
            if read["version"] != VERSION or read["topic"] != self._identity:
                return {}
            return {int(partition): int(offset) for partition, offset in read["next"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return {}

    def close(self) -> None:
        """See `cape_stream.ports.source.EventSource`."""
        with self._moved:
            self._stopping = True
            thread, self._thread = self._thread, None
            self._moved.notify_all()
        if thread is not None:
            thread.join()

    # --- waiting for the index -----------------------------------------------------------------

    def _caught_up(self) -> EventIndex:
        """The index, once it has all that is committed in the topic at this moment."""
        until_s = time.monotonic() + self._wait_s
        with self._moved:
            if self._thread is None and not self._stopping:
                self._thread = Thread(target=self._fill, name="cape-index", daemon=True)
                self._thread.start()
            while self._index is None:
                if isinstance(self._failure, Fatal):
                    raise self._failure
                self._wait(until_s, "is not open yet")
            index, partitions = self._index, list(self._positions)
        ends = self._offsets(partitions, OffsetSpec.latest())
        with self._moved:
            while behind := [p for p in ends if self._positions.get(p, 0) < ends[p]]:
                place = behind[0]
                self._wait(until_s, f"stands at {self._positions.get(place)} of {ends[place]}")
        return index

    def _wait(self, until_s: float, where: str) -> None:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or self._stopping:
            raise self._failure or Retry(f"the index of topic {self._topic} {where}")
        self._moved.wait(left_s)

    def _offsets(self, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        asked = {KafkaPartition(self._topic, partition): spec for partition in partitions}
        found = self._admin.list_offsets(
            asked,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout_s,
        )
        try:
            return {each.partition: future.result().offset for each, future in found.items()}
        except KafkaException as error:
            raise typed(kafka_error(error), f"offsets of {self._topic}") from error

    # --- filling it, in a thread ---------------------------------------------------------------

    def _fill(self) -> None:
        while not self._stopping:
            try:
                self._fill_from_where_it_stands()
            except CapeError as error:
                self._failed(error)
            except KafkaException as error:
                self._failed(typed(kafka_error(error), f"reading {self._topic}"))
            with self._moved:
                if not self._stopping:
                    self._moved.wait(AGAIN_S)

    def _failed(self, error: CapeError) -> None:
        logger.warning("index of topic %s: %s", self._topic, error)
        with self._moved:
            self._failure = error

    def _fill_from_where_it_stands(self) -> None:
        identity, partitions = self._describe()
        folder = self._folder / f"{self._topic}.sqlite"
        index = EventIndex(folder, identity)
        consumer = Consumer(
            {
                **self._settings.consumer(),
                "group.id": "cape-index",  # required by the client; nothing is stored for it
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            },
            logger=ClientLog("index"),
        )
        try:
            positions = self._starts(index, partitions)
            consumer.assign([KafkaPartition(self._topic, *each) for each in positions.items()])
            with self._moved:
                self._index, self._identity, self._positions = index, identity, positions
                self._failure = None
                self._moved.notify_all()
            while not self._stopping:
                first = consumer.poll(LOOK_S)
                if first is not None:
                    self._take([first, *consumer.consume(BATCH_RECORDS_MAX, 0)], index)
        finally:
            with self._moved:
                self._index = None
            consumer.close()
            index.close()

    def _describe(self) -> tuple[str, list[int]]:
        """What the topic is, by its id, and its partitions."""
        topics = TopicCollection([self._topic])
        future = self._admin.describe_topics(topics, request_timeout=self._timeout_s)[self._topic]
        try:
            found = future.result()
        except KafkaException as error:
            if kafka_error(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise Fatal(f"there is no topic {self._topic} to read events from") from error
            raise typed(kafka_error(error), f"describe topic {self._topic}") from error
        identity = json.dumps([VERSION, str(found.topic_id), self._keys, self._sequence_header])
        return identity, [each.id for each in found.partitions]

    def _starts(self, index: EventIndex, partitions: Sequence[int]) -> dict[int, int]:
        """Where to go on in each partition."""
        known = index.positions()
        kept = self._offsets(partitions, OffsetSpec.earliest())
        for partition in partitions:
            if known.setdefault(partition, kept[partition]) < kept[partition]:
                logger.warning(
                    "topic %s [%d] has dropped records from %d to %d before they were indexed here",
                    *(self._topic, partition, known[partition], kept[partition]),
                )
                known[partition] = kept[partition]
        return {partition: known[partition] for partition in partitions}

    def _take(self, messages: Sequence[Message], index: EventIndex) -> None:
        records: list[Indexed] = []
        positions: dict[int, int] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise typed(error, f"reading {self._topic}")
            assert partition is not None, "records and ends have a place"
            assert offset is not None, "records and ends have a place"
            positions[partition] = offset if error is not None else offset + 1
            if error is None:
                records += self._event(message)
        added = index.add(records, positions)
        with self._moved:
            self.repeated_records += added.repeated
            self.late_records += added.late
            for partition, offset in positions.items():
                self._positions[partition] = max(offset, self._positions[partition])
            self._moved.notify_all()

    def _event(self, message: Message) -> list[Indexed]:
        try:
            event = event_of(message, self._keys, self._sequence_header)
        except BadRecordError as error:
            self.bad_records += 1
            if self.bad_records <= TOLD_MAX:
                place = f"{self._topic} [{message.partition()}] at {message.offset()}"
                logger.warning("no event, left out: %s: %s", place, error)
            return []
        return [] if event is None else [event]
