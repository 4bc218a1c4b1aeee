"""Finds where a newly assigned partition has to be read from, without holding up the poll loop.

For each partition it asks the cluster for the group's committed offset and for what the log keeps.
The committed offset is asked for as *stable* (KIP-447): while a transaction of the former owner is
undecided the answer is "not yet", so nobody starts from an offset that is about to change. All
questions are asked in the background; a partition counts as assigned when its answers are there.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from cape_stream.adapters.kafka.client_log import ClientLog
from cape_stream.adapters.kafka.failures import kafka_error
from cape_stream.ports.log import TopicPartition, Watermarks

RETRY_AFTER_S = 0.02
"""A transaction's end reaches the offsets a few milliseconds after its commit has returned."""

Offsets = Mapping[TopicPartition, "Future[ListOffsetsResultInfo]"]


class Start(NamedTuple):
    """Where to begin with a partition, and why there."""

    partition: TopicPartition
    committed: int | None
    kept: Watermarks

    @property
    def offset(self) -> int:
        """The committed offset if the log keeps it (or ends there), else the earliest record."""
        if self.committed is not None and self.kept.low <= self.committed <= self.kept.high:
            return self.committed
        return self.kept.low


@dataclass(slots=True)
class _Questions:
    """One round of questions, and what was asked about."""

    serials: dict[TopicPartition, int]
    committed: "Future[ConsumerGroupTopicPartitions]"
    low: Offsets
    high: Offsets

    def answered(self) -> bool:
        """Every answer is there, or has failed."""
        return self.committed.done() and all(
            future.done() for offsets in (self.low, self.high) for future in offsets.values()
        )


class StartPositions:
    """The partitions whose start is still unknown; used by the member's thread only."""

    def __init__(self, admin: AdminClient, group: str, timeout_ms: int, log: ClientLog) -> None:
        self._admin = admin
        self._group = group
        self._timeout_s = timeout_ms / 1_000
        self._log = log
        self._wanted: dict[TopicPartition, int] = {}
        self._serial = 0
        self._asked: _Questions | None = None
        self._ask_again_s = 0.0

    @property
    def is_idle(self) -> bool:
        """There is nothing to find."""
        return not self._wanted

    @property
    def wanted_numbers(self) -> set[int]:
        """Partition numbers of which one topic or more is still to be found."""
        return {partition.partition for partition in self._wanted}

    def find(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin to look for these."""
        self._serial += 1
        self._wanted.update(dict.fromkeys(partitions, self._serial))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They have left again; an answer that is under way will not be used."""
        for partition in partitions:
            self._wanted.pop(partition, None)

    def found(self) -> list[Start]:
        """Those found since the last call; asks what has not been asked. Never waits."""
        if self._asked is None:
            if self._wanted and time.monotonic() >= self._ask_again_s:
                self._asked = self._ask(dict(self._wanted))
            return []
        if not self._asked.answered():
            return []
        asked, self._asked = self._asked, None
        self._ask_again_s = time.monotonic() + RETRY_AFTER_S
        starts = [
            start
            for start in self._read(asked)
            if self._wanted.get(start.partition) == asked.serials[start.partition]
        ]
        self.forget(start.partition for start in starts)
        return starts

    def _ask(self, serials: dict[TopicPartition, int]) -> _Questions:
        group = ConsumerGroupTopicPartitions(self._group, [KafkaPartition(*p) for p in serials])
        committed = self._admin.list_consumer_group_offsets(
            [group], require_stable=True, request_timeout=self._timeout_s
        )
        return _Questions(
            serials,
            committed[self._group],
            self._offsets(serials, OffsetSpec.earliest()),
            self._offsets(serials, OffsetSpec.latest()),
        )

    def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
        asked = self._admin.list_offsets(
            {KafkaPartition(*partition): spec for partition in partitions},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout_s,
        )
        return {TopicPartition(key.topic, key.partition): asked[key] for key in asked}

    def _read(self, asked: _Questions) -> list[Start]:
        """Those with all three answers; a refused answer is said once and asked for again."""
        starts = []
        try:
            for answer in asked.committed.result().topic_partitions or ():
                if answer.error is not None:
                    self._log.say(logging.DEBUG, answer.error.name(), answer.error.str())
                    continue
                partition = TopicPartition(answer.topic, answer.partition)
                kept = Watermarks(
                    asked.low[partition].result().offset, asked.high[partition].result().offset
                )
                committed = answer.offset if answer.offset >= 0 else None
                starts.append(Start(partition, committed, kept))
        except KafkaException as exception:
            error = kafka_error(exception)
            self._log.say(logging.WARNING, error.name(), f"start positions: {error.str()}")
        return starts
