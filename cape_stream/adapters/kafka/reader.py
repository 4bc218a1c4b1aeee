"""Reads partitions outside any group, for restore and for tools.

``Watermarks.high`` is the end of the log *including* open transactions, while `read` yields
committed records only. A transaction that was open when the watermark was taken therefore holds
`read` up until it is decided, which is what a restore needs: the former owner's last commit, if it
comes, is among the records.
"""

import logging
import time
from collections.abc import Iterator

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cape_stream.adapters.kafka.client_log import ClientLog
from cape_stream.adapters.kafka.failures import MISCONFIGURED, REFUSED, kafka_error, typed
from cape_stream.adapters.kafka.records import records_of
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.errors import CapeError, Corrupt, Fatal, Retry
from cape_stream.ports.log import Record, TopicPartition, Watermarks

BATCH_RECORDS_MAX = 2_000
WAIT_S = 0.1


class KafkaReader:
    """See `cape_stream.ports.log.Reader`. One `read` at a time."""

    def __init__(self, settings: KafkaSettings, admin: AdminClient) -> None:
        self._settings = settings
        self._admin = admin
        self._log = ClientLog("reader")
        self._failure: CapeError | None = None
        self._reading: object | None = None
        config = {
            **settings.consumer(),
            # Required by the client; nothing is ever stored for it.
            "group.id": "cape-reader",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # The end is told by a fetch that comes back empty: do not let it wait for company.
            "fetch.wait.max.ms": 10,
            # One partition at a time, as fast as it comes: nothing waits behind it.
            "max.partition.fetch.bytes": 4 << 20,
            "queued.min.messages": 100_000,
        }
        self._consumer = Consumer({**config, "error_cb": self._on_error}, logger=self._log)

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        """See `Reader.watermarks`; ``high`` counts open transactions, see above."""
        asked = KafkaPartition(*partition)
        timeout_s = self._settings.request_timeout_ms / 1_000
        answers = [
            self._admin.list_offsets(
                {asked: spec},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=timeout_s,
            )
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        try:
            low, high = (next(iter(answer.values())).result().offset for answer in answers)
        except KafkaException as exception:
            raise typed(kafka_error(exception), f"watermarks of {_name(partition)}") from exception
        return Watermarks(low, high)

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """See `Reader.committed`."""
        asked = ConsumerGroupTopicPartitions(group, [KafkaPartition(*partition)])
        timeout_s = self._settings.request_timeout_ms / 1_000
        future = self._admin.list_consumer_group_offsets([asked], request_timeout=timeout_s)[group]
        try:
            found = future.result().topic_partitions
        except KafkaException as exception:
            error = kafka_error(exception)
            if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise typed(error, f"offsets of group {group}") from exception
        offset = next((each.offset for each in found), -1)
        return offset if offset >= 0 else None

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        """See `Reader.read`; raises Retry too when nothing moves for the request timeout."""
        kept = self.watermarks(partition)
        if start < kept.low:
            raise Corrupt(f"{_name(partition)} is kept from {kept.low} on, not from {start}")
        if start >= end:
            return
        self._reading = token = object()
        self._failure = None
        self._consumer.assign([KafkaPartition(*partition, start)])
        try:
            yield from self._batches(partition, start, end, token)
        finally:
            if self._reading is token:
                self._consumer.unassign()
                self._reading = None

    def close(self) -> None:
        """See `Reader.close`."""
        self._consumer.close()

    def _batches(
        self, partition: TopicPartition, start: int, end: int, token: object
    ) -> Iterator[list[Record]]:
        position = start
        patience_s = self._settings.request_timeout_ms / 1_000
        moved_s = time.monotonic()
        while position < end:
            assert self._reading is token, "a reader reads one range at a time"
            records, reached = self._next(partition)
            if reached > position:
                position = reached
                moved_s = time.monotonic()
            if records and records[-1].offset >= end:
                records = [record for record in records if record.offset < end]
            if records:
                yield records
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > patience_s:
                raise Retry(
                    f"{_name(partition)} stands at {position} of {end}: "
                    "the broker is away, or a transaction is open"
                )

    def _next(self, partition: TopicPartition) -> tuple[list[Record], int]:
        """The next records, and the offset after the last thing seen, which may be a marker."""
        messages = self._consumer.consume(BATCH_RECORDS_MAX, 0)
        if not messages and (first := self._consumer.poll(WAIT_S)) is not None:
            messages = [first, *self._consumer.consume(BATCH_RECORDS_MAX - 1, 0)]
        reached = -1
        records = records_of(messages)
        if len(records) < len(messages):
            reached = self._serve_errors(partition, messages)
        if self._failure is not None:
            raise self._failure
        if records:
            reached = max(reached, records[-1].offset + 1)
        return records, reached

    def _serve_errors(self, partition: TopicPartition, messages: list[Message]) -> int:
        """Returns the offset at which the end of the partition was met, or -1."""
        end = -1
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                end = max(end, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                at = message.offset() or 0
                self._failure = Corrupt(f"{_name(partition)}: offset {at}: {error.str()}")
            else:
                self._on_error(error)
        return end

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSED or error.code() in MISCONFIGURED:
            self._failure = Fatal(f"reader: {error.name()}: {error.str()}")
        else:
            self._log.say(logging.WARNING, error.name(), error.str())


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic} [{partition.partition}]"
